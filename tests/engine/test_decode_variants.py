"""What is compiled ahead of a run, by the launches (tests/gpu: that nothing is missing)."""

from typing import Any

import pytest
import torch
from engine_serving import random_model

from focus_bench.core.config import SamplingConfig
from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine import decode_variants, device_head
from focus_bench.engine.decode_variants import compile_decode_attention
from focus_bench.engine.device_head import DeviceHead
from focus_bench.engine.kernels.unmask_head.workspace import SUB_CHUNK
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.fused import fused_layers
from focus_bench.engine.weights import dummy_model

SPEC = ModelSpec(
    name="grouped",
    num_layers=2,
    hidden_size=32,
    num_q_heads=8,
    num_kv_heads=2,
    head_dim=128,
    intermediate_size=32,
    vocab_size=20 * SUB_CHUNK,
    mask_token_id=1,
    dtype="bfloat16",
)


def cache_of(spec: ModelSpec, dtype: torch.dtype) -> PagedKVCache:
    device = torch.device("cpu")
    return PagedKVCache(spec, num_pages=2, page_size=16, device=device, dtype=dtype)


@pytest.mark.parametrize(("block_length", "tiles"), [(8, {32}), (16, {64}), (32, {64, 128})])
def test_every_tile_with_split_keys_and_without(
    block_length: int, tiles: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[int, int]] = []

    def log(*_: Any, tuning: Any) -> None:
        launched.append((tuning.block_m, tuning.num_splits))

    monkeypatch.setattr(decode_variants, "paged_attention", log)
    model = dummy_model(SPEC, device=torch.device("cpu"))
    compile_decode_attention(model, cache_of(SPEC, model.dtype), block_length=block_length)
    assert sorted(launched) == sorted((tile, splits) for tile in tiles for splits in (1, 2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled; tests/gpu runs them")
def test_the_real_launchers_take_it() -> None:
    """Interpreted: shapes, types and layouts pass their checks."""
    model = random_model(num_layers=2)
    compile_decode_attention(model, cache_of(model.spec, model.dtype), block_length=4)


@pytest.mark.parametrize(("temperature", "top_k", "calls"), [(0.0, 0, 1), (0.9, 0, 1), (0.9, 5, 0)])
def test_heads_chunks_begin_at_multiples_of_16_and_elsewhere(
    temperature: float, top_k: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins: list[list[int]] = []

    def log(hidden: torch.Tensor, weight: torch.Tensor, *, config: Any, uniforms: Any) -> None:
        assert (uniforms is None) == (temperature == 0.0)
        width = config.chunk_subs(len(hidden), weight.element_size())
        begins.append(list(range(0, config.num_subs, width)))

    monkeypatch.setattr(device_head, "unmask_head", log)
    model = dummy_model(SPEC, device=torch.device("cpu"))
    stack = fused_layers(model, cache_of(SPEC, model.dtype))
    sampling = SamplingConfig(temperature=temperature, top_k=top_k)
    DeviceHead(model, stack, sampling, max_rows=4).compile()
    assert len(begins) == calls
    for of_call in begins:
        assert {begin % 16 == 0 for begin in of_call} == {True, False}
        assert 1 not in of_call
