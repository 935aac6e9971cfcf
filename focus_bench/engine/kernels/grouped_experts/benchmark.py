"""Experts of three models beside a loop over experts and torch's grouped matrix product."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.expert_routing.benchmark import torch_sort
from focus_bench.engine.kernels.expert_routing.launcher import Routing
from focus_bench.engine.kernels.grouped_experts.launcher import ExpertWeights, grouped_experts
from focus_bench.engine.kernels.grouped_experts.workspace import ExpertWorkspace

NUM_TOKENS = (32, 256, 2048, 8192)
TOP_K = 8
# Name, experts, expert width, hidden size.
MODELS = (
    ("LLaDA2.0-mini", 256, 512, 2048),
    ("SDAR-30B-A3B", 128, 768, 2048),
    ("LLaDA2.0-flash", 256, 1024, 4096),
)


def cases() -> list[Case]:
    """Each model at a block, a few blocks, and the batches of a loaded server."""
    made = []
    for name, experts, width, hidden in MODELS:
        weights = ExpertWeights(
            gate_up=_normal(experts, 2 * width, hidden), down=_normal(experts, hidden, width)
        )
        made += [case(f"{name} T {tokens}", tokens, weights) for tokens in NUM_TOKENS]
    return made


def case(name: str, tokens: int, weights: ExpertWeights) -> Case:
    """Uniformly random choices; all weights together are far larger than the caches."""
    x = _normal(tokens, weights.hidden_size)
    liking = torch.rand(tokens, weights.num_experts, device="cuda")
    ids = liking.argsort(dim=1)[:, :TOP_K].to(torch.int32).contiguous()
    routing = Routing(ids=ids, weights=torch.rand(tokens, TOP_K, device="cuda"))
    out = torch.empty_like(x)
    workspace = ExpertWorkspace.allocate(
        num_pairs=routing.num_pairs,
        num_experts=weights.num_experts,
        expert_width=weights.expert_width,
        hidden_size=weights.hidden_size,
        dtype=x.dtype,
        device=x.device,
    )
    touched = len(set(ids.flatten().tolist()))
    weights_per_expert = 3 * weights.expert_width * weights.hidden_size
    return Case(
        name=f"{name}, {touched} experts",
        ours=lambda: grouped_experts(x, weights, routing, out=out, workspace=workspace),
        others={
            "loop": loop(x, weights, routing),
            "torch": functools.partial(torch_grouped, x, weights, routing),
        },
        num_bytes=touched * weights_per_expert * x.element_size() + x.nbytes + out.nbytes,
        flops=2.0 * routing.num_pairs * weights_per_expert,
    )


def loop(x: Tensor, weights: ExpertWeights, routing: Routing) -> Callable[[], Tensor]:
    """A loop over the touched experts, whose pairs are known before (in a model: a host sync)."""
    experts = sorted(set(routing.ids.flatten().tolist()))
    pairs = [(routing.ids.flatten() == expert).nonzero().flatten() for expert in experts]
    pair_weights = routing.weights.view(-1, 1)

    def call() -> Tensor:
        partials = x.new_empty(routing.num_pairs, x.shape[1])
        for expert, mine in zip(experts, pairs, strict=True):
            gate, up = functional.linear(x[mine // TOP_K], weights.gate_up[expert]).chunk(2, dim=1)
            rows = functional.linear(functional.silu(gate) * up, weights.down[expert])
            partials[mine] = (rows * pair_weights[mine]).to(x.dtype)
        return partials.view(*routing.ids.shape, -1).sum(dim=1)

    return call


def torch_grouped(x: Tensor, weights: ExpertWeights, routing: Routing) -> Tensor:
    """Sort, two grouped products, SiLU-mul, and the sum over the choices, all torch's."""
    pairs, ends = torch_sort(routing.ids, weights.num_experts)
    gate_up = functional.grouped_mm(x[pairs // TOP_K], weights.gate_up.mT, offs=ends)
    gate, up = gate_up.chunk(2, dim=1)
    rows = functional.grouped_mm(functional.silu(gate) * up, weights.down.mT, offs=ends)
    partials = torch.empty_like(rows)
    partials[pairs] = (rows * routing.weights.view(-1, 1)[pairs]).to(x.dtype)
    return partials.view(*routing.ids.shape, -1).sum(dim=1)


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)
