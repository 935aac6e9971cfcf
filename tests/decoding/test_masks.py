"""Counts and ends of masks, and masks as words, against row by row statements of the same."""

import numpy as np
from decoding_cases import positions
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.decoding.masks import (
    columns_below,
    count_true,
    last_true,
    leading_true,
    pack_masks,
    right_neighbor,
    unpack_masks,
)


@st.composite
def masks(draw: st.DrawFn) -> np.ndarray:
    """Masks of every width, dense to sparse, as whole arrays and as views of others."""
    length, rows = draw(st.integers(1, 64)), draw(st.integers(0, 5))
    density = draw(st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
    wide = np.random.default_rng(draw(st.integers(0, 2**32))).random((rows, length + 3)) < density
    view = wide[:, 2 : 2 + length]
    return view if draw(st.booleans()) else view.copy()


@given(mask=masks())
def test_counts_and_ends(mask: np.ndarray) -> None:
    rows = [positions(row) for row in mask]
    length = mask.shape[1]
    assert count_true(mask).tolist() == [len(row) for row in rows]
    assert last_true(mask).tolist() == [max(row, default=-1) for row in rows]
    unset = [set(range(length)) - set(row) for row in rows]
    assert leading_true(mask).tolist() == [min(row, default=length) for row in unset]
    for values in (count_true(mask), last_true(mask), leading_true(mask)):
        assert values.dtype == np.int64


@given(length=st.integers(1, 64))
def test_columns_below_every_limit(length: int) -> None:
    limits = np.arange(-1, length + 1)
    expected = np.arange(length) < limits[:, None]
    assert columns_below(limits, length).tolist() == expected.tolist()


@given(mask=masks(), at_end=st.booleans())
def test_each_column_takes_the_value_of_the_next(mask: np.ndarray, at_end: bool) -> None:
    shifted = right_neighbor(mask, at_end=at_end)
    assert [row.tolist() for row in shifted] == [[*row[1:].tolist(), at_end] for row in mask]


@given(mask=masks())
def test_packed_masks_come_back(mask: np.ndarray) -> None:
    words = pack_masks(mask)
    assert words.dtype == np.uint64
    assert words.shape == mask.shape[:1]
    assert [int(w) for w in words] == [sum(1 << p for p in positions(row)) for row in mask]
    back = unpack_masks(words, mask.shape[1])
    assert back.dtype == np.bool_
    assert np.array_equal(back, mask)


def test_the_highest_bit_of_a_word() -> None:
    mask = np.zeros((1, 64), dtype=bool)
    mask[0, 63] = True
    assert int(pack_masks(mask)[0]) == 2**63
    assert int(pack_masks(np.ones((1, 64), dtype=bool))[0]) == 2**64 - 1
