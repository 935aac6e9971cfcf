"""The mixture-of-experts feed-forward in plain PyTorch, one expert after the other: the reference.

Knows no family, no layer and no device; shapes come from an ExpertSpec.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.engine.models import layers

# Keeps the sum of the chosen probabilities off 0, as the published routers do.
_SUM_EPS = 1e-20


@dataclass(frozen=True, kw_only=True)
class SwiGLUWeights:
    """A dense feed-forward: `gate_up` [2 d_ff, h], gate rows and then up rows; `down` [h, d_ff]."""

    gate_up: Tensor
    down: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Of x [T, h]: [T, h]."""
        return layers.swiglu(x, self.gate_up, self.down)


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """One layer's experts, E of width d: `gate_up` [E, 2 d, h] and `down` [E, h, d].

    `router` [E, h] and `router_bias` [E] (None: no bias) are float32 whatever the rest is; `shared`
    is what every token goes through too.
    """

    spec: ExpertSpec
    router: Tensor
    router_bias: Tensor | None
    gate_up: Tensor
    down: Tensor
    shared: SwiGLUWeights | None

    def __call__(self, x: Tensor) -> Tensor:
        """Of x [T, h]: what the chosen experts give, weighted, plus the shared one: [T, h]."""
        chosen, weights = route(x, self.router, self.router_bias, self.spec)
        mixed = mix(x, chosen, weights, self.gate_up, self.down)
        return mixed if self.shared is None else mixed + self.shared(x)


def route(
    x: Tensor, router: Tensor, bias: Tensor | None, spec: ExpertSpec
) -> tuple[Tensor, Tensor]:
    """The experts [T, k] (int64, best first) of x [T, h] and their weights [T, k] (float32).

    In float32 throughout, since 16 bits would change the choice; equal scores go to the lower id.
    Softmax (Qwen3-MoE): the largest logits, which never fall together as their probabilities can.
    Sigmoid with groups (LLaDA2.0, as DeepSeek-V3): the bias moves the choice only; a group is as
    good as its two best experts together.
    """
    logits = functional.linear(x.float(), router.float())
    if spec.router == "softmax":
        probabilities, scores = logits.softmax(dim=-1), logits
    else:
        # Rounded correctly, by way of float64, so that near-ties fall alike on every device.
        probabilities = logits.double().sigmoid().float()
        scores = probabilities if bias is None else probabilities + bias
    if spec.num_kept_groups < spec.num_groups:
        scores = _best_groups_only(scores, spec)
    chosen = _best(scores, spec.experts_per_token)
    weights = probabilities.gather(-1, chosen)
    if spec.normalise:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + _SUM_EPS)
    return chosen, weights * spec.routed_scale


def _best_groups_only(scores: Tensor, spec: ExpertSpec) -> Tensor:
    """`scores` [T, E] with -inf outside of the best groups of consecutive experts."""
    grouped = scores.view(len(scores), spec.num_groups, spec.group_size)
    group_scores = grouped.topk(2, dim=-1).values.sum(dim=-1)
    dropped = torch.ones_like(group_scores, dtype=torch.bool)
    dropped.scatter_(-1, _best(group_scores, spec.num_kept_groups), False)
    return grouped.masked_fill(dropped[..., None], -torch.inf).flatten(-2)


def _best(scores: Tensor, count: int) -> Tensor:
    """Places [T, count] of the largest scores [T, N]; the stable sort gives ties to the lower."""
    order: Tensor = scores.sort(dim=-1, descending=True, stable=True).indices
    return order[..., :count]


def mix(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Sum over each token's experts `chosen` [T, k] of weight times SwiGLU of x [T, h]: [T, h].

    Tokens are sorted by expert, so that each expert that was chosen at all does one product. A
    token's terms are added in float32 in the order of the experts' ids, whatever its company.
    """
    num_experts, experts_per_token = len(gate_up), chosen.shape[-1]
    order = chosen.flatten().argsort(stable=True)
    tokens = order // experts_per_token
    token_weights = weights.flatten()[order]
    ends = chosen.flatten().bincount(minlength=num_experts).cumsum(0).tolist()
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    start = 0
    for expert, end in enumerate(ends):
        if end > start:
            rows = tokens[start:end]
            output = layers.swiglu(x[rows], gate_up[expert], down[expert])
            total.index_add_(0, rows, output.float() * token_weights[start:end, None])
        start = end
    return total.to(x.dtype)
