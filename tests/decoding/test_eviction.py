"""The FOCUS rule against its worked vectors, a slow statement of it, and its invariants."""

import math
from fractions import Fraction

import numpy as np
import pytest
from decoding_cases import bits, block_of, kept_by_rule, positions, random_blocks
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from focus_bench.core.config import DecodeConfig
from focus_bench.decoding.block_state import BlockState
from focus_bench.decoding.caching import Feed, plan_feed
from focus_bench.decoding.eviction import (
    base_budget,
    enforce_constraints,
    evict,
    evict_ideal,
    importance,
    keep_all,
    kept_as_given,
    outlier_count,
    rows_to_evict,
)
from focus_bench.decoding.policies import POLICY_CODES

WORKED_DELTA = np.array([[5, 0, 0, 0, 4, 0, 0, 0]], dtype=np.float32)


def kept_positions(
    block: BlockState, delta: np.ndarray, config: DecodeConfig, seed: int = 0
) -> list[int]:
    return positions(evict(block, plan_feed(block), delta, config, seed).kept[0])


def focus(length: int = 8, **options: object) -> DecodeConfig:
    return DecodeConfig(policy="focus", block_length=length, **options)


def fixed(length: int = 8, **options: object) -> DecodeConfig:
    return DecodeConfig(policy="focus-fixed", block_length=length, **options)


# -- worked vectors (algorithm sections 3 and 7) -------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "kept", "progress_after"), [(-1, [0, 1, 2, 3, 4], 4), (7, [0, 3, 4], 7)]
)
def test_worked_vector(progress: int, kept: list[int], progress_after: int) -> None:
    block = block_of("MMMMMMMM", progress=progress)
    feed = plan_feed(block)
    config = focus(alpha=1.5)
    assert base_budget(block, feed.decodable.sum(axis=1), config).tolist() == [2]
    assert outlier_count(WORKED_DELTA, feed.decodable).tolist() == [2]
    result = evict(block, feed, WORKED_DELTA, config, 0)
    assert positions(result.kept[0]) == kept
    assert result.progress.tolist() == [progress_after]


@pytest.mark.parametrize(
    ("alpha", "tokens", "steps", "budget"),
    [(2.1, 10, 3, 7), (1.8, 25, 3, 15), (1.2, 25, 2, 15), (1.5, 1, 1, 2), (1.0, 7, 3, 3)],
)
def test_budget_is_exact(alpha: float, tokens: int, steps: int, budget: int) -> None:
    block = block_of("M" * 32, steps=steps, decoded=tokens)
    config = DecodeConfig(policy="focus", alpha=alpha)
    assert base_budget(block, np.array([32]), config).tolist() == [budget]


def test_floating_point_would_miss_those_budgets() -> None:
    assert math.ceil(2.1 * (10 / 3)) == 8
    assert math.ceil(1.8 * (25 / 3)) == 16
    assert math.ceil(np.float32(1.2) * np.float32(12.5)) == 16


@given(
    hundredths=st.integers(100, 6400),
    steps=st.integers(0, 64),
    extra=st.integers(0, 200),
    masked=st.integers(1, 64),
)
def test_budget_equals_integer_arithmetic(
    hundredths: int, steps: int, extra: int, masked: int
) -> None:
    tokens = steps + extra if steps else 0
    block = block_of("M" * 64, steps=steps, decoded=tokens)
    config = DecodeConfig(policy="focus", block_length=64, alpha=hundredths / 100)
    ceiling, at = 0, hundredths * (tokens if steps else 1)
    while ceiling * 100 * max(steps, 1) < at:
        ceiling += 1
    assert base_budget(block, np.array([masked]), config).tolist() == [min(masked, ceiling)]


def test_budget_average_of_block_and_of_sequence() -> None:
    block = block_of("M" * 32, steps=2, decoded=3)
    block.request_steps[:], block.request_decoded[:] = 10, 50
    masked = np.array([32])
    per_block = DecodeConfig(policy="focus", alpha=2.0)
    per_sequence = DecodeConfig(policy="focus", alpha=2.0, budget_average="sequence")
    assert base_budget(block, masked, per_block).tolist() == [3]
    assert base_budget(block, masked, per_sequence).tolist() == [10]
    # A new block starts at 1.0 again, the sequence does not.
    block.block_steps[:] = block.block_decoded[:] = 0
    assert base_budget(block, masked, per_block).tolist() == [2]
    assert base_budget(block, masked, per_sequence).tolist() == [10]


