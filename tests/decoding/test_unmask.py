"""The three unmasking strategies: thresholds, counts, ties, and independence of the batch."""

import numpy as np
import pytest
from decoding_cases import positions
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.core.config import UNMASKING_STRATEGIES, DecodeConfig
from focus_bench.decoding.ranking import largest, leftmost
from focus_bench.decoding.unmask import low_confidence_dynamic, unmask

ALL = np.ones((1, 4), dtype=bool)


def conf(*values: float) -> np.ndarray:
    return np.array([values], dtype=np.float32)


def test_the_threshold_is_inclusive() -> None:
    # 0.9 as float32 is below 0.9 as float64: both sides must be float32.
    above = np.nextafter(np.float32(0.9), np.float32(1))
    below = np.nextafter(np.float32(0.9), np.float32(0))
    chosen = low_confidence_dynamic(conf(0.9, below, above, 0.1), ALL, 0.9)
    assert positions(chosen[0]) == [0, 2]


def test_threshold_one_takes_certainty() -> None:
    assert positions(low_confidence_dynamic(conf(0.5, 1, 0.99, 1), ALL, 1.0)[0]) == [1, 3]


def test_none_passes_takes_the_most_confident_one() -> None:
    assert positions(low_confidence_dynamic(conf(0.1, 0.3, 0.2, 0.3), ALL, 0.9)[0]) == [1]


def test_only_candidates_are_decoded_whatever_the_others_hold() -> None:
    candidates = np.array([[False, True, True, False]])
    noise = conf(np.nan, 0.1, 0.2, np.inf)
    assert positions(low_confidence_dynamic(noise, candidates, 0.9)[0]) == [2]
    assert positions(largest(noise, candidates, 3)[0]) == [1, 2]


def test_a_row_without_candidates_decodes_nothing() -> None:
    none = np.zeros((1, 4), dtype=bool)
    for strategy in UNMASKING_STRATEGIES:
        config = DecodeConfig(block_length=4, unmasking_strategy=strategy)
        assert not unmask(conf(1, 1, 1, 1), none, config).any()


@pytest.mark.parametrize(
    ("steps", "length", "count"), [(None, 4, 1), (4, 4, 1), (3, 4, 1), (2, 4, 2), (1, 4, 4)]
)
def test_static_and_sequential_take_a_fixed_number(
    steps: int | None, length: int, count: int
) -> None:
    confidence = conf(0.2, 0.9, 0.1, 0.9)
    static = DecodeConfig(
        block_length=length, steps=steps, unmasking_strategy="low_confidence_static"
    )
    order = [1, 3, 0, 2]
    assert positions(unmask(confidence, ALL, static)[0]) == sorted(order[:count])
    sequential = DecodeConfig(block_length=length, steps=steps, unmasking_strategy="sequential")
    assert positions(unmask(confidence, ALL, sequential)[0]) == list(range(count))


def test_sequential_counts_candidates_from_the_left() -> None:
    candidates = np.array([[False, True, False, True], [True, True, True, True]])
    assert [positions(r) for r in leftmost(candidates, 2)] == [[1, 3], [0, 1]]
    assert [positions(r) for r in leftmost(candidates, np.array([[1], [3]]))] == [[1], [0, 1, 2]]


@given(
    grid=st.lists(
        st.lists(st.tuples(st.integers(0, 10), st.booleans()), min_size=6, max_size=6),
        min_size=1,
        max_size=4,
    ),
    strategy=st.sampled_from(UNMASKING_STRATEGIES),
    steps=st.integers(1, 6),
    tenths=st.integers(1, 10),
)
def test_strategies_equal_a_slow_statement_row_by_row(
    grid: list[list[tuple[int, bool]]], strategy: str, steps: int, tenths: int
) -> None:
    confidence = np.array([[c / 10 for c, _ in row] for row in grid], dtype=np.float32)
    candidates = np.array([[k for _, k in row] for row in grid])
    config = DecodeConfig(
        block_length=6, unmasking_strategy=strategy, steps=steps, threshold=tenths / 10
    )
    chosen = unmask(confidence, candidates, config)
    for i, row in enumerate(grid):
        left_to_right = [p for p, (_, kept) in enumerate(row) if kept]
        by_confidence = sorted(left_to_right, key=lambda p: (-row[p][0], p))
        if strategy == "low_confidence_dynamic":
            passing = [p for p in left_to_right if row[p][0] >= tenths]
            expected = passing or by_confidence[:1]
        elif strategy == "low_confidence_static":
            expected = by_confidence[: max(1, 6 // steps)]
        else:
            expected = left_to_right[: max(1, 6 // steps)]
        assert positions(chosen[i]) == sorted(expected)
        alone = unmask(confidence[i : i + 1], candidates[i : i + 1], config)
        assert np.array_equal(alone[0], chosen[i])
