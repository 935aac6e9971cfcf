"""The model's functions with the paged cache against transformers' Qwen3 without any cache."""

import numpy as np
import pytest
import torch
from paged_forward import forward, poisoned_cache
from qwen3_reference import build_qwen3, full_logits, spec_of

from focus_bench.engine.models import sdar

SCATTERED_PAGES = [7, 2, 9, 0, 5, 3]


def our_model(reference: torch.nn.Module) -> sdar.SdarModel:
    state = reference.state_dict()
    return sdar.build(spec_of(reference), lambda name: state[name])


def tokens(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 96, count)


@pytest.mark.parametrize("tied", [False, True])
def test_causal_decoding_with_block_length_1_gives_qwen3s_logits(tied: bool) -> None:
    reference = build_qwen3(tied=tied)
    model = our_model(reference)
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


@pytest.mark.parametrize("pages", [SCATTERED_PAGES, [2, 3, 4, 5, 6, 7]])
def test_block_causal_prefill_in_chunks_equals_full_recomputation(pages: list[int]) -> None:
    reference = build_qwen3()
    model = our_model(reference)
    ids = tokens(20)
    cache = poisoned_cache(model)
    chunks = [
        forward(model, cache, pages, ids[:8], 0, block_length=4),
        forward(model, cache, pages, ids[8:16], 8, block_length=4),
        forward(model, cache, pages, ids[16:], 16, block_length=None),
    ]
    torch.testing.assert_close(
        torch.cat(chunks), full_logits(reference, ids, 4), rtol=1e-5, atol=1e-5
    )


def test_the_block_causal_mask_of_the_reference_matters() -> None:
    reference = build_qwen3()
    ids = tokens(12)
    assert (full_logits(reference, ids, 4) - full_logits(reference, ids, 1)).abs().max() > 0.1


def test_bfloat16_rounds_as_qwen3_does() -> None:
    reference = build_qwen3(dtype=torch.bfloat16, std=0.1)
    model = our_model(reference)
    ids = tokens(8)
    with torch.inference_mode():
        embeddings = reference.model.embed_tokens(torch.from_numpy(ids)[None])
        rotary = reference.model.rotary_emb(embeddings, torch.arange(8)[None])
        layer = reference.model.layers[0]
        normed = layer.input_layernorm(embeddings)
        attention = layer.self_attn
        expected_v = attention.v_proj(normed).view(8, 2, 16)
        k = attention.k_norm(attention.k_proj(normed).view(1, 8, 2, 16)).transpose(1, 2)
        from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

        expected_k = apply_rotary_pos_emb(k, k, *rotary)[1][0].transpose(0, 1)
    hidden = model.embed(torch.from_numpy(ids))
    _, our_k, our_v = model.project(0, hidden, *model.rope(torch.arange(8)))
    assert torch.equal(our_v, expected_v)
    assert torch.equal(our_k, expected_k)
