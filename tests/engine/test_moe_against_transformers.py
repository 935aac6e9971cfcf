"""Models with experts, through the paged cache, against transformers' on shared random weights."""

import numpy as np
import pytest
import torch
from moe_reference import (
    build_glm4_moe,
    build_qwen3_moe,
    glm4_moe_spec,
    llada2_tensors,
    moe_model,
    qwen3_moe_spec,
    sdar_moe_tensors,
)
from paged_forward import forward, poisoned_cache
from qwen3_reference import full_logits

from focus_bench.engine.models.families import family_of

PAGES = [7, 2, 9, 0, 5, 3]
REFERENCES = {
    "qwen3-moe": build_qwen3_moe,
    "qwen3-moe, probabilities as they are": lambda: build_qwen3_moe(normalise=False),
    "llada2": build_glm4_moe,
    "llada2 without groups": lambda: build_glm4_moe(num_groups=1, kept=1),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_block_causal_logits_equal_full_recomputation(kind: str) -> None:
    reference = REFERENCES[kind]()
    model = moe_model(reference)
    ids = np.random.default_rng(1).integers(0, 96, 20)
    cache = poisoned_cache(model)
    chunks = [
        forward(model, cache, PAGES, ids[:8], 0, block_length=4),
        forward(model, cache, PAGES, ids[8:16], 8, block_length=4),
        forward(model, cache, PAGES, ids[16:], 16, block_length=None),
    ]
    expected = full_logits(reference, ids, 4)
    torch.testing.assert_close(torch.cat(chunks), expected, rtol=1e-5, atol=1e-5)
    assert expected.std() > 1.0  # the comparison means something
    assert (expected - full_logits(reference, ids, 1)).abs().max() > 0.1


def test_every_tensor_of_the_references_is_used() -> None:
    qwen3, glm4 = build_qwen3_moe(), build_glm4_moe()
    for spec, tensors in (
        (qwen3_moe_spec(qwen3), sdar_moe_tensors(qwen3)),
        (glm4_moe_spec(glm4), llada2_tensors(glm4)),
    ):
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        assert family_of(spec).tensor_shapes(spec) == shapes
        assert spec.num_params == sum(tensor.numel() for tensor in tensors.values())


def test_only_half_of_a_head_is_rotated() -> None:
    model = moe_model(build_glm4_moe())
    hidden = torch.randn(2, 48, generator=torch.Generator().manual_seed(0))
    here, there = (
        model.project(0, hidden, *model.rope(p))
        for p in (torch.tensor([0, 1]), torch.tensor([5, 30]))
    )
    for first, second in zip(here[:2], there[:2], strict=True):
        assert torch.equal(first[..., 8:], second[..., 8:])
        assert not torch.isclose(first[..., :8], second[..., :8]).all(dim=-1).any()
    assert torch.equal(here[2], there[2])
