"""Bytes of the experts that a step touches, against counts by drawing and by hand."""

import numpy as np
import pytest

from focus_bench.core.costs import (
    DecodeShape,
    OpCost,
    PrefillShape,
    StepShape,
    decode_ops,
    prefill_ops,
    step_ops,
    total_bytes,
    total_flops,
)
from focus_bench.core.errors import UsageError
from focus_bench.core.expert_load import ExpertLoad
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.model_spec import PRESETS, ModelSpec

MINI = PRESETS["llada2-mini"]
SDAR = PRESETS["sdar-30b-a3b"]
EXPERTS = ExpertSpec(num_experts=12, experts_per_token=3, expert_size=10)
FEW = ExpertLoad(shares=(1 / 3, 1 / 3, 1 / 3, *[0.0] * 9))  # all tokens choose the same three


def whole_blocks(rows: int, history: int = 0) -> DecodeShape:
    fed = np.full(rows, 32)
    keys = np.full(rows, history + 32)
    return DecodeShape(
        fed=fed,
        kept=fed,
        masked_fed=np.zeros(rows, dtype=np.int64),
        first_keys=keys,
        later_keys=keys,
        head_rows=32 * rows,
    )


def ops_named(ops: list[OpCost], prefix: str) -> list[OpCost]:
    return [op for op in ops if op.name.startswith(prefix)]


@pytest.mark.parametrize("tokens", [1, 2, 7, 40])
def test_expected_experts_equal_the_mean_of_draws(tokens: int) -> None:
    rng = np.random.default_rng(0)
    draws = [
        len(set(np.concatenate([rng.permutation(12)[:3] for _ in range(tokens)]).tolist()))
        for _ in range(4_000)
    ]
    expected = ExpertLoad().expected_touched(EXPERTS, tokens)
    assert expected == pytest.approx(np.mean(draws), abs=0.06)
    if tokens == 1:
        assert expected == pytest.approx(3.0)


def test_no_load_touches_more_than_the_uniform_one() -> None:
    skewed = ExpertLoad.from_counts([30, 20, 10, *[4] * 9])
    for tokens in (1, 4, 64):
        uniform = ExpertLoad().expected_touched(EXPERTS, tokens)
        assert FEW.expected_touched(EXPERTS, tokens) == pytest.approx(3.0)
        assert 3.0 - 1e-9 <= skewed.expected_touched(EXPERTS, tokens) <= uniform + 1e-9
    assert ExpertLoad().expected_touched(EXPERTS, 0) == 0.0
    assert ExpertLoad().expected_touched(EXPERTS, 10_000) == pytest.approx(12.0)


