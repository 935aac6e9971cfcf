"""Arrival times against the moments of the gamma distribution."""

import math

import numpy as np
import pytest
from scipy import stats

from focus_bench.workloads.arrivals import arrival_times


def test_infinite_rate_is_all_at_once() -> None:
    times = arrival_times(5, request_rate=math.inf, burstiness=1.0, seed=3)
    assert times.tolist() == [0.0] * 5


@pytest.mark.parametrize("count", [0, 1])
def test_few_requests(count: int) -> None:
    times = arrival_times(count, request_rate=2.0, burstiness=1.0, seed=3)
    assert times.tolist() == [0.0] * count


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_follow_the_gamma_distribution(burstiness: float) -> None:
    times = arrival_times(20001, request_rate=8.0, burstiness=burstiness, seed=11)
    gaps = np.diff(times)
    assert times[0] == 0.0
    assert (gaps >= 0).all()
    reference = stats.gamma(burstiness, scale=1 / (8.0 * burstiness))
    assert stats.kstest(gaps, reference.cdf).pvalue > 0.01


def test_one_seed_gives_one_sequence_whatever_the_count() -> None:
    long = arrival_times(50, request_rate=3.0, burstiness=0.5, seed=1)
    again = arrival_times(20, request_rate=3.0, burstiness=0.5, seed=1)
    other = arrival_times(20, request_rate=3.0, burstiness=0.5, seed=2)
    assert long[:20].tolist() == again.tolist()
    assert other.tolist() != again.tolist()
