"""Models with experts in the GPU's decode step, its kernels interpreted: the host's decisions.

tests/gpu repeats this on a GPU with larger batches and under CUDA graphs.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_serving import make_point, make_requests, serve
from kernel_serving import with_kernels
from moe_reference import build_glm4_moe, build_qwen3_moe, moe_model
from torch import Tensor

from focus_bench.engine.forward import first_layers, later_layers, prefill_layers
from focus_bench.engine.kernels.expert_routing.launcher import Routing
from focus_bench.engine.kernels.grouped_experts import launcher as grouped
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.layer_stack import PlainLayers
from focus_bench.engine.models import experts as expert_layer
from focus_bench.engine.models.experts import ExpertWeights
from focus_bench.engine.models.fused import fused_layers
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.models.moe_fused import FusedExpertLayers

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here; tests/gpu runs them"
)

MODELS: dict[str, Callable[[int], MoeModel]] = {
    "llada2": lambda num_layers: moe_model(build_glm4_moe(num_layers=num_layers, seed=6)),
    "sdar-moe": lambda num_layers: moe_model(build_qwen3_moe(num_layers=num_layers, seed=7)),
}
both_models = pytest.mark.parametrize("name", MODELS)


@pytest.mark.usefixtures("decisive_margins", "decisive_routes")
@pytest.mark.parametrize(
    ("policy", "num_layers"), [("baseline", 2), ("delayed-cache-neighbor", 2), ("focus", 3)]
)
@both_models
def test_kernels_decode_as_the_host_does(policy: str, num_layers: int, name: str) -> None:
    point = make_point(policy, block_length=4, batch_size=2, retain=1)
    requests = make_requests([5, 4], [5, 3])
    model = MODELS[name](num_layers)
    by_kernels = serve(model, point, requests, make_executor=with_kernels)
    on_host = serve(model, point, requests)
    assert by_kernels.forwards == on_host.forwards
    assert by_kernels.outputs == on_host.outputs
    evicts = [f for fs in on_host.forwards.values() for f in fs if len(f.kept) < len(f.fed)]
    assert bool(evicts) == (policy == "focus")


class Stacks:
    """One model's layers over kernels and in plain PyTorch, each over a cache of its own."""

    def __init__(self, model: MoeModel, num_rows: int) -> None:
        def cache() -> PagedKVCache:
            return PagedKVCache(
                model.spec, num_pages=2, page_size=8, device=model.device, dtype=model.dtype
            )

        self.model = model
        self.plain = PlainLayers(model, cache())
        fused = fused_layers(model, cache())
        assert isinstance(fused, FusedExpertLayers)
        self.fused = fused
        random = torch.Generator().manual_seed(1)
        self.hidden = torch.randn((num_rows, model.spec.hidden_size), generator=random)
        self.attention = torch.randn((num_rows, model.spec.q_size), generator=random)
        self.positions = torch.arange(num_rows, dtype=torch.int32) * 3 + 1
        self.slots = torch.randperm(16, generator=random)[:num_rows].int()


def assert_close(ours: Tensor, reference: Tensor) -> None:
    """Within 1e-5 of the largest value."""
    assert (ours - reference).abs().max() <= 1e-5 * reference.abs().max()


@pytest.mark.usefixtures("decisive_routes")
@both_models
def test_every_layers_states_equal_the_references(name: str) -> None:
    stacks = Stacks(MODELS[name](3), 7)
    hidden = stacks.hidden
    cos, sin = stacks.plain.rope(stacks.positions)
    assert cos.shape[1] == (8 if name == "llada2" else 16)  # LLaDA2's rotary is partial
    for layer in range(3):
        expected_q = stacks.plain.project(layer, hidden, cos, sin, stacks.slots.long())
        assert_close(
            stacks.fused.project(layer, hidden, *stacks.fused.rope(stacks.positions), stacks.slots),
            expected_q,
        )
        expected = stacks.plain.finish(layer, hidden, stacks.attention)
        ours = stacks.fused.finish(layer, hidden.clone(), stacks.attention, stacks.slots)
        assert_close(ours, expected)
        hidden = expected
    for ours, reference in (
        (stacks.fused.cache.keys, stacks.plain.cache.keys),
        (stacks.fused.cache.values, stacks.plain.cache.values),
    ):
        assert_close(ours, reference)
    assert_close(stacks.fused.normed(hidden), stacks.plain.normed(hidden))


class GivenAttention:
    """The same attention in every layer; an AttentionRows."""

    def __init__(self, attention: Tensor) -> None:
        self._attention = attention

    def attend(self, cache: PagedKVCache, layer: int, q: Tensor) -> Tensor:
        return self._attention


@both_models
def test_rows_that_pad_a_bucket_touch_no_expert(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = Stacks(MODELS[name](3), 6)
    ids: list[Tensor] = []
    run = grouped.grouped_experts

    def watched(
        x: Tensor, weights: grouped.ExpertWeights, routing: Routing, **options: Any
    ) -> Tensor:
        ids.append(routing.ids)
        return run(x, weights, routing, **options)

    def forward(num_rows: int) -> Tensor:
        """All layers of the first rows, as in a step, and in a prefill."""
        rows = GivenAttention(stacks.attention[:num_rows])
        inputs = (stacks.positions, stacks.positions, stacks.slots)  # as good token ids as any
        token_ids, positions, slots = (tensor[:num_rows] for tensor in inputs)
        prefill_layers(stacks.fused, token_ids, positions, slots, rows)
        first = first_layers(stacks.fused, token_ids, positions, slots, rows)
        return later_layers(stacks.fused, first, rows)

    monkeypatch.setattr(grouped, "grouped_experts", watched)
    alone = forward(4)
    ids.clear()
    stacks.attention[4:], stacks.slots[4:] = torch.nan, -1
    assert torch.equal(forward(6)[:4], alone)
    # A prefill leaves out the last layer's output.
    assert len(ids) == 2 + 3 - 2 * stacks.model.spec.num_dense_layers
    for chosen in ids:
        assert (chosen[:4] >= 0).all()
        assert (chosen[4:] == -1).all()


@both_models
def test_near_ties_of_the_router_fall_as_in_the_reference(name: str) -> None:
    stacks = Stacks(MODELS[name](2), 40)
    weights = stacks.model.layers[1].feed_forward
    assert isinstance(weights, ExpertWeights)
    # Equal columns make equal logits: experts 1, 2 and 5, and 0 and 4, are exact ties.
    router = weights.router.clone()
    router[[2, 5]], router[4] = router[1].clone(), router[0].clone()
    bias = weights.router_bias
    if bias is not None:
        bias = bias.clone()
        bias[[2, 5]], bias[4] = bias[1].clone(), bias[0].clone()
    tied = ExpertWeights(
        spec=weights.spec,
        router=router,
        router_bias=bias,
        gate_up=weights.gate_up,
        down=weights.down,
        shared=None,
    )
    chosen, expected = expert_layer.route(stacks.hidden, router, bias, weights.spec)
    ours = stacks.fused.routing(stacks.hidden, tied, None)
    assert torch.equal(ours.ids.long(), chosen)
    torch.testing.assert_close(ours.weights, expected, rtol=1e-5, atol=1e-7)
    among_ties = [{1, 2, 5} & set(row) for row in chosen.tolist()]
    assert any(0 < len(tie) < 3 for tie in among_ties)
