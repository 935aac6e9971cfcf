"""Router and expert layer against arithmetic done token by token, near-ties and ties included."""

import math

import pytest
import torch
from torch import Tensor

from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.engine.models import layers
from focus_bench.engine.models.experts import ExpertWeights, SwiGLUWeights, mix, route

SOFTMAX = ExpertSpec(num_experts=12, experts_per_token=3, expert_size=10)
GROUPED = ExpertSpec(
    num_experts=12,
    experts_per_token=4,
    expert_size=10,
    shared_size=14,
    router="sigmoid",
    has_router_bias=True,
    num_groups=4,
    num_kept_groups=2,
    routed_scale=2.5,
)
HIDDEN = 8


def normal(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def routed_by_hand(
    x: list[float], router: Tensor, bias: Tensor | None, spec: ExpertSpec
) -> tuple[list[int], list[float]]:
    """Experts and weights of one token, in float64, by sorting."""
    logits = [math.fsum(a * b for a, b in zip(x, row, strict=True)) for row in router.tolist()]
    if spec.router == "sigmoid":
        probability = [1 / (1 + math.exp(-value)) for value in logits]
    else:
        top = max(logits)
        total = math.fsum(math.exp(value - top) for value in logits)
        probability = [math.exp(value - top) / total for value in logits]
    shift = [0.0] * len(logits) if bias is None else bias.tolist()
    score = [p + b for p, b in zip(probability, shift, strict=True)]
    size = spec.num_experts // spec.num_groups
    quality = []
    for group in range(spec.num_groups):
        best = sorted(score[group * size : (group + 1) * size], reverse=True)
        quality.append(sum(best[:2]))
    groups = sorted(range(spec.num_groups), key=lambda g: (-quality[g], g))
    allowed = [e for e in range(len(score)) if e // size in groups[: spec.num_kept_groups]]
    chosen = sorted(allowed, key=lambda e: (-score[e], e))[: spec.experts_per_token]
    weights = [probability[e] for e in chosen]
    if spec.normalise:
        weights = [w / math.fsum(weights) for w in weights]
    return chosen, [w * spec.routed_scale for w in weights]


@pytest.mark.parametrize("spec", [SOFTMAX, GROUPED, SOFTMAX.replace(normalise=False)])
def test_router_equals_arithmetic_by_hand(spec: ExpertSpec) -> None:
    x, router = normal(40, HIDDEN, seed=0), normal(12, HIDDEN, seed=1)
    bias = normal(12, seed=2, scale=0.3) if spec.has_router_bias else None
    chosen, weights = route(x, router, bias, spec)
    assert chosen.shape == weights.shape == (40, spec.experts_per_token)
    for row, ids, shares in zip(x.tolist(), chosen.tolist(), weights.tolist(), strict=True):
        expected_ids, expected_shares = routed_by_hand(row, router, bias, spec)
        assert ids == expected_ids
        assert shares == pytest.approx(expected_shares, rel=1e-5)
    assert len({tuple(sorted(ids)) for ids in chosen.tolist()}) > 10


def test_bias_moves_the_choice_and_not_the_weights() -> None:
    x, router = normal(40, HIDDEN, seed=0), normal(12, HIDDEN, seed=1)
    bias = torch.zeros(12)
    bias[7] = 5.0
    chosen, weights = route(x, router, bias, GROUPED.replace(normalise=False, routed_scale=1.0))
    assert (chosen == 7).any(dim=-1).all()
    probabilities = (x @ router.t()).sigmoid()
    torch.testing.assert_close(weights, probabilities.gather(-1, chosen))
    unbiased, _ = route(x, router, torch.zeros(12), GROUPED)
    assert not (unbiased == 7).any(dim=-1).all()


def test_no_expert_of_a_dropped_group_is_chosen_even_where_all_scores_are_below_zero() -> None:
    x, router = normal(40, HIDDEN, seed=0), normal(12, HIDDEN, seed=1)
    chosen, _ = route(x, router, torch.full((12,), -9.0), GROUPED)
    assert all(len({expert // 3 for expert in ids}) == 2 for ids in chosen.tolist())
    same, _ = route(x, router, torch.zeros(12), GROUPED)
    assert torch.equal(chosen.sort().values, same.sort().values)


@pytest.mark.parametrize("spec", [SOFTMAX, GROUPED])
def test_equal_scores_go_to_the_lower_expert_and_group(spec: ExpertSpec) -> None:
    x = normal(5, HIDDEN, seed=3)
    bias = torch.zeros(12) if spec.has_router_bias else None
    chosen, _ = route(x, torch.zeros(12, HIDDEN), bias, spec)
    assert chosen.tolist() == [list(range(spec.experts_per_token))] * 5
    router = normal(12, HIDDEN, seed=1)
    router[5] = router[4] = 3 * router.abs().max() * torch.sign(x[0])
    first = route(x[:1], router, bias, spec)[0].tolist()[0]
    assert first[:2] == [4, 5]


@pytest.mark.parametrize("spec", [SOFTMAX, GROUPED])
def test_near_ties_in_bfloat16_are_decided_as_in_float32(spec: ExpertSpec) -> None:
    # Rows of a bfloat16 model that give expert e + 1 an edge over e that bfloat16 logits lose.
    x = normal(64, 64, seed=4).bfloat16()
    router = normal(6, 64, seed=5, scale=0.1).repeat_interleave(2, dim=0)
    router[1::2] += 1e-3 * x.float().mean(dim=0)
    bias = torch.zeros(12) if spec.has_router_bias else None
    chosen, weights = route(x, router, bias, spec)
    by_hand = [routed_by_hand(row, router, bias, spec) for row in x.double().tolist()]
    assert chosen.tolist() == [ids for ids, _ in by_hand]
    for ours, (_, expected) in zip(weights.tolist(), by_hand, strict=True):
        assert ours == pytest.approx(expected, rel=1e-5)
    rounded = x @ router.bfloat16().t()
    logits = x.float() @ router.t()
    flipped = (logits[:, 1::2] > logits[:, ::2]) & (rounded[:, 1::2] <= rounded[:, ::2])
    assert flipped.any(dim=-1).sum() > 10  # 16 bits would have chosen otherwise


def layer(spec: ExpertSpec, dtype: torch.dtype = torch.float32) -> ExpertWeights:
    shared = None
    if spec.shared_size:
        shared = SwiGLUWeights(
            gate_up=normal(2 * spec.shared_size, HIDDEN, seed=13).to(dtype),
            down=normal(HIDDEN, spec.shared_size, seed=14).to(dtype),
        )
    return ExpertWeights(
        spec=spec,
        router=normal(spec.num_experts, HIDDEN, seed=10),
        router_bias=normal(spec.num_experts, seed=15) if spec.has_router_bias else None,
        gate_up=normal(spec.num_experts, 2 * spec.expert_size, HIDDEN, seed=11).to(dtype),
        down=normal(spec.num_experts, HIDDEN, spec.expert_size, seed=12).to(dtype),
        shared=shared,
    )


def swiglu_by_hand(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (gate_up.double() @ x).chunk(2)
    return down.double() @ (gate / (1 + torch.exp(-gate)) * up)


@pytest.mark.parametrize("spec", [SOFTMAX, GROUPED])
@pytest.mark.parametrize("tokens", [0, 1, 2, 33])
def test_layer_equals_a_loop_over_tokens(spec: ExpertSpec, tokens: int) -> None:
    weights = layer(spec)
    x = normal(tokens, HIDDEN, seed=16)
    output = weights(x)
    assert output.shape == (tokens, HIDDEN)
    for row, got in zip(x.double(), output, strict=True):
        ids, shares = routed_by_hand(row.tolist(), weights.router, weights.router_bias, spec)
        expected = torch.zeros(HIDDEN, dtype=torch.float64)
        for expert, share in zip(ids, shares, strict=True):
            expected += share * swiglu_by_hand(row, weights.gate_up[expert], weights.down[expert])
        if weights.shared is not None:
            expected += swiglu_by_hand(row, weights.shared.gate_up, weights.shared.down)
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)


def test_experts_that_nobody_chose_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = layer(SOFTMAX)
    x = normal(2, HIDDEN, seed=17)
    chosen = torch.tensor([[3, 0, 9], [9, 3, 4]])
    shares = torch.full((2, 3), 1 / 3)
    before = mix(x, chosen, shares, weights.gate_up, weights.down)
    for expert in set(range(12)) - {0, 3, 4, 9}:
        weights.gate_up[expert] = weights.down[expert] = torch.nan
    calls: list[int] = []
    swiglu = layers.swiglu

    def counted(rows: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        calls.append(len(rows))
        return swiglu(rows, gate_up, down)

    monkeypatch.setattr(layers, "swiglu", counted)
    assert torch.equal(mix(x, chosen, shares, weights.gate_up, weights.down), before)
    assert calls == [1, 2, 1, 2]  # rows of experts 0, 3, 4 and 9


def test_a_row_that_is_not_finite_harms_no_other() -> None:
    weights = layer(GROUPED)
    x = normal(6, HIDDEN, seed=18)
    clean = weights(x)
    x[2] = torch.nan
    output = weights(x)
    assert output[2].isnan().all()
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(output[others], clean[others], rtol=1e-5, atol=1e-5)


def test_terms_are_added_in_float32() -> None:
    weights = layer(GROUPED.replace(shared_size=0), torch.bfloat16)
    x = normal(50, HIDDEN, seed=19).bfloat16()
    output = weights(x)
    assert output.dtype == torch.bfloat16
    chosen, shares = route(x, weights.router, weights.router_bias, weights.spec)
    for row in range(50):
        total = torch.zeros(HIDDEN)
        for expert, share in sorted(zip(chosen[row].tolist(), shares[row], strict=True)):
            one = SwiGLUWeights(gate_up=weights.gate_up[expert], down=weights.down[expert])
            total += one(x[row : row + 1])[0].float() * share
        # Products of several rows may round their last bit of 16 otherwise than those of one.
        torch.testing.assert_close(output[row].float(), total, rtol=2**-7, atol=2**-6)
