"""The Fast-dLLM v2 family: logits against transformers' Qwen2, folders, and what they say of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from qwen2_reference import (
    MASK_TOKEN_ID,
    STOP_TOKEN_ID,
    build_qwen2,
    qwen2_model,
    write_fast_dllm_folder,
)
from qwen3_reference import full_logits
from test_layers_against_qwen3 import SCATTERED_PAGES, forward, poisoned_cache, tokens

from focus_bench.core.config import EngineConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import resolve_model
from focus_bench.core.model_spec import PRESETS
from focus_bench.engine.models.qwen2 import Qwen2Model
from focus_bench.engine.weights import dummy_model, load_model


@pytest.mark.parametrize("tied", [False, True])
def test_causal_decoding_with_block_length_1_gives_qwen2s_logits(tied: bool) -> None:
    reference = build_qwen2(tied=tied)
    model = qwen2_model(reference)
    ids = tokens(21)
    with torch.inference_mode():
        expected = reference(input_ids=torch.from_numpy(ids)[None]).logits[0]
    cache = poisoned_cache(model)
    prefill = forward(model, cache, SCATTERED_PAGES, ids[:9], 0, block_length=1)
    steps = [
        forward(model, cache, SCATTERED_PAGES, ids[p : p + 1], p, block_length=None)
        for p in range(9, 21)
    ]
    torch.testing.assert_close(torch.cat([prefill, *steps]), expected, rtol=1e-5, atol=1e-5)
    assert expected.std() > 1.0  # the comparison means something


def test_block_causal_prefill_in_chunks_equals_full_recomputation() -> None:
    reference = build_qwen2()
    model = qwen2_model(reference)
    ids = tokens(20)
    cache = poisoned_cache(model)
    chunks = [
        forward(model, cache, SCATTERED_PAGES, ids[:8], 0, block_length=4),
        forward(model, cache, SCATTERED_PAGES, ids[8:16], 8, block_length=4),
        forward(model, cache, SCATTERED_PAGES, ids[16:], 16, block_length=None),
    ]
    torch.testing.assert_close(
        torch.cat(chunks), full_logits(reference, ids, 4), rtol=1e-5, atol=1e-5
    )


def test_bfloat16_rounds_as_qwen2_does() -> None:
    reference = build_qwen2(dtype=torch.bfloat16, std=0.1)
    model = qwen2_model(reference)
    ids = tokens(8)
    with torch.inference_mode():
        embeddings = reference.model.embed_tokens(torch.from_numpy(ids)[None])
        rotary = reference.model.rotary_emb(embeddings, torch.arange(8)[None])
        layer = reference.model.layers[0]
        normed = layer.input_layernorm(embeddings)
        expected_v = layer.self_attn.v_proj(normed).view(8, 2, 6)
        k = layer.self_attn.k_proj(normed).view(1, 8, 2, 6).transpose(1, 2)
        from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

        expected_k = apply_rotary_pos_emb(k, k, *rotary)[1][0].transpose(0, 1)
    hidden = model.embed(torch.from_numpy(ids))
    _, our_k, our_v = model.project(0, hidden, *model.rope(torch.arange(8)))
    assert torch.equal(our_v, expected_v)
    assert torch.equal(our_k, expected_k)


@pytest.mark.parametrize("max_shard_size", ["1GB", "40KB"])
def test_a_folder_in_the_shape_of_the_published_one_loads(
    tmp_path: Path, max_shard_size: str
) -> None:
    reference = build_qwen2()
    write_fast_dllm_folder(tmp_path, reference, max_shard_size=max_shard_size)
    model = load_model(EngineConfig(model=str(tmp_path), device="cpu"))
    assert isinstance(model, Qwen2Model)
    spec = model.spec
    assert (spec.family, spec.shifted_logits, spec.block_length) == ("fast-dllm-v2", True, 32)
    assert (spec.mask_token_id, spec.stop_token_ids) == (MASK_TOKEN_ID, (STOP_TOKEN_ID,))
    ids = tokens(12)
    cache = poisoned_cache(model)
    ours = forward(model, cache, SCATTERED_PAGES, ids, 0, block_length=4)
    torch.testing.assert_close(ours, full_logits(reference, ids, 4), rtol=1e-5, atol=1e-5)


def test_a_missing_bias_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_fast_dllm_folder(tmp_path, build_qwen2())
    path = tmp_path / "model.safetensors"
    name = "model.layers.1.self_attn.k_proj.bias"
    save_file({n: t for n, t in load_file(path).items() if n != name}, path)
    with pytest.raises(UsageError, match=f"tensor: '{name}'"):
        load_model(EngineConfig(model=str(tmp_path), device="cpu"))


def test_causal_qwen2_is_no_block_diffusion_model(tmp_path: Path) -> None:
    build_qwen2().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"model_type: 'qwen2'.*Fast_dLLM_Qwen"):
        resolve_model(EngineConfig(model=str(tmp_path)))


def test_parameters_are_counted_as_transformers_counts_them() -> None:
    reference = build_qwen2()
    model = qwen2_model(reference)
    assert model.spec.num_params == sum(p.numel() for p in reference.parameters())
    spec = PRESETS["fast-dllm-v2-7b"]
    assert spec.num_params == 7_615_616_512  # Qwen2.5-7B's, from its published index


def test_dummy_weights_have_no_bias() -> None:
    spec = qwen2_model(build_qwen2()).spec
    model = dummy_model(spec, device=torch.device("cpu"))
    assert isinstance(model, Qwen2Model)
    assert not any(layer.qkv_bias.any() for layer in model.layers)
    assert all(np.isclose(layer.qkv.std(), 0.02, rtol=0.1) for layer in model.layers)
