"""The choice of experts and the sort by expert in plain torch."""

import torch
from torch import Tensor

from focus_bench.engine.kernels.expert_routing.launcher import RouterConfig, Routing


def route(logits: Tensor, config: RouterConfig, *, bias: Tensor | None = None) -> Routing:
    """Experts and weights of `logits` [T, E]: see RouterConfig; ties go to the lower id."""
    num_rows, num_experts = logits.shape
    if config.scoring == "softmax":
        scores, choice = logits.softmax(dim=1), logits
    else:
        # Correctly rounded, so that near-ties fall alike on every device.
        scores = logits.double().sigmoid().float()
        choice = scores if bias is None else scores + bias
    if config.topk_group < config.n_group:
        grouped = choice.view(num_rows, config.n_group, num_experts // config.n_group)
        group_scores = grouped.topk(2, dim=2).values.sum(dim=2)
        kept = _highest(group_scores, config.topk_group)
        is_kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, kept, True)
        choice = grouped.masked_fill(~is_kept[:, :, None], -torch.inf).view(num_rows, num_experts)
    ids = _highest(choice, config.top_k)
    weights = scores.gather(1, ids)
    if config.norm_topk_prob:
        weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-20)
    return Routing(
        ids=ids.to(torch.int32), weights=(weights * config.routed_scaling_factor).contiguous()
    )


def _highest(values: Tensor, count: int) -> Tensor:
    return values.sort(dim=1, descending=True, stable=True).indices[:, :count]


def sort_by_expert(ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Pairs of `ids` [T, top_k] by expert, then pair, and the experts' offsets [E + 1].

    Pairs of no expert are left out.
    """
    flat = ids.flatten()
    pairs = torch.cat([(flat == expert).nonzero().flatten() for expert in range(num_experts)])
    counts = [int((flat == expert).sum()) for expert in range(num_experts)]
    offsets = torch.tensor([0, *counts], device=ids.device).cumsum(0)
    return pairs.to(torch.int32), offsets.to(torch.int32)
