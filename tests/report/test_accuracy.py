"""Wilson's interval against published numbers and its own definition."""

import math

import pytest

from focus_bench.report.accuracy import Accuracy


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [  # Newcombe 1998, Table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals(right: int, count: int, low: float, high: float) -> None:
    interval = Accuracy(value=right / count, count=count).ci95
    assert interval == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_ends_are_where_the_score_test_rejects() -> None:
    # Wilson's ends are the shares p0 with |p - p0| = z * sqrt(p0 (1 - p0) / n).
    interval = Accuracy(value=0.37, count=73).ci95
    assert interval is not None
    for end in interval:
        assert abs(0.37 - end) == pytest.approx(
            1.959964 * math.sqrt(end * (1 - end) / 73), rel=1e-6
        )


def test_extremes_stay_within_bounds_and_mirror_each_other() -> None:
    none, every = Accuracy(value=0.0, count=7).ci95, Accuracy(value=1.0, count=7).ci95
    assert none is not None
    assert every is not None
    assert none[0] == 0.0
    assert every[1] == 1.0
    assert none[1] == pytest.approx(1 - every[0])


def test_nothing_has_no_interval() -> None:
    assert Accuracy(value=None, count=0).ci95 is None
