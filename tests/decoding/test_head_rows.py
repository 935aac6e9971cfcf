"""Which rows give logits: worked examples with and without the shift, and a loop over positions."""

import numpy as np
import pytest
from decoding_cases import bits
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.decoding.caching import Feed
from focus_bench.decoding.head_rows import head_rows


def feed_of(*rows: str) -> Feed:
    """Rows of '.': not fed, 'D': fed and decoded, 'M': masked but not decodable, 'x': decodable."""
    cells = np.array([list(row) for row in rows])
    fed = cells != "."
    masked = (cells == "M") | (cells == "x")
    commit = np.asarray(fed.all(axis=1) & ~masked.any(axis=1))
    return Feed(positions=fed, decodable=cells == "x", commit=commit)


def places(*rows: str, shifted: bool) -> tuple[list[int], list[int]]:
    feed = feed_of(*rows)
    needed = head_rows(feed, feed.positions, shifted=shifted)
    assert len(needed.index) == feed.decodable.sum() + len(needed.carry)
    return needed.index.tolist(), needed.carry.tolist()


def test_without_the_shift_each_position_stands_for_itself() -> None:
    assert places("DxxxMMMM", shifted=False) == ([1, 2, 3], [])
    # The second row's places follow on the eight of the first.
    assert places("DxDxMMMM", "....DDxx", shifted=False) == ([1, 3, 10, 11], [])
    assert places("DDDDDDDD", shifted=False) == ([], [])


def test_with_the_shift_the_row_before_decodes_a_position() -> None:
    assert places("DxxxMMMM", shifted=True) == ([0, 1, 2], [])
    # A sub-block alone begins with a decoded position, so the row before is always there.
    assert places("DxDxMMMM", "....DDxx", shifted=True) == ([0, 2, 9, 10], [])
    # The second sub-block's first position is decoded by the last row of the first one.
    assert places("DDDDxxxx", shifted=True) == ([3, 4, 5, 6], [])


def test_the_first_position_of_a_block_stands_for_itself() -> None:
    assert places("xxxxMMMM", shifted=True) == ([0, 0, 1, 2], [])


def test_a_commit_pass_gives_the_token_behind_its_block() -> None:
    assert places("DDDD", "DxMM", "DDDD", shifted=True) == ([4, 3, 11], [0, 2])
    assert places("DDDD", "DxMM", "DDDD", shifted=False) == ([5], [])


def test_a_row_that_was_not_kept_decodes_nothing() -> None:
    feed = feed_of("DDxx")
    kept = np.array([[True, False, True, True]])
    with pytest.raises(AssertionError, match="a row that was not kept"):
        head_rows(feed, kept, shifted=True)
    assert head_rows(feed, kept, shifted=False).index.tolist() == [1, 2]


@given(data=st.data(), shifted=st.booleans())
def test_equals_a_loop_over_positions(data: st.DataObject, shifted: bool) -> None:
    length = data.draw(st.sampled_from((1, 4, 13, 32)))
    num_rows = data.draw(st.integers(1, 4))
    decodable = np.array([bits(data.draw, length) for _ in range(num_rows)], dtype=np.bool_)
    commit = ~decodable.any(axis=1)
    fed = np.ones_like(decodable)
    feed = Feed(positions=fed, decodable=decodable, commit=commit)
    expected = []
    for row in range(num_rows):
        for p in range(length):
            if decodable[row, p]:
                source = max(p - 1, 0) if shifted else p
                expected.append(row * length + source)
    if shifted:
        expected += [row * length + length - 1 for row in range(num_rows) if commit[row]]
    assert head_rows(feed, fed, shifted=shifted).index.tolist() == expected
