"""Experts of three models beside a loop over experts and torch's grouped matrix product.

By themselves, and with the router before them as a layer has them.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.expert_routing import reference
from focus_bench.engine.kernels.expert_routing.benchmark import torch_sort
from focus_bench.engine.kernels.expert_routing.launcher import RouterConfig, Routing, route
from focus_bench.engine.kernels.grouped_experts.launcher import ExpertWeights, grouped_experts
from focus_bench.engine.kernels.grouped_experts.workspace import ExpertWorkspace

NUM_TOKENS = (32, 256, 2048, 8192)
TOP_K = 8
LLADA2 = RouterConfig(
    scoring="sigmoid", top_k=TOP_K, n_group=8, topk_group=4, routed_scaling_factor=2.5
)
# Name, experts, expert width, hidden size, router.
MODELS = (
    ("LLaDA2.0-mini", 256, 512, 2048, LLADA2),
    ("SDAR-30B-A3B", 128, 768, 2048, RouterConfig(scoring="softmax", top_k=TOP_K)),
    ("LLaDA2.0-flash", 256, 1024, 4096, LLADA2),
)


def cases() -> list[Case]:
    """Each model at a block, a few blocks, and the batches of a loaded server."""
    made = []
    for name, experts, width, hidden, router in MODELS:
        weights = ExpertWeights(
            gate_up=_normal(experts, 2 * width, hidden), down=_normal(experts, hidden, width)
        )
        made += [case(f"{name} T {tokens}", tokens, weights) for tokens in NUM_TOKENS]
        made += [layer_case(f"{name} T {tokens}", tokens, weights, router) for tokens in NUM_TOKENS]
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
    num_bytes, flops = floor(x, weights, routing)
    return Case(
        name=f"{name}, {touched} experts",
        ours=lambda: grouped_experts(x, weights, routing, out=out, workspace=workspace),
        others={
            "loop": loop(x, weights, routing),
            "torch": functools.partial(torch_grouped, x, weights, routing),
        },
        num_bytes=num_bytes,
        flops=flops,
    )


def layer_case(name: str, tokens: int, weights: ExpertWeights, router: RouterConfig) -> Case:
    """From normed states to the layer's output, residual included, as launched in a layer.

    `torch`: the same in plain operations around the grouped product, none of which waits.
    """
    x, residual = _normal(tokens, weights.hidden_size), _normal(tokens, weights.hidden_size)
    out = torch.empty_like(x)
    matrix = 0.02 * torch.randn(weights.num_experts, weights.hidden_size, device="cuda")

    def logits() -> Tensor:
        return functional.linear(x.float(), matrix)

    def torchs() -> Tensor:
        return residual + torch_grouped(x, weights, reference.route(logits(), router))

    num_bytes, flops = floor(x, weights, route(logits(), router))
    return Case(
        name=f"{name}, layer",
        ours=lambda: grouped_experts(
            x, weights, route(logits(), router), residual=residual, out=out
        ),
        others={"torch": torchs},
        num_bytes=num_bytes + matrix.nbytes + residual.nbytes,
        flops=flops,
    )


def floor(x: Tensor, weights: ExpertWeights, routing: Routing) -> tuple[int, float]:
    """Bytes of the touched experts, input and output, and operations. Waits for the device."""
    touched = len(set(routing.ids.flatten().tolist()))
    weights_per_expert = 3 * weights.expert_width * weights.hidden_size
    num_bytes = touched * weights_per_expert * x.element_size() + 2 * x.nbytes
    return num_bytes, 2.0 * routing.num_pairs * weights_per_expert


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
