"""Router and sort of LLaDA2.0-mini and SDAR-30B-A3B beside torch's sorts."""

import torch

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.expert_routing import reference
from focus_bench.engine.kernels.expert_routing.launcher import (
    RouterConfig,
    Routing,
    SortedPairs,
    route,
    sort_by_expert,
)

NUM_TOKENS = (32, 256, 2048, 8192)
# Name, experts, rule.
ROUTERS = (
    (
        "LLaDA2.0-mini",
        256,
        RouterConfig(
            scoring="sigmoid", top_k=8, n_group=8, topk_group=4, routed_scaling_factor=2.5
        ),
    ),
    ("SDAR-30B-A3B", 128, RouterConfig(scoring="softmax", top_k=8)),
)


def cases() -> list[Case]:
    """Both routers and the sort of their choices, for a few tokens to a large batch."""
    made = [router_case(tokens, *router) for router in ROUTERS for tokens in NUM_TOKENS]
    return made + [sort_case(tokens, *router) for router in ROUTERS for tokens in NUM_TOKENS]


def router_case(tokens: int, name: str, num_experts: int, config: RouterConfig) -> Case:
    """Choice from random logits."""
    logits = torch.randn(tokens, num_experts, device="cuda")
    bias = torch.zeros(num_experts, device="cuda") if config.scoring == "sigmoid" else None
    out = Routing.allocate(tokens, config.top_k, logits.device)
    return Case(
        name=f"router {name} T {tokens}",
        ours=lambda: route(logits, config, bias=bias, out=out),
        others={"torch": lambda: reference.route(logits, config, bias=bias)},
        num_bytes=logits.nbytes + out.ids.nbytes + out.weights.nbytes,
    )


def sort_case(tokens: int, name: str, num_experts: int, config: RouterConfig) -> Case:
    """Sort of the choices from random logits; torch's without tiles."""
    ids = route(torch.randn(tokens, num_experts, device="cuda"), config).ids
    out = SortedPairs.allocate(ids.numel(), num_experts, 16, ids.device)
    return Case(
        name=f"sort {name} T {tokens}",
        ours=lambda: sort_by_expert(ids, num_experts, 16, out=out),
        others={"torch": lambda: torch_sort(ids, num_experts)},
        num_bytes=ids.nbytes + out.pairs.nbytes + out.offsets.nbytes + out.tiles.nbytes,
    )


def torch_sort(ids: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs by expert, then pair, and the end of each expert's, without waiting for the device."""
    experts, pairs = ids.flatten().sort(stable=True)
    bounds = torch.arange(1, num_experts + 1, device=ids.device, dtype=ids.dtype)
    return pairs, torch.searchsorted(experts, bounds, out_int32=True)
