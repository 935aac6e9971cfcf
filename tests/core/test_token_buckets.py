"""Token buckets: which tokens share a graph, and which graphs there are."""

import pytest

from focus_bench.core.token_buckets import (
    buckets_up_to,
    captured_buckets,
    prefill_buckets,
    token_bucket,
)


def test_buckets_are_powers_of_two_then_multiples() -> None:
    tokens = [1, 2, 3, 33, 256, 257, 310, 1024, 1025, 8000]
    assert [token_bucket(n) for n in tokens] == [1, 2, 4, 64, 256, 320, 320, 1024, 1280, 8192]


def test_every_count_has_the_smallest_bucket_that_holds_it() -> None:
    buckets = buckets_up_to(2000)
    assert buckets == sorted(set(buckets))
    for n in range(1, 2001):
        assert token_bucket(n) == min(bucket for bucket in buckets if bucket >= n)


@pytest.mark.parametrize(
    ("mode", "capacity", "experts", "last"),
    [
        ("on", 2048, False, 2048),
        ("auto", 2048, False, 1024),
        ("auto", 96, False, 128),
        ("on", 300, False, 320),
        ("auto", 2048, True, 2048),
        ("auto", 300, True, 320),
    ],
)
def test_graphs_end_at_the_limit_or_where_they_hold_the_capacity(
    mode: str, capacity: int, experts: bool, last: int
) -> None:
    captured = captured_buckets(mode, capacity, experts=experts)
    assert (captured[0], captured[-1]) == (1, last)
    assert captured_buckets("off", capacity, experts=experts) == ()


@pytest.mark.parametrize(("experts", "last"), [(False, 1024), (True, 4096)])
@pytest.mark.parametrize("mode", ["auto", "on"])
def test_graphs_of_prefill_begin_at_a_block(mode: str, experts: bool, last: int) -> None:
    captured = prefill_buckets(mode, 64, experts=experts)
    assert (captured[0], captured[-1]) == (64, last)
    assert prefill_buckets("off", 64, experts=experts) == ()
