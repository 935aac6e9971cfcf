"""paged_attention and RaggedRows against an explicit loop, on ragged and empty shapes."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import PRESETS
from focus_bench.engine.attention import RaggedRows, paged_attention
from focus_bench.engine.kv_cache import PagedKVCache

CPU = torch.device("cpu")


def cache_with_noise(heads: int, kv_heads: int, head_dim: int, slots: int = 64) -> PagedKVCache:
    spec = PRESETS["dummy-tiny"].replace(
        num_layers=2, num_q_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim
    )
    cache = PagedKVCache(spec, num_pages=slots // 4, page_size=4, device=CPU, dtype=torch.float32)
    random = torch.Generator().manual_seed(3)
    cache.keys.normal_(generator=random)
    cache.values.normal_(generator=random)
    return cache


def row_by_row(
    cache: PagedKVCache, layer: int, q: torch.Tensor, visible: list[np.ndarray]
) -> torch.Tensor:
    """Each query row and head alone, in float64."""
    total, heads, head_dim = q.shape
    group = heads // cache.keys.shape[2]
    out = torch.empty(total, heads, head_dim, dtype=torch.float64)
    for row in range(total):
        for head in range(heads):
            keys = cache.keys[layer, visible[row], head // group].double()
            values = cache.values[layer, visible[row], head // group].double()
            weights = torch.softmax(keys @ q[row, head].double() * head_dim**-0.5, dim=0)
            out[row, head] = weights @ values
    return out.reshape(total, -1).float()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(8, 2, 16), (7, 1, 48), (6, 1, 80), (4, 4, 96), (2, 1, 256)],
)
def test_ragged_decode_rows(heads: int, kv_heads: int, head_dim: int) -> None:
    cache = cache_with_noise(heads, kv_heads, head_dim)
    random = np.random.default_rng(0)
    num_queries = [3, 0, 1, 5]
    key_slots = [
        np.arange(8, 21),  # one range: sliced
        np.arange(0),
        np.array([63]),
        random.permutation(64)[:17],  # scattered: gathered
    ]
    q = torch.randn(9, heads, head_dim, generator=torch.Generator().manual_seed(1))
    rows = RaggedRows.build(num_queries, key_slots, device=CPU)
    assert rows.cu_seqlens_q == (0, 3, 3, 4, 9)
    assert rows.num_query_key_pairs == 3 * 13 + 1 + 5 * 17
    assert isinstance(rows.keys[0], slice)
    assert isinstance(rows.keys[3], torch.Tensor)
    visible = [slots for n, slots in zip(num_queries, key_slots, strict=True) for _ in range(n)]
    torch.testing.assert_close(
        paged_attention(cache, 1, q, rows), row_by_row(cache, 1, q, visible), rtol=1e-5, atol=1e-5
    )


def test_block_causal_chunks_see_history_and_blocks_up_to_their_own() -> None:
    cache = cache_with_noise(4, 2, 8)
    slots = [np.r_[8:12, 0:8, 40:44], np.arange(20, 26)]
    num_queries = [6, 6]
    q = torch.randn(12, 4, 8, generator=torch.Generator().manual_seed(1))
    rows = RaggedRows.build(num_queries, slots, device=CPU, block_length=3)
    assert rows.num_query_key_pairs == 3 * 13 + 3 * 16 + 3 * 3 + 3 * 6
    visible = [slots[0][:13]] * 3 + [slots[0]] * 3 + [slots[1][:3]] * 3 + [slots[1]] * 3
    torch.testing.assert_close(
        paged_attention(cache, 0, q, rows), row_by_row(cache, 0, q, visible), rtol=1e-5, atol=1e-5
    )


def test_flops_are_exactly_those_of_the_query_key_pairs() -> None:
    cache = cache_with_noise(8, 2, 16)
    rows = RaggedRows.build([4, 8], [np.arange(10), np.arange(12, 30)], device=CPU, block_length=4)
    with FlopCounterMode(display=False) as counter:
        paged_attention(cache, 0, torch.randn(12, 8, 16), rows)
    assert counter.get_total_flops() == 4 * 8 * 16 * rows.num_query_key_pairs


def test_slots_beyond_the_rows_are_never_read() -> None:
    cache = cache_with_noise(4, 2, 8)
    cache.keys[:, 10:] = torch.nan
    cache.values[:, 10:] = torch.nan
    rows = RaggedRows.build([2], [np.arange(10)], device=CPU)
    assert paged_attention(cache, 0, torch.randn(2, 4, 8), rows).isfinite().all()


def test_no_rows_at_all() -> None:
    cache = cache_with_noise(4, 2, 8)
    rows = RaggedRows.build([], [], device=CPU)
    assert paged_attention(cache, 0, torch.empty(0, 4, 8), rows).shape == (0, 32)


@pytest.mark.parametrize(
    ("num_queries", "keys", "block_length"),
    [([4], [8, 8], None), ([4], [0], None), ([5], [8], 4), ([8], [4], 4)],
)
def test_rows_that_do_not_add_up_are_refused(
    num_queries: list[int], keys: list[int], block_length: int | None
) -> None:
    slots = [np.arange(n) for n in keys]
    with pytest.raises(UsageError, match=r"^(key_slots|num_queries): "):
        RaggedRows.build(num_queries, slots, device=CPU, block_length=block_length)
