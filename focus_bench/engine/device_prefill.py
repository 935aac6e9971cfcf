"""Prefill on a GPU: few tokens as a captured graph, which a host starts at once, others kernel by
kernel.

Knows chunks, pages and buckets; the layers are the stack's.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from focus_bench.core.token_buckets import MAX_GRAPH_CHUNKS, prefill_buckets, token_bucket
from focus_bench.engine.cuda_graphs import StageGraphs
from focus_bench.engine.forward import prefill_layers
from focus_bench.engine.kernel_rows import KernelRows
from focus_bench.engine.kernels.paged_attention.launcher import AttentionLayout, compile_prefill
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.layer_stack import LayerStack
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.scheduling.plan import PrefillChunk

_Table = npt.NDArray[np.int32]


class DevicePrefill:
    """Writes the K/V of prompts' chunks; `cuda_graphs` as in EngineConfig."""

    def __init__(
        self,
        model: BlockDiffusionModel,
        stack: LayerStack,
        cache: PagedKVCache,
        *,
        block_length: int,
        cuda_graphs: str,
    ) -> None:
        self._num_q_heads = model.spec.num_q_heads
        self._device = model.device
        self._stack = stack
        self._cache = cache
        self._block_length = block_length
        self._buckets = prefill_buckets(
            cuda_graphs, block_length, experts=model.spec.experts is not None
        )
        self._graphs: StageGraphs[None] = StageGraphs(None)
        self._inputs = _Inputs(0, 0, self._device)

    def compile(self) -> None:
        """Compile whatever kernel by kernel may be needed, so that no step waits for it."""
        keys, values = self._cache.layer(0)
        compile_prefill(
            keys,
            values,
            num_q_heads=self._num_q_heads,
            page_size=self._cache.page_size,
            block_length=self._block_length,
        )

    def capture(self, table_width: int, pool: object) -> None:
        """Capture a graph a bucket, for page tables of that width, in the graphs' memory `pool`."""
        self._graphs = StageGraphs(pool)
        if not self._buckets:
            return
        self._inputs = _Inputs(self._buckets[-1], table_width, self._device)
        for bucket in self._buckets:
            self._graphs.capture(bucket, self._stage(bucket))

    def run(self, chunks: Sequence[PrefillChunk], page_table: _Table) -> None:
        """Prefill the chunks; `page_table[slots, pages]` as in Plan."""
        num_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        bucket = token_bucket(num_tokens)
        if (
            len(chunks) <= MAX_GRAPH_CHUNKS
            and bucket in self._graphs
            and self._pages(chunks) <= self._inputs.table_width
        ):
            self._inputs.fill(chunks, page_table, self._cache.page_size)
            self._graphs.replay(bucket)
            return
        described = np.stack(_tokens_of(chunks, page_table, self._cache.page_size))
        token_ids, positions, slots = torch.from_numpy(described).to(self._device).unbind()
        rows = KernelRows.of_prefill(
            chunks,
            page_table,
            page_size=self._cache.page_size,
            block_length=self._block_length,
            device=self._device,
        )
        prefill_layers(self._stack, token_ids, positions, slots, rows)

    def _pages(self, chunks: Sequence[PrefillChunk]) -> int:
        return -(-max(c.start + len(c.token_ids) for c in chunks) // self._cache.page_size)

    def _stage(self, num_tokens: int) -> Callable[[], None]:
        inputs = self._inputs
        count = min(MAX_GRAPH_CHUNKS, num_tokens // self._block_length)
        rows = KernelRows(
            layout=AttentionLayout(
                cu_queries=inputs.bounds[: count + 1],
                num_keys=inputs.ends[:count],
                page_table=inputs.table[:count],
                page_size=self._cache.page_size,
                max_queries=num_tokens,
                max_keys=num_tokens,
                query_start=inputs.starts[:count],
                block_length=self._block_length,
            )
        )
        tokens = [of_token[:num_tokens] for of_token in inputs.tokens]
        return lambda: prefill_layers(self._stack, tokens[0], tokens[1], tokens[2], rows)


class _Inputs:
    """What a graph reads: one pinned buffer, one copy, fixed addresses on the device.

    Of each token its id, position and slot (`tokens`, int32 [num_tokens] each); of each chunk
    `bounds` [chunks + 1] of its tokens, `starts` and `ends` [chunks], and a page `table`.
    """

    def __init__(self, num_tokens: int, table_width: int, device: torch.device) -> None:
        self.table_width = table_width
        chunks = MAX_GRAPH_CHUNKS
        self._sizes = [*(num_tokens,) * 3, chunks + 1, chunks, chunks, chunks * table_width]
        pinned = device.type == "cuda"
        self._on_host = torch.zeros(sum(self._sizes), dtype=torch.int32, pin_memory=pinned)
        self._on_device = torch.zeros_like(self._on_host, device=device)
        parts = self._parts(self._on_device)
        self.tokens = parts[:3]
        self.bounds, self.starts, self.ends, table = parts[3:]
        self.table = table.view(chunks, table_width)
        # Of a graph that is captured: no token is written, none attended to.
        self.tokens[2].fill_(-1)

    def _parts(self, whole: Tensor) -> list[Tensor]:
        ends = np.cumsum(self._sizes).tolist()
        return [whole[end - size : end] for size, end in zip(self._sizes, ends, strict=True)]

    def fill(self, chunks: Sequence[PrefillChunk], page_table: _Table, page_size: int) -> None:
        """Describe the chunks; the host's side must not change before the step ends."""
        ids, positions, slots, bounds, starts, ends, table = (
            part.numpy() for part in self._parts(self._on_host)
        )
        count = len(chunks)
        described = _tokens_of(chunks, page_table, page_size)
        num_tokens = len(described[0])
        for target, values in zip((ids, positions, slots), described, strict=True):
            target[:num_tokens] = values
        slots[num_tokens:] = -1
        lengths = np.array([len(chunk.token_ids) for chunk in chunks])
        bounds[1 : count + 1] = np.cumsum(lengths)
        bounds[count + 1 :] = num_tokens
        starts[:count] = [chunk.start for chunk in chunks]
        ends[:] = 0
        ends[:count] = starts[:count] + lengths
        rows = page_table[[chunk.slot for chunk in chunks]]
        width = min(rows.shape[1], self.table_width)
        table.reshape(MAX_GRAPH_CHUNKS, -1)[:count, :width] = rows[:, :width]
        self._on_device.copy_(self._on_host, non_blocking=True)


def _tokens_of(
    chunks: Sequence[PrefillChunk], page_table: _Table, page_size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Ids, positions and slots of all the chunks' tokens, one chunk after the other."""
    positions = [np.arange(c.start, c.start + len(c.token_ids), dtype=np.int32) for c in chunks]
    slots = [
        page_table[c.slot][p // page_size] * page_size + p % page_size
        for c, p in zip(chunks, positions, strict=True)
    ]
    ids = np.concatenate([chunk.token_ids for chunk in chunks])
    return (
        ids.astype(np.int32),
        np.concatenate(positions),
        np.concatenate(slots).astype(np.int32),
    )
