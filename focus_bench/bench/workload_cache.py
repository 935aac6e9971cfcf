"""The requests and the tokenizer of each point, loaded once for all points that share them.

Knows which tokenizer belongs to which model; reading files is workloads/'s matter.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from focus_bench.bench.defaults import default_tokenizer
from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import resolve_model
from focus_bench.core.workload import Workload
from focus_bench.workloads.loader import load_workload
from focus_bench.workloads.tokenizers import Tokenizer, load_tokenizer


@dataclass(kw_only=True)
class WorkloadCache:
    """Workloads and tokenizers of points, each loaded once."""

    _tokenizers: dict[str, Tokenizer] = field(default_factory=dict)
    _loaded: dict[tuple[object, ...], Workload] = field(default_factory=dict)
    _ahead: Future[None] | None = None

    def load_ahead(self, points: Sequence[PointConfig]) -> None:
        """Load the points' requests in a thread, while the caller does what needs none of them.

        `of` waits for it, and raises what there is to raise.
        """

        def load() -> None:
            for point in points:
                self._of(point)

        pool = ThreadPoolExecutor(1)
        self._ahead = pool.submit(load)
        pool.shutdown(wait=False)

    def tokenizer_of(self, point: PointConfig) -> Tokenizer:
        """The tokenizer that the point's text goes through."""
        name = point.workload.tokenizer or default_tokenizer(point.engine)
        if name not in self._tokenizers:
            self._tokenizers[name] = load_tokenizer(name)
        return self._tokenizers[name]

    def of(self, point: PointConfig) -> Workload:
        """The point's requests. Raises UsageError where the data cannot be had."""
        if self._ahead is not None:
            wait([self._ahead])
        return self._of(point)

    def _of(self, point: PointConfig) -> Workload:
        spec = resolve_model(point.engine)
        tokenizer = self.tokenizer_of(point)
        key = (
            point.workload,
            point.seed,
            tokenizer.name,
            point.decode.block_length,
            spec.max_position_embeddings,
        )
        if key not in self._loaded:
            if tokenizer.size > spec.vocab_size:
                raise UsageError(
                    "--tokenizer",
                    f"{tokenizer.name} with {tokenizer.size} ids",
                    f"one with at most {spec.vocab_size}, the vocabulary of {spec.name}",
                )
            self._loaded[key] = load_workload(
                point.workload,
                tokenizer=tokenizer,
                seed=point.seed,
                block_length=point.decode.block_length,
                max_positions=spec.max_position_embeddings,
            )
        return self._loaded[key]
