"""One sequence through a model's layers and the paged cache, without scheduler and executor."""

import numpy as np
import torch
from torch import Tensor

from focus_bench.engine.attention import RaggedRows, paged_attention
from focus_bench.engine.kv_cache import PagedKVCache, slot_ids
from focus_bench.engine.models.base import BlockDiffusionModel

PAGE_SIZE = 4


def forward(
    model: BlockDiffusionModel,
    cache: PagedKVCache,
    pages: list[int],
    token_ids: np.ndarray,
    first_position: int,
    block_length: int | None,
) -> Tensor:
    """Logits [T, vocab] of tokens from `first_position` on, with all that lies before cached."""
    positions = np.arange(first_position, first_position + len(token_ids))
    slots = torch.from_numpy(slot_ids(pages, positions, PAGE_SIZE))
    keys = slot_ids(pages, np.arange(positions[-1] + 1), PAGE_SIZE)
    rows = RaggedRows.build(
        [len(token_ids)], [keys], device=model.device, block_length=block_length
    )
    hidden = model.embed(torch.from_numpy(token_ids))
    cos, sin = model.rope(torch.from_numpy(positions))
    for layer in range(model.spec.num_layers):
        q, k, v = model.project(layer, hidden, cos, sin)
        cache.write(layer, slots, k, v)
        hidden = model.finish(layer, hidden, paged_attention(cache, layer, q, rows))
    return model.logits(hidden)


def poisoned_cache(model: BlockDiffusionModel, num_pages: int = 10) -> PagedKVCache:
    cache = PagedKVCache(
        model.spec,
        num_pages=num_pages,
        page_size=PAGE_SIZE,
        device=model.device,
        dtype=model.dtype,
    )
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    return cache
