"""Padded attention against the sequence-by-sequence one, and the engine on top of it."""

import numpy as np
import pytest
import torch
from engine_serving import make_point, make_requests, random_model, serve

from focus_bench.core.model_spec import PRESETS
from focus_bench.engine import attention, padded_attention
from focus_bench.engine.attention import RaggedRows, paged_attention
from focus_bench.engine.kv_cache import PagedKVCache

CPU = torch.device("cpu")


def cache_of(heads: int, kv_heads: int, head_dim: int) -> PagedKVCache:
    """64 slots of noise; 50 and up are NaN."""
    spec = PRESETS["dummy-tiny"].replace(
        num_layers=2, num_q_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim
    )
    cache = PagedKVCache(spec, num_pages=16, page_size=4, device=CPU, dtype=torch.float32)
    random = torch.Generator().manual_seed(3)
    cache.keys.normal_(generator=random)
    cache.values.normal_(generator=random)
    cache.keys[:, 50:] = torch.nan
    cache.values[:, 50:] = torch.nan
    return cache


@pytest.mark.parametrize("max_pairs", [1, 60, 1 << 22])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(8, 2, 16), (7, 1, 48), (4, 4, 96)])
@pytest.mark.parametrize("block_length", [None, 2])
def test_padded_equals_sequence_by_sequence(
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_length: int | None,
    max_pairs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(padded_attention, "MAX_PAIRS", max_pairs)
    cache = cache_of(heads, kv_heads, head_dim)
    random = np.random.default_rng(0)
    num_queries = [4, 0, 2, 6]
    key_slots = [
        np.arange(8, 21),
        np.arange(0),
        np.array([49, 3]),
        random.permutation(50)[:17],
    ]
    q = torch.randn(12, heads, head_dim, generator=torch.Generator().manual_seed(1))
    plain, padded = (
        RaggedRows.build(
            num_queries, key_slots, device=CPU, block_length=block_length, padded=padded
        )
        for padded in (False, True)
    )
    assert padded.num_query_key_pairs == plain.num_query_key_pairs
    assert padded.padded is not None
    num_runs = sum(len(bands) for bands in plain.bands)
    assert len(padded.padded) == {1: num_runs, 1 << 22: 1}.get(max_pairs, len(padded.padded))
    torch.testing.assert_close(
        paged_attention(cache, 1, q, padded),
        paged_attention(cache, 1, q, plain),
        rtol=1e-5,
        atol=1e-6,
    )


def test_no_rows_at_all() -> None:
    rows = RaggedRows.build([], [], device=CPU, padded=True)
    assert paged_attention(cache_of(4, 2, 8), 0, torch.empty(0, 4, 8), rows).shape == (0, 32)


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("policy", ["baseline", "focus"])
def test_the_engine_decodes_the_same_tokens(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, point = random_model(), make_point(policy, page_size=5)
    requests = make_requests([5, 16, 11], 22, seed=1)
    expected = serve(model, point, requests)
    calls = []

    def counted(*arguments: object) -> torch.Tensor:
        calls.append(arguments)
        return padded_attention.padded_attention(*arguments)  # type: ignore[arg-type]

    build = RaggedRows.build
    monkeypatch.setattr(attention, "padded_attention", counted)
    monkeypatch.setattr(
        RaggedRows, "build", lambda *args, **options: build(*args, **options, padded=True)
    )
    found = serve(model, point, requests)
    assert calls
    assert found.outputs == expected.outputs
    assert found.forwards == expected.forwards
