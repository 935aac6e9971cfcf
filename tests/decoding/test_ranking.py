"""The first and the best of each row, against sorting the candidates of one row at a time."""

import numpy as np
import pytest
from decoding_cases import positions
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.decoding.ranking import largest, leftmost

Case = tuple[np.ndarray, np.ndarray, np.ndarray]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """(score, candidates, count): scores on a coarse grid, so that ties are the rule."""
    length, rows = draw(st.integers(1, 64)), draw(st.integers(0, 4))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    levels = draw(st.sampled_from((1, 2, 5, 1000)))
    dtype = draw(st.sampled_from((np.float32, np.float64)))
    score = (random.integers(-levels, levels, (rows, length)) / 8).astype(dtype)
    candidates = random.random((rows, length)) < draw(st.sampled_from((0.0, 0.3, 0.9, 1.0)))
    count = random.integers(1, length + 3, rows)
    return score, candidates, count


@given(case=cases(), poison=st.booleans())
def test_the_largest_are_the_first_of_the_sorted_candidates(case: Case, poison: bool) -> None:
    score, candidates, count = case
    expected = [
        sorted(sorted(positions(row), key=lambda p, r=r: (-score[r, p], p))[: count[r]])
        for r, row in enumerate(candidates)
    ]
    if poison:
        score[~candidates] = np.nan
    chosen = largest(score, candidates, count)
    assert [positions(row) for row in chosen] == expected
    for row in range(len(score)):
        alone = largest(score[row : row + 1], candidates[row : row + 1], int(count[row]))
        assert np.array_equal(alone[0], chosen[row])


@given(case=cases())
def test_the_leftmost_are_the_first_candidates(case: Case) -> None:
    _, candidates, count = case
    chosen = leftmost(candidates, count[:, None])
    assert [positions(row) for row in chosen] == [
        positions(row)[: count[r]] for r, row in enumerate(candidates)
    ]


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_infinite_scores_are_ranked_like_others(infinite: float) -> None:
    score = np.array([[0.0, infinite, 1.0, infinite]], dtype=np.float32)
    candidates = np.array([[True, True, True, False]])
    best = 1 if infinite > 0 else 2
    assert positions(largest(score, candidates, 1)[0]) == [best]
    assert positions(largest(score, candidates, 3)[0]) == [0, 1, 2]
