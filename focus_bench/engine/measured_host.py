"""What one call of the host's measured work is: launches, replays of graphs, readback and swaps.

Knows names of curves and points; not how calls are timed.
"""

from collections.abc import Callable, Sequence

import torch

from focus_bench.core.config import SamplingConfig
from focus_bench.core.curve_samples import Point
from focus_bench.core.op_curves import BLOCK_LENGTH, TABLE_TOKENS
from focus_bench.engine.device_head import DeviceHead
from focus_bench.engine.forward import FirstLayers, first_layers, later_layers, prefill_layers
from focus_bench.engine.kernel_rows import KernelRows
from focus_bench.engine.kernels.paged_attention.launcher import AttentionLayout
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.measured_eviction import MeasuredEviction
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.models.fused import fused_layers
from focus_bench.engine.op_timer import Call


class MeasuredHost:
    """The host's side of steps over `cache`, which has all layers of the model.

    `captured` makes a graph of a call (OpTimer.captured); `eviction`: whose launches are timed.
    """

    def __init__(
        self,
        model: BlockDiffusionModel,
        cache: PagedKVCache,
        eviction: MeasuredEviction,
        *,
        max_rows: int,
        captured: Callable[[Call], Call],
    ) -> None:
        self._model = model
        self._cache = cache
        self._stack = fused_layers(model, cache)
        self._head = DeviceHead(model, self._stack, SamplingConfig(), max_rows=max_rows)
        self._calls: dict[str, Callable[[int], Call]] = {
            "launch_first": self._first,
            "launch_later": self._later,
            "launch_prefill": self._prefill,
            "launch_eviction": eviction.whole,
            "launch_head": self._launch_head,
            "replay_first": lambda rows: captured(self._first(rows)),
            "replay_later": lambda rows: captured(self._later(rows)),
            "host_readback": self._readback,
            "swap_out": self._swap_out,
            "swap_in": self._swap_in,
        }

    def __contains__(self, curve: str) -> bool:
        return curve in self._calls

    def calls(self, curve: str, point: Point) -> Sequence[Call]:
        """The call of a curve at a point."""
        return [self._calls[curve](*point)]

    def _first(self, rows: int) -> Callable[[], FirstLayers]:
        numbers = torch.arange(rows, dtype=torch.int32, device=self._model.device)
        attended = self._rows(rows)
        return lambda: first_layers(self._stack, numbers, numbers, numbers, attended)

    def _later(self, rows: int) -> Call:
        kept, attended = self._first(rows)(), self._rows(rows)
        return lambda: later_layers(self._stack, kept, attended)

    def _prefill(self, rows: int) -> Call:
        numbers = torch.arange(rows, dtype=torch.int32, device=self._model.device)
        page_size = self._cache.page_size
        attended = KernelRows(
            layout=AttentionLayout(
                cu_queries=numbers.new_tensor([0, rows]),
                num_keys=numbers.new_tensor([rows]),
                page_table=torch.arange(-(-rows // page_size), device=numbers.device).int()[None],
                page_size=page_size,
                max_queries=rows,
                max_keys=rows,
                query_start=numbers.new_zeros(1),
                block_length=BLOCK_LENGTH,
            )
        )
        return lambda: prefill_layers(self._stack, numbers, numbers, numbers, attended)

    def _rows(self, rows: int) -> KernelRows:
        """Sequences of whole blocks that attend to their own first tokens."""
        device, page_size = self._model.device, self._cache.page_size
        sequences = -(-rows // BLOCK_LENGTH)
        bounds = torch.arange(sequences + 1, dtype=torch.int32, device=device) * BLOCK_LENGTH
        pages = TABLE_TOKENS // page_size
        return KernelRows(
            layout=AttentionLayout(
                cu_queries=bounds.clamp(max=rows),
                num_keys=torch.full((sequences,), page_size, dtype=torch.int32, device=device),
                page_table=torch.zeros((sequences, pages), dtype=torch.int32, device=device),
                page_size=page_size,
                max_queries=BLOCK_LENGTH,
                max_keys=TABLE_TOKENS,
            )
        )

    def _launch_head(self, rows: int) -> Call:
        size = (rows, self._model.spec.hidden_size)
        hidden = torch.randn(size, device=self._model.device, dtype=self._model.dtype)
        needed = torch.arange(rows, dtype=torch.int32, device=self._model.device)
        return lambda: self._head.draw(hidden, needed, None)

    def _readback(self, sequences: int) -> Call:
        """As DeviceEviction.read: two copies into pinned memory, and waiting for them."""
        device = self._model.device
        pinned = device.type == "cuda"
        totals = torch.zeros(2, dtype=torch.int32, device=device)
        kept = torch.ones((sequences, BLOCK_LENGTH), dtype=torch.uint8, device=device)
        on_host = [torch.empty_like(t, device="cpu", pin_memory=pinned) for t in (totals, kept)]

        def call() -> object:
            for target, source in zip(on_host, (totals, kept), strict=True):
                target.copy_(source, non_blocking=True)
            self._synchronize()
            return on_host[0].tolist()

        return call

    def _swap_out(self, tokens: int) -> Call:
        pages = range(tokens // self._cache.page_size)
        return lambda: self._cache.copy_pages_out(pages)

    def _swap_in(self, tokens: int) -> Call:
        pages = range(tokens // self._cache.page_size)
        saved = self._cache.copy_pages_out(pages)

        def call() -> None:
            self._cache.copy_pages_in(pages, saved)
            self._synchronize()

        return call

    def _synchronize(self) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