# -- selection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("select", ["top", "bottom"])
def test_equal_deltas_go_to_the_lower_position(select: str) -> None:
    block = block_of("MMMMMMMM", policy="focus-fixed", progress=7)
    delta = np.full((1, 8), 0.25, dtype=np.float32)
    assert kept_positions(block, delta, fixed(retain=3, select=select)) == [0, 1, 2]


def test_ties_within_the_selection() -> None:
    block = block_of("DMDMDMDM", policy="focus-fixed", progress=7)
    delta = np.array([[9, 1, 9, 2, 9, 1, 9, 1]], dtype=np.float32)
    assert kept_positions(block, delta, fixed(retain=2)) == [0, 1, 2, 3, 4, 6]
    assert kept_positions(block, delta, fixed(retain=2, select="bottom")) == [0, 1, 2, 4, 5, 6]


def test_ties_under_the_dynamic_budget() -> None:
    block = block_of("DMDMDMDM", progress=7)
    delta = np.array([[0, 1, 0, 3, 0, 1, 0, 1]], dtype=np.float32)
    assert kept_positions(block, delta, focus(alpha=2.0)) == [0, 1, 2, 3, 4, 6]


def test_no_deviation_means_no_outlier() -> None:
    block = block_of("MMMMMMMM", progress=7)
    delta = np.full((1, 8), np.float32(0.1))
    assert outlier_count(delta, np.ones((1, 8), dtype=bool)).tolist() == [0]
    assert kept_positions(block, delta, focus(alpha=1.0)) == [0]


def test_a_delta_at_the_limit_counts() -> None:
    delta = np.array([[1, -1, 1, -1, 1, -1, 1, -1]], dtype=np.float32)  # mean 0, std 1
    assert outlier_count(delta, np.ones((1, 8), dtype=bool)).tolist() == [4]
    block = block_of("MMMMMMMM", progress=7)
    assert kept_positions(block, delta, focus(alpha=1.0)) == list(range(7))  # 0 2 4 6, AR 1 3 5


def test_outliers_count_masked_fed_positions_only() -> None:
    delta = np.array([[1000, 1, 0, 0, 0, np.nan, 0, 1000]], dtype=np.float32)
    masked_fed = np.array([[False, True, True, True, True, False, True, False]])
    assert outlier_count(delta, masked_fed).tolist() == [1]


