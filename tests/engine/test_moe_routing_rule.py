"""The model's router and the routing kernel's reference are one rule, written twice."""

import pytest
import torch

from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.model_spec import PRESETS
from focus_bench.engine.models.experts import route

pytest.importorskip("triton")
from focus_bench.engine.kernels.expert_routing import reference
from focus_bench.engine.kernels.expert_routing.launcher import RouterConfig


def config_of(spec: ExpertSpec) -> RouterConfig:
    """What the kernel would be asked for."""
    return RouterConfig(
        scoring="sigmoid" if spec.router == "sigmoid" else "softmax",
        top_k=spec.experts_per_token,
        n_group=spec.num_groups,
        topk_group=spec.num_kept_groups,
        norm_topk_prob=spec.normalise,
        routed_scaling_factor=spec.routed_scale,
    )


@pytest.mark.parametrize("step", [0.0, 0.25, 8.0], ids=["reals", "ties", "saturated"])
@pytest.mark.parametrize("preset", ["llada2-mini", "sdar-30b-a3b"])
def test_router_equals_the_kernels_reference(preset: str, step: float) -> None:
    spec = PRESETS[preset].experts
    assert spec is not None
    random = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(200, spec.num_experts, generator=random)
    bias = None
    if spec.has_router_bias:
        bias = 0.1 * torch.randn(spec.num_experts, generator=random)
    if step:  # grid values: most rows hold ties, at 8 in the range where a sigmoid is 1
        logits = (logits / step).round() * step
        bias = None if bias is None else (bias * 8).round() / 8
    # An identity as router makes the logits themselves the hidden states.
    chosen, weights = route(logits, torch.eye(spec.num_experts), bias, spec)
    expected = reference.route(logits, config_of(spec), bias=bias)
    assert torch.equal(chosen, expected.ids.long())
    torch.testing.assert_close(weights, expected.weights, rtol=1e-6, atol=0.0)
    if step:
        ranked = logits.sort(dim=-1, descending=True).values
        k = spec.experts_per_token
        assert (ranked[:, k - 1] == ranked[:, k]).float().mean() > 0.3
