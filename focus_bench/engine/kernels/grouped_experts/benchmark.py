"""Experts of three models beside a loop over experts and torch's grouped matrix product.

By themselves, and with the router before them as a layer has them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as functional
from torch import Tensor

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.expert_routing import reference
from focus_bench.engine.kernels.expert_routing.benchmark import torch_sort
from focus_bench.engine.kernels.expert_routing.launcher import RouterConfig, Routing, route
from focus_bench.engine.kernels.grouped_experts.launcher import ExpertWeights, grouped_experts
from focus_bench.engine.kernels.grouped_experts.tuning import Tuning
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


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments of one call: x [T, h], weights, routing, and memory for its output and within."""

    x: Tensor
    weights: ExpertWeights
    routing: Routing
    out: Tensor
    workspace: ExpertWorkspace

    @classmethod
    def random(cls, tokens: int, weights: ExpertWeights) -> Self:
        """Normal states of the weights' dtype, and uniformly random choices of experts."""
        down = weights.down
        x = torch.randn(tokens, weights.hidden_size, device=down.device, dtype=down.dtype)
        liking = torch.rand(tokens, weights.num_experts, device=down.device)
        ids = liking.argsort(dim=1)[:, :TOP_K].to(torch.int32).contiguous()
        return cls(
            x=x,
            weights=weights,
            routing=Routing(ids=ids, weights=torch.rand(ids.shape, device=down.device)),
            out=torch.empty_like(x),
            workspace=ExpertWorkspace.allocate(
                num_pairs=ids.numel(),
                num_experts=weights.num_experts,
                expert_width=weights.expert_width,
                hidden_size=weights.hidden_size,
                dtype=x.dtype,
                device=x.device,
            ),
        )

    @property
    def num_touched(self) -> int:
        """Experts that any token chose. Waits for the device."""
        return len(set(self.routing.ids.flatten().tolist()))

    def ours(self, tuning: Tuning | None = None) -> Tensor:
        """Launch the kernels."""
        return grouped_experts(
            self.x,
            self.weights,
            self.routing,
            out=self.out,
            workspace=self.workspace,
            tuning=tuning,
        )


def cases() -> list[Case]:
    """Each model at a block, a few blocks, and the batches of a loaded server."""
    made = []
    for name, experts, width, hidden, router in MODELS:
        weights = random_weights(experts, width, hidden)
        made += [case(f"{name} T {tokens}", tokens, weights) for tokens in NUM_TOKENS]
        made += [layer_case(f"{name} T {tokens}", tokens, weights, router) for tokens in NUM_TOKENS]
    return made


def random_weights(experts: int, width: int, hidden: int) -> ExpertWeights:
    """Weights in bfloat16; all together are far larger than the caches."""
    return ExpertWeights(
        gate_up=_normal(experts, 2 * width, hidden), down=_normal(experts, hidden, width)
    )


def case(name: str, tokens: int, weights: ExpertWeights) -> Case:
    """Uniformly random choices."""
    call = Call.random(tokens, weights)
    num_bytes, flops = floor(call.x, weights, call.routing)
    return Case(
        name=f"{name}, {call.num_touched} experts",
        ours=call.ours,
        others={
            "loop": loop(call.x, weights, call.routing),
            **torch_alternatives(call),
        },
        num_bytes=num_bytes,
        flops=flops,
    )


def torch_alternatives(call: Call) -> dict[str, Callable[[], object]]:
    """`torch`: all of it in torch's operations. `torch products`: its two grouped products alone.

    The latter is what torch's operations need at least, whatever sorts and sums around them.
    """
    pairs, ends = torch_sort(call.routing.ids, call.weights.num_experts)
    rows = call.x[pairs // TOP_K]
    activations = rows.new_empty(len(rows), call.weights.expert_width).normal_()

    def products() -> Tensor:
        functional.grouped_mm(rows, call.weights.gate_up.mT, offs=ends)
        return functional.grouped_mm(activations, call.weights.down.mT, offs=ends)

    return {
        "torch": functools.partial(torch_grouped, call.x, call.weights, call.routing),
        "torch products": products,
    }


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