def test_deviation_survives_a_large_mean() -> None:
    # In float32 the squares of 4096 would swamp a deviation of 1/1024.
    delta = np.full((1, 32), 4096.0, dtype=np.float32)
    delta[0, 5] += 1 / 1024
    assert outlier_count(delta, np.ones((1, 32), dtype=bool)).tolist() == [1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_delta_evicts_nothing_of_its_row_only(bad: float) -> None:
    block = block_of("MMMMMMMM", "MMMMMMMM", progress=7)
    delta = np.concatenate([WORKED_DELTA, WORKED_DELTA])
    delta[0, 6] = bad
    result = evict(block, plan_feed(block), delta, focus(), 0)
    assert positions(result.kept[0]) == list(range(8))
    assert positions(result.kept[1]) == [0, 3, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_delta_is_read_at_masked_fed_positions_only(bad: float) -> None:
    block = block_of("MMDMMMMM", uncached=("xx.xxxxx",), progress=7)
    delta = np.array([[0, 0, bad, 0, 0, 5, 0, 0]], dtype=np.float32)
    assert kept_positions(block, delta, focus(alpha=1.0)) == [4, 5]


@pytest.mark.parametrize("policy", ["focus", "focus-fixed"])
def test_budget_of_all_masks_evicts_nothing(policy: str) -> None:
    block = block_of("DDDDDMMD", policy=policy)
    config = DecodeConfig(policy=policy, block_length=8, alpha=1.5, retain=2)
    feed = plan_feed(block)
    assert rows_to_evict(block, feed, config).tolist() == [False]
    result = evict(block, feed, WORKED_DELTA, config, 0)
    assert positions(result.kept[0]) == list(range(8))
    assert result.progress.tolist() == [7]  # the block's first step without eviction: B - 1


def test_fixed_budget_ignores_outliers_and_alpha() -> None:
    block = block_of("MDMDMDMDMDMDMDMD", policy="focus-fixed", progress=15, steps=1, decoded=8)
    delta = np.zeros((1, 16), dtype=np.float32)
    delta[0, [2, 8]] = 5
    assert outlier_count(delta, block.masked).tolist() == [2]
    decoded = list(range(1, 16, 2))
    assert kept_positions(block, delta, fixed(16, retain=1)) == sorted([2, *decoded])
    assert kept_positions(block, delta, fixed(16, retain=3)) == sorted([0, 2, 8, *decoded])
    assert kept_positions(block, delta, fixed(16, retain=100)) == list(range(16))


def test_selection_options_do_not_touch_the_dynamic_policy() -> None:
    block = block_of("MMMMMMMM", progress=7)
    for select in ("top", "bottom", "random"):
        assert kept_positions(block, WORKED_DELTA, focus(select=select)) == [0, 3, 4]


def test_random_selection_is_a_function_of_seed_request_block_step_and_position() -> None:
    config = fixed(32, retain=4, select="random")
    delta = np.zeros((1, 32), dtype=np.float32)

    def drawn(seed: int = 1, key: int = 5, index: int = 2, step: int = 3) -> list[int]:
        block = block_of("M" * 32, policy="focus-fixed", progress=31, steps=step, decoded=step)
        block.request_key[:], block.block_index[:] = key, index
        return kept_positions(block, delta, config, seed)

    assert drawn() == drawn()
    others = [drawn(seed=2), drawn(key=6), drawn(index=3), drawn(step=4)]
    assert all(other != drawn() for other in others)


def test_random_selection_is_uniform() -> None:
    count = 4000
    block = block_of(*["MDMDMDMD"] * count, policy="focus-fixed", progress=7)
    feed = plan_feed(block)
    config = fixed(retain=1, select="random")
    kept = evict(block, feed, np.zeros((count, 8), np.float32), config, 3).kept & feed.decodable
    assert kept.sum(axis=1).tolist() == [1] * count
    per_position = kept.sum(axis=0)[::2]
    assert np.abs(per_position - count / 4).max() < 5 * math.sqrt(count * 3 / 16)


# -- constraints ---------------------------------------------------------------------------------


def constrained(row: str, selected: list[int], progress: int, fed: str | None = None) -> list[int]:
    block = block_of(row, progress=progress, uncached=None if fed is None else (fed,))
    mask = np.zeros((1, len(row)), dtype=bool)
    mask[0, selected] = True
    return positions(enforce_constraints(block, plan_feed(block), mask)[0])


def test_context_adds_one_left_neighbour_without_cascade() -> None:
    assert constrained("MMMMMMMM", [5], progress=7) == [4, 5]
    assert constrained("MMMMMMMM", [0, 3, 5], progress=7) == [0, 2, 3, 4, 5]


def test_context_needs_a_masked_right_neighbour() -> None:
    # Position 3 is decoded and fed, so kept; that does not bring back the mask at 2.
    assert constrained("MMMDMMMM", [6], progress=7) == [3, 5, 6]


def test_placeholders_left_of_the_rightmost_kept_come_back_unless_processed() -> None:
    assert constrained("MMMMMMMM", [6], progress=2) == [3, 4, 5, 6]
    assert constrained("MMMMMMMM", [1], progress=-1) == [0, 1]
    assert constrained("MMDMMMMM", [4], progress=0) == [1, 2, 3, 4]


def test_rightmost_is_masked_not_decoded() -> None:
    # The decoded 7 is kept as well; it must not bring back the masks at 4 to 6.
    assert constrained("MMMMMMMD", [2], progress=-1) == [0, 1, 2, 7]


def test_decoded_fed_positions_are_kept_and_frozen_ones_stay_out() -> None:
    assert constrained("DDMMMDMM", [3], progress=7, fed=".xxxxxxx") == [1, 2, 3, 5]


def test_first_step_of_a_block_cuts_a_suffix() -> None:
    block = block_of("MMMMMMMM")
    for at in range(8):
        delta = np.zeros((1, 8), dtype=np.float32)
        delta[0, at] = 1
        assert kept_positions(block, delta, focus(alpha=1.0)) == list(range(at + 1))


def test_commit_pass_keeps_what_it_feeds() -> None:
    block = block_of("DDDDDDDD", uncached=("....xxxx",), progress=3, steps=3, decoded=8)
    feed = plan_feed(block)
    assert feed.commit.tolist() == [True]
    for result in (
        evict(block, feed, WORKED_DELTA, focus(), 0),
        evict_ideal(block, feed, np.zeros((1, 8), dtype=bool)),
        keep_all(block, feed),
    ):
        assert positions(result.kept[0]) == [4, 5, 6, 7]
        assert result.progress.tolist() == [7]


def test_ideal_keeps_what_the_step_decodes_with_both_constraints() -> None:
    block = block_of("DMMMMMMM", "MMMMMMMM", "MMMMMMMM", policy="ideal", progress=2)
    block.policy_code[2] = POLICY_CODES["delayed-cache-neighbor"]
    decoded = np.zeros((3, 8), dtype=bool)
    decoded[0, [1, 6]] = True
    decoded[1, 0] = True
    decoded[2, 4] = True
    result = evict_ideal(block, plan_feed(block), decoded)
    assert positions(result.kept[0]) == [0, 1, 3, 4, 5, 6]
    assert positions(result.kept[1]) == [0]
    assert positions(result.kept[2]) == list(range(8))
    assert result.progress.tolist() == [6, 2, 7]


def test_traced_positions_must_be_among_the_fed() -> None:
    block = block_of("DDMMMMMM", uncached=("..xxxxxx",), progress=-1)
    kept = np.array([[True, True, True, True, False, False, False, False]])
    result = kept_as_given(block, plan_feed(block), kept)
    assert positions(result.kept[0]) == [2, 3]
    assert result.progress.tolist() == [3]


def test_keeping_nothing_is_a_fault() -> None:
    block = block_of("MMMM")
    with pytest.raises(AssertionError, match="kept nothing"):
        kept_as_given(block, plan_feed(block), np.zeros((1, 4), dtype=bool))


# -- against the slow statement ------------------------------------------------------------------


def at_the_limit(values: list[Fraction]) -> bool:
    """Whether some value equals mean + std exactly, where rounding decides."""
    mean = sum(values) / Fraction(len(values))
    variance = sum((v - mean) ** 2 for v in values) / Fraction(len(values))
    return any(v > mean and (v - mean) ** 2 == variance for v in values)


@settings(max_examples=250)
@given(
    case=random_blocks(),
    alpha=st.sampled_from((1.0, 1.2, 1.5, 1.8, 2.1, 3.0)),
    retain=st.integers(1, 9),
)
def test_eviction_equals_the_slow_statement(
    case: tuple[BlockState, Feed, np.ndarray], alpha: float, retain: int
) -> None:
    block, feed, delta = case
    config = DecodeConfig(
        policy="focus", block_length=block.block_length, alpha=alpha, retain=retain
    )
    result = evict(block, feed, delta, config, 0)
    for row in range(block.num_rows):
        masked = set(positions(block.masked[row]))
        fed = set(positions(feed.positions[row]))
        values = {p: Fraction(float(delta[row, p])) for p in masked}
        dynamic = block.policy_code[row] == POLICY_CODES["focus"]
        assume(not dynamic or not at_the_limit(list(values.values())))
        steps, tokens = int(block.block_steps[row]), int(block.block_decoded[row])
        average = Fraction(tokens, steps) if steps else Fraction(1)
        base = max(1, math.ceil(Fraction(str(alpha)) * average)) if dynamic else retain
        kept, progress = kept_by_rule(
            masked, fed, int(block.progress[row]), values, base=base, outliers=bool(dynamic)
        )
        assert set(positions(result.kept[row])) == kept
        assert result.progress[row] == progress
        needs = rows_to_evict(block, feed, config)[row]
        assert needs == (len(masked) > base)
        assert needs or kept == fed


@given(case=random_blocks(), select=st.sampled_from(("top", "random", "bottom")), data=st.data())
def test_kept_positions_have_their_bounds(
    case: tuple[BlockState, Feed, np.ndarray], select: str, data: st.DataObject
) -> None:
    block, feed, delta = case
    retain = data.draw(st.integers(1, 8))
    config = DecodeConfig(
        policy="focus", block_length=block.block_length, retain=retain, select=select
    )
    result = evict(block, feed, delta, config, 7)
    masked_kept = (result.kept & block.masked).sum(axis=1)
    assert not (result.kept & ~feed.positions).any()
    assert result.kept[feed.positions & block.decoded].all()
    assert (masked_kept >= 1).all()
    budget = np.where(
        block.policy_code == POLICY_CODES["focus-fixed"],
        np.minimum(retain, feed.decodable.sum(axis=1)),
        base_budget(block, feed.decodable.sum(axis=1), config),
    )
    assert (masked_kept >= budget).all()
    assert (result.progress >= block.progress).all()
    columns = np.arange(block.block_length)
    # No hole: below the new progress every masked position was processed before or is kept now.
    hole = feed.decodable & ~result.kept & (columns > block.progress[:, None])
    rightmost_masked = np.where(result.kept & block.masked, columns, -1).max(axis=1)
    assert not (hole & (columns < rightmost_masked[:, None])).any()


@given(case=random_blocks(), select=st.sampled_from(("top", "random", "bottom")))
def test_eviction_of_a_batch_equals_its_rows_alone(
    case: tuple[BlockState, Feed, np.ndarray], select: str
) -> None:
    block, feed, delta = case
    config = DecodeConfig(policy="focus", block_length=block.block_length, retain=2, select=select)
    together = evict(block, feed, delta, config, 11)
    for row in range(block.num_rows):
        alone = block.take(np.array([row]))
        single = evict(alone, plan_feed(alone), delta[row : row + 1], config, 11)
        assert np.array_equal(single.kept[0], together.kept[row])
        assert single.progress[0] == together.progress[row]


@given(data=st.data())
def test_outliers_of_real_numbers(data: st.DataObject) -> None:
    length = data.draw(st.sampled_from((2, 5, 32)))
    values = data.draw(
        st.lists(st.floats(-1e6, 1e6, width=32), min_size=length, max_size=length), label="delta"
    )
    mask = bits(data.draw, length)
    assume(mask.sum() > 0)
    exact = [Fraction(v) for v, m in zip(values, mask, strict=True) if m]
    mean = sum(exact) / len(exact)
    variance = sum((v - mean) ** 2 for v in exact) / len(exact)
    # Away from the limit by more than float64 rounding of numbers of this size.
    limit = float(mean) + math.sqrt(variance)
    assume(all(abs(float(v) - limit) > 1e-8 for v in exact))
    count = sum(v >= mean and (v - mean) ** 2 >= variance for v in exact) if variance else 0
    assert outlier_count(np.array([values], np.float32), mask[None, :]).tolist() == [count]


# -- importance ----------------------------------------------------------------------------------


def slow_importance(q: np.ndarray, k: np.ndarray) -> list[float]:
    """Paper Eq. 2 with Python floats: one query, one head, one key at a time."""
    num_masked, num_q_heads, head_dim = q.shape
    group = num_q_heads // k.shape[1]
    total = [0.0] * num_masked
    for head in range(num_q_heads):
        for i in range(num_masked):
            scores = []
            for j in range(num_masked):
                pairs = zip(q[i, head].tolist(), k[j, head // group].tolist(), strict=True)
                scores.append(sum(a * b for a, b in pairs) / math.sqrt(head_dim))
            pooled = [max(scores[max(0, j - 1) : j + 2]) for j in range(num_masked)]
            weights = [math.exp(score - max(pooled)) for score in pooled]
            for j in range(num_masked):
                total[j] += weights[j] / sum(weights)
    return total


@pytest.mark.parametrize(
    ("num_masked", "q_heads", "kv_heads", "head_dim"),
    [(1, 2, 1, 4), (2, 4, 2, 3), (5, 6, 1, 8), (7, 7, 7, 5), (32, 4, 2, 16)],
)
def test_importance_equals_a_slow_loop(
    num_masked: int, q_heads: int, kv_heads: int, head_dim: int
) -> None:
    random = np.random.default_rng(num_masked)
    q = (3 * random.standard_normal((num_masked, q_heads, head_dim))).astype(np.float32)
    k = random.standard_normal((num_masked, kv_heads, head_dim)).astype(np.float32)
    result = importance(q, k)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, slow_importance(q, k), rtol=2e-5, atol=0)
    assert result.sum() == pytest.approx(num_masked * q_heads, rel=1e-5)


def test_importance_does_not_overflow() -> None:
    q = np.full((3, 1, 4), 60.0, dtype=np.float32)
    k = np.stack([np.full((1, 4), v, dtype=np.float32) for v in (60, -60, -60)])
    # Pooling lends the first key's score to the second; the third gets none.
    assert importance(q, k).tolist() == [1.5, 1.5, 0.0]
