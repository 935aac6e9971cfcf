"""The experts' feed-forward in plain torch: a loop over experts."""

import torch
import torch.nn.functional as functional
from torch import Tensor

from focus_bench.engine.kernels.expert_routing.launcher import Routing
from focus_bench.engine.kernels.grouped_experts.launcher import ExpertWeights


def grouped_experts(
    x: Tensor,
    weights: ExpertWeights,
    routing: Routing,
    *,
    shared: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Each token's weighted experts plus `shared` plus `residual` [T, h], rounded once."""
    wide = x.float()
    total = torch.zeros_like(wide)
    for expert in range(weights.num_experts):
        tokens, choices = (routing.ids == expert).nonzero(as_tuple=True)
        gate, up = (wide[tokens] @ weights.gate_up[expert].float().T).chunk(2, dim=1)
        rows = (functional.silu(gate) * up) @ weights.down[expert].float().T
        total.index_add_(0, tokens, rows * routing.weights[tokens, choices, None])
    for addend in (shared, residual):
        if addend is not None:
            total += addend.float()
    return total.to(x.dtype)