def test_skewed_load_equals_a_count_over_all_choices() -> None:
    # Two tokens that each choose one of four experts: all 16 pairs of choices with their chances.
    one = EXPERTS.replace(num_experts=4, experts_per_token=1)
    shares = (0.5, 0.25, 0.125, 0.125)
    expected = sum(p * q * len({i, j}) for i, p in enumerate(shares) for j, q in enumerate(shares))
    assert ExpertLoad(shares=shares).expected_touched(one, 2) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExpertLoad(shares=(0.5, 0.4)), "whose sum is 1"),
        (lambda: ExpertLoad(shares=(1.5, -0.5)), "shares >= 0"),
        (lambda: ExpertLoad(shares=()), "whose sum is 1"),
        (lambda: ExpertLoad.from_counts([0, 0]), "not all of them 0"),
        (lambda: ExpertLoad.from_counts([3, -1]), "tokens per expert"),
        (
            lambda: ExpertLoad(shares=(0.5, 0.5)).expected_touched(EXPERTS, 1),
            "2 shares.*12, one an expert",
        ),
        (
            lambda: ExpertLoad.from_counts([9, *[1] * 11]).expected_touched(EXPERTS, 1),
            r"a share of 0\.45.*at most 1 / 3",
        ),
    ],
)
def test_impossible_loads_are_named(make: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize("spec", [MINI, SDAR])
def test_weights_read_are_those_of_the_touched_experts(spec: ModelSpec) -> None:
    experts = spec.experts
    one_expert = 3 * spec.hidden_size * experts.expert_size * spec.dtype_bytes
    for load, touched in ((FEW_OF[spec.name], 8.0), (ExpertLoad(), None)):
        for rows in (1, 4):
            ops = decode_ops(spec, whole_blocks(rows), load)
            tokens, pairs = 32 * rows, 32 * rows * 8
            activations = tokens * spec.hidden_size + pairs * (
                2 * experts.expert_size + spec.hidden_size
            )
            products = ops_named(ops, "expert_gate_up") + ops_named(ops, "expert_down")
            read = sum(op.num_bytes for op in products) / spec.num_expert_layers
            weights = read - activations * spec.dtype_bytes
            if touched is None:
                expected = experts.num_experts * (1 - (1 - 8 / experts.num_experts) ** tokens)
                assert weights == pytest.approx(expected * one_expert, rel=1e-6)
            else:
                assert weights == pytest.approx(touched * one_expert, rel=1e-6)


FEW_OF = {
    spec.name: ExpertLoad(shares=(*[1 / 8] * 8, *[0.0] * (spec.experts.num_experts - 8)))
    for spec in (MINI, SDAR)
    if spec.experts is not None
}


@pytest.mark.parametrize("spec", [MINI, SDAR])
def test_many_tokens_read_every_weight_once(spec: ModelSpec) -> None:
    one, many = (total_bytes(tuple(decode_ops(spec, whole_blocks(n)))) for n in (1_000, 3_000))
    weights = one - (many - one) / 2
    embedding = spec.vocab_size * spec.hidden_size * spec.dtype_bytes
    assert weights == pytest.approx(spec.weight_bytes - embedding, rel=1e-3)


@pytest.mark.parametrize("spec", [MINI, SDAR])
def test_flops_are_two_per_active_parameter_and_token(spec: ModelSpec) -> None:
    ops = decode_ops(spec, whole_blocks(3))
    attention = sum(op.flops for op in ops_named(ops, "attention_"))
    vectors = spec.num_layers * 2 * (spec.hidden_size + spec.head_dim) + spec.hidden_size
    if spec.experts.has_router_bias:
        vectors += spec.num_expert_layers * spec.experts.num_experts
    embedding = spec.vocab_size * spec.hidden_size
    products = spec.num_active_params - vectors - embedding
    assert total_flops(tuple(ops)) - attention == 2 * products * 3 * 32


def test_the_dense_layer_is_in_the_prefix_and_the_experts_behind_it() -> None:
    ops = decode_ops(MINI, whole_blocks(2))
    assert {op.phase for op in ops_named(ops, "expert_")} == {"suffix"}
    assert [op.phase for op in ops if op.name == "gate_up"] == ["prefix"]
    assert {op.phase for op in ops_named(decode_ops(SDAR, whole_blocks(2)), "expert_")} == {
        "prefix",
        "suffix",
    }
    assert not ops_named(decode_ops(SDAR, whole_blocks(2)), "shared_")


def test_the_load_reaches_prefill_and_steps() -> None:
    prefill = PrefillShape(start=np.array([0]), length=np.array([32]), block_length=32)
    few = FEW_OF["llada2-mini"]
    assert total_bytes(tuple(prefill_ops(MINI, prefill, few))) < total_bytes(
        tuple(prefill_ops(MINI, prefill))
    )
    step = StepShape(prefill=prefill, forwards=(whole_blocks(1),), swapped_pages=0, page_size=64)
    skewed = step_ops(MINI, step, few)
    assert total_flops(skewed) == total_flops(step_ops(MINI, step))
    parts = prefill_ops(MINI, prefill, few) + decode_ops(MINI, whole_blocks(1), few)
    assert total_bytes(skewed) == total_bytes(tuple(parts))
