"""Query rows for the attention kernel: AttentionRows over page tables on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from focus_bench.engine.kernels.paged_attention.launcher import AttentionLayout, paged_attention
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.scheduling.plan import PrefillChunk


@dataclass(frozen=True, kw_only=True)
class KernelRows:
    """Rows as the kernel's layout describes them; implements AttentionRows."""

    layout: AttentionLayout

    def attend(self, cache: PagedKVCache, layer: int, q: Tensor) -> Tensor:
        """As AttentionRows says, in one or two launches."""
        keys, values = cache.layer(layer)
        return paged_attention(q, keys, values, self.layout)

    @classmethod
    def of_prefill(
        cls,
        chunks: Sequence[PrefillChunk],
        page_table: np.ndarray,
        *,
        page_size: int,
        block_length: int,
        device: torch.device,
    ) -> "KernelRows":
        """Block-causal rows of prefill chunks; `page_table[slots, pages]`."""
        lengths = np.array([len(chunk.token_ids) for chunk in chunks], dtype=np.int32)
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int32)
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        ends = starts + lengths
        num_pages = -(-int(ends.max()) // page_size)
        tables = page_table[[chunk.slot for chunk in chunks], :num_pages]

        def on_device(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)

        return cls(
            layout=AttentionLayout(
                cu_queries=on_device(bounds),
                num_keys=on_device(ends),
                page_table=on_device(tables),
                page_size=page_size,
                max_queries=int(lengths.max()),
                max_keys=int(ends.max()),
                query_start=on_device(starts),
                block_length=block_length,
            )
        )
