"""Student's t written out, against SciPy, published tables and hand-worked cases."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

from focus_bench.report.spread import Spread
from focus_bench.report.statistics import (
    holm,
    ratio_half_width,
    regularized_beta,
    t_quantile,
    t_tail,
    welch,
)

DEGREES = (0.7, 1, 1.5, 2, 3, 4.37, 9, 30, 99.5, 1000, 2.5e5)


@pytest.mark.parametrize("df", DEGREES)
def test_tails_equal_scipys(df):
    for t in (0.0, 1e-9, 0.01, 0.5, 1.0, 1.96, 3.3, 12.7, 80.0, 1e6):
        reference = scipy.stats.t.sf(t, df)
        assert t_tail(t, df) == pytest.approx(reference, rel=1e-9, abs=1e-300)
        assert t_tail(-t, df) == pytest.approx(1 - reference, rel=1e-9)


@pytest.mark.parametrize("df", DEGREES)
def test_quantiles_equal_scipys(df):
    for probability in (0.001, 0.3, 0.5, 0.75, 0.9, 0.975, 0.995, 0.9999):
        reference = scipy.stats.t.ppf(probability, df)
        assert t_quantile(probability, df) == pytest.approx(reference, rel=1e-9, abs=1e-9)


def test_quantiles_of_one_and_two_degrees_in_closed_form():
    for p in (0.6, 0.975, 0.9999):
        assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-10)
        closed = (2 * p - 1) / math.sqrt(2 * p * (1 - p))
        assert t_quantile(p, 2) == pytest.approx(closed, rel=1e-10)
    for p in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="quantile"):
            t_quantile(p, 3)


@pytest.mark.parametrize(
    ("df", "expected"), [(1, "12.706"), (2, "4.303"), (4, "2.776"), (10, "2.228"), (30, "2.042")]
)
def test_quantiles_as_printed_in_tables(df, expected):
    assert f"{t_quantile(0.975, df):.3f}" == expected


def test_incomplete_beta_equals_scipys():
    for a in (0.5, 1.0, 3.25, 60.0):
        for b in (0.5, 2.0, 17.0):
            for x in (0.0, 1e-12, 0.1, 0.5, 0.93, 1.0):
                reference = scipy.special.betainc(a, b, x)
                assert regularized_beta(a, b, x) == pytest.approx(reference, rel=1e-11, abs=1e-300)


def test_welch_equals_scipys():
    rng = np.random.default_rng(11)
    for first_count, second_count, shift, scale in (
        (2, 2, 0.0, 1.0),
        (3, 5, 1.0, 0.1),
        (8, 2, -2.0, 3.0),
        (20, 31, 0.2, 1e-6),
    ):
        first = rng.normal(10 + shift, 1.0, first_count) * scale
        second = rng.normal(10, 0.3, second_count) * scale
        reference = scipy.stats.ttest_ind(first, second, equal_var=False)
        low, high = reference.confidence_interval(0.95)
        test = welch(first.tolist(), second.tolist())
        assert test is not None
        assert test.p == pytest.approx(reference.pvalue, rel=1e-9)
        assert test.difference - test.half_width == pytest.approx(low, rel=1e-9)
        assert test.difference + test.half_width == pytest.approx(high, rel=1e-9)


def test_welch_worked_by_hand():
    # Means 3 and 6, variances 1 and 4, three values each: t = -3 / sqrt(5 / 3), df = 50 / 17.
    test = welch((2.0, 3.0, 4.0), (4.0, 6.0, 8.0))
    assert test is not None
    assert test.difference == -3.0
    t = 3 / math.sqrt(5 / 3)
    assert test.p == pytest.approx(2 * scipy.stats.t.sf(t, 50 / 17), rel=1e-12)


def test_welch_needs_two_values_each_and_knows_values_without_spread():
    assert welch((1.0,), (1.0, 2.0)) is None
    assert welch((1.0, 2.0), ()) is None
    same, other = welch((2.0, 2.0), (2.0, 2.0)), welch((2.0, 2.0), (3.0, 3.0))
    assert same is not None
    assert other is not None
    assert (same.p, other.p, other.difference, other.half_width) == (1.0, 0.0, -1.0, 0.0)
    assert welch((1e-200, 2e-200), (3e-200, 5e-200)) is not None  # squares underflow


def test_ratio_interval_is_welchs_of_the_logarithms():
    first, second = (10.0, 11.0, 12.5), (5.0, 5.5)
    reference = scipy.stats.ttest_ind(np.log(first), np.log(second), equal_var=False)
    low, high = reference.confidence_interval(0.95)
    half = ratio_half_width(first, second)
    assert half == pytest.approx(math.exp((high - low) / 2) - 1, rel=1e-9)
    assert ratio_half_width((1.0,), (1.0, 2.0)) is None
    assert ratio_half_width((1.0, 0.0), (1.0, 2.0)) is None


def test_holms_adjustment_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.5 times 4, 3, 2, 1; 0.06 carries over from the second.
    assert holm((0.03, 0.01, 0.5, 0.02)) == pytest.approx((0.06, 0.04, 0.5, 0.06))
    assert holm((0.7, 0.6)) == (1.0, 1.0)
    assert holm(()) == ()


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(5)
    hits = 0
    for values in rng.normal(3.0, 2.0, size=(4000, 4)):
        spread = Spread.of(values.tolist())
        assert spread.ci95_low is not None
        assert spread.ci95_high is not None
        hits += spread.ci95_low <= 3.0 <= spread.ci95_high
    assert 0.95 * 4000 - hits == pytest.approx(0.0, abs=4 * math.sqrt(0.95 * 0.05 * 4000))


def test_false_alarms_of_welch_are_as_rare_as_their_level():
    rng = np.random.default_rng(6)
    pairs = rng.normal(100.0, 1.0, size=(2000, 2, 5))
    alarms = 0
    for a, b in pairs.tolist():
        test = welch(a, b)
        assert test is not None
        alarms += test.p < 0.05
    assert alarms <= 0.05 * 2000 + 4 * math.sqrt(0.05 * 0.95 * 2000)
