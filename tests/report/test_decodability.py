"""Statistics of importance against figures worked out by hand and by other routes."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from focus_bench.core.decodability import DecodabilityRecords
from focus_bench.report.decodability import (
    auc,
    auc_within_rows,
    delta_statistics,
    gaussian_tail,
    layer_importance,
    position_auc_within_rows,
    row_limits,
    rows_that_pass,
    step_shares,
)


def records_of(
    rows: list[list[tuple[float, float, bool, bool]]], *, heads: int = 2, block_length: int = 8
) -> DecodabilityRecords:
    """Rows of (importance in layer 0, in layer 1, decoded, kept)."""
    flat = [entry for row in rows for entry in row]
    decoded = np.array([entry[2] for entry in flat])
    return DecodabilityRecords(
        num_heads=heads,
        block_length=block_length,
        threshold=0.9,
        alphas=(1.5,),
        row_starts=np.concatenate([[0], np.cumsum([len(row) for row in rows])]),
        importance=np.array([entry[:2] for entry in flat], dtype=np.float32),
        decoded=decoded,
        confidence=np.where(decoded, 0.95, 0.5).astype(np.float32),
        position=np.concatenate([np.arange(len(row)) for row in rows]).astype(np.int16),
        kept=np.array([[entry[3]] for entry in flat]),
    )


# Deltas: 3, 1, 0, 0 | 2, 2, -1 | 4 ; decoded: the first of each row and the last of the second.
ROWS = [
    [
        (1.0, 4.0, True, True),
        (1.0, 2.0, False, True),
        (2.0, 2.0, False, False),
        (1.0, 1.0, False, False),
    ],
    [(0.0, 2.0, True, True), (1.0, 3.0, False, True), (2.0, 1.0, True, False)],
    [(0.0, 4.0, True, True)],
]


def test_auc_by_hand() -> None:
    # Pairs: (3 > 1), (3 > 2), (2 > 1), (2 = 2) of four.
    assert auc([3, 1, 2, 2], np.array([True, False, True, False])) == (1 + 1 + 1 + 0.5) / 4
    assert auc([1.0, 2.0], np.array([True, True])) is None
    assert auc([], np.zeros(0, dtype=bool)) is None


def test_auc_equals_counting_all_pairs() -> None:
    random = np.random.default_rng(3)
    values = random.integers(0, 12, 60).astype(float)
    positive = random.random(60) < 0.3
    pairs = list(itertools.product(values[positive], values[~positive]))
    expected = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert auc(values, positive) == pytest.approx(expected, abs=1e-12)


def test_auc_within_rows_compares_a_row_with_itself_only() -> None:
    records = records_of(ROWS)
    # Row 1: 3 above 1, 0, 0. Row 2: 2 ties with 2, -1 is below it. Row 3 has no other.
    assert auc_within_rows(records.delta(1, 0), records) == (3 + 0.5 + 0) / 5
    # Leftmost first: all three pairs of row 1, of row 2 the first pair but not the last.
    assert position_auc_within_rows(records) == 4 / 5
    assert auc_within_rows([1.0], records_of([ROWS[2]])) is None


def test_auc_within_rows_equals_pairs_by_loops_on_ragged_rows() -> None:
    random = np.random.default_rng(5)
    sizes = [1, 7, 7, 3, 32, 1, 7]
    decoded = [random.random(size) < 0.4 for size in sizes]
    records = records_of([[(0.0, 0.0, bool(d), True) for d in row] for row in decoded])
    scores = random.integers(0, 5, sum(sizes)).astype(float)
    above = pairs = 0.0
    start = 0
    for row in decoded:
        own = scores[start : start + len(row)]
        start += len(row)
        for a, b in itertools.product(own[row], own[~row]):
            above += (a > b) + 0.5 * (a == b)
            pairs += 1
    assert auc_within_rows(scores, records) == pytest.approx(above / pairs, abs=1e-12)


def test_q_function() -> None:
    assert gaussian_tail(0.0) == 0.5
    for x in (-3.0, -0.5, 0.1, 1.0, 4.5):
        assert gaussian_tail(x) == pytest.approx(stats.norm.sf(x), rel=1e-12)
    assert gaussian_tail(1.5) + gaussian_tail(-1.5) == pytest.approx(1.0, abs=1e-15)


def test_row_limits_are_mean_plus_population_std() -> None:
    records = records_of(ROWS)
    delta = records.delta(1, 0).astype(float)
    expected = [np.mean(d) + np.std(d) for d in ([3, 1, 0, 0], [2, 2, -1], [4])]
    np.testing.assert_allclose(row_limits(delta, records), expected, rtol=1e-12)


def test_delta_statistics_by_hand() -> None:
    found = delta_statistics(records_of(ROWS))
    decodable, others = np.array([3.0, 2.0, -1.0, 4.0]), np.array([1.0, 0.0, 0.0, 2.0])
    assert (found.decodable.count, found.other.count) == (4, 4)
    assert found.decodable.mean == pytest.approx(decodable.mean())
    assert found.other.std == pytest.approx(others.std())
    assert found.decodable.skewness == pytest.approx(stats.skew(decodable))
    assert found.gamma == pytest.approx(decodable.mean() / others.std())
    assert found.bound == pytest.approx(stats.norm.sf(decodable.mean() / others.std() - 1))
    # sigma is 0.83, so only -1 is below it; the rows' limits are 2.22, 2.41 and 4 + 0.
    assert found.missed_at_sigma == 1 / 4
    assert found.missed_at_row_limit == 2 / 4
    assert found.missed_by_rule == (1 / 4,)
    assert found.kept_by_rule == (5 / 8,)
    assert found.rows_without_loss == (2 / 3,)


def test_layers_by_hand() -> None:
    first, second = layer_importance(records_of(ROWS))
    assert first.decodable_mean == pytest.approx((1 + 0 + 2 + 0) / 4 / 2)
    assert first.other_mean == pytest.approx((1 + 2 + 1 + 1) / 4 / 2)
    assert first.delta_auc is None
    assert second.decodable_mean == pytest.approx((4 + 2 + 1 + 4) / 4 / 2)
    assert second.delta_auc_within_rows == 3.5 / 5
    decodable, others = [3, 2, -1, 4], [1, 0, 0, 2]
    pairs = list(itertools.product(decodable, others))
    assert second.delta_auc == sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)


def test_step_shares_by_hand() -> None:
    records = records_of(ROWS)
    found = step_shares(records)
    assert found.num_rows == 3
    assert found.decoded_counts == (0, 2, 1, 0, 0, 0, 0, 0, 0)
    assert found.tokens_per_step == pytest.approx(4 / 3)
    assert found.share_of_block == pytest.approx(4 / 3 / 8)
    assert found.share_of_masked == pytest.approx((1 / 4 + 2 / 3 + 1) / 3)
    assert found.forced == 0.0
    records.confidence[:4] = 0.5
    assert step_shares(records).forced == pytest.approx(1 / 3)


def test_rows_that_pass_are_those_with_a_confident_position() -> None:
    records = records_of(ROWS)
    records.confidence[4:7] = 0.5  # row 2: nothing reaches the threshold
    passing = rows_that_pass(records)
    assert passing.row_starts.tolist() == [0, 4, 5]
    np.testing.assert_array_equal(passing.delta(1, 0), [3, 1, 0, 0, 4])
    assert delta_statistics(records).auc_within_passing_rows == 1.0


def test_nothing_decodable_or_nothing_else_leaves_figures_undefined() -> None:
    found = delta_statistics(records_of([ROWS[2]]))
    assert found.other.count == 0
    assert found.gamma is None
    assert found.bound is None
    assert found.auc is None
    assert found.missed_at_sigma is None
    assert not math.isnan(found.missed_at_row_limit or 0.0)
