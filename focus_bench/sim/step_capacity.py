"""What a run's buffers hold and which graphs it has, as the engine makes them. Knows no seconds."""

from dataclasses import dataclass
from functools import cached_property

from focus_bench.core.costs import PrefillShape
from focus_bench.core.token_buckets import (
    MAX_GRAPH_CHUNKS,
    captured_buckets,
    prefill_buckets,
    token_bucket,
)


@dataclass(frozen=True, kw_only=True)
class StepCapacity:
    """What a run's buffers are made for: `max_rows` sequences of a step; and which graphs there are
    (`cuda_graphs` as in EngineConfig, `experts`: of a model that has them).
    """

    max_rows: int
    block_length: int
    cuda_graphs: str = "auto"
    experts: bool = False

    @cached_property
    def buckets(self) -> frozenset[int]:
        """Buckets with graphs."""
        capacity = self.max_rows * self.block_length
        return frozenset(captured_buckets(self.cuda_graphs, capacity, experts=self.experts))

    def prefill_bucket(self, shape: PrefillShape) -> int | None:
        """The bucket of prefilled tokens whose graph takes the chunks; None: kernel by kernel."""
        if shape.num_chunks > MAX_GRAPH_CHUNKS:
            return None
        bucket = token_bucket(max(1, int(shape.length.sum())))
        return bucket if bucket in self._prefill_buckets else None

    @cached_property
    def _prefill_buckets(self) -> frozenset[int]:
        buckets = prefill_buckets(self.cuda_graphs, self.block_length, experts=self.experts)
        return frozenset(buckets)
