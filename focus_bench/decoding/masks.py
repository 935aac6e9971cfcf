"""Facts of the rows of a mask [n, B <= 64]: counts, ends, 64-bit words. Knows no rule.

Each is a reduction over a short axis of booleans, where numpy's sum, max and any take longer than
everything else in a step; the forms here take half of that or less.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


def count_true(mask: BoolArray) -> IntArray:
    """How many columns of each row are set, [n]."""
    return np.asarray(np.bitwise_count(_words(mask)), dtype=np.int64)


def all_true(mask: BoolArray) -> BoolArray:
    """Rows of which every column is set, [n]."""
    return np.asarray(count_true(mask) == mask.shape[1])


def last_true(mask: BoolArray) -> IntArray:
    """The last column that is set in each row, -1 where none is, [n]."""
    last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    is_set = mask[np.arange(len(mask)), last]
    return np.where(is_set, last, -1)


def leading_true(mask: BoolArray) -> IntArray:
    """How many columns of each row are set before the first that is not, [n]."""
    first_unset = mask.argmin(axis=1)
    whole = (first_unset == 0) & mask[:, 0]
    return np.asarray(np.where(whole, mask.shape[1], first_unset))


def columns_below(limit: IntArray, length: int) -> BoolArray:
    """Which of `length` columns lie left of each row's limit, -1 to `length`, [n, length]."""
    return _below(length).take(limit + 1, axis=0)


@lru_cache(maxsize=64)
def _below(length: int) -> BoolArray:
    """Row i: the columns left of i - 1. Rows of a table are copied faster than compared."""
    return np.tri(length + 2, length, -2, dtype=np.bool_)


def right_neighbor(mask: BoolArray, *, at_end: bool) -> BoolArray:
    """The value of each column's right neighbour, [n, B]; `at_end` for the last column."""
    shifted = np.empty(mask.shape, dtype=np.bool_)
    # Over the whole batch at once: rows of B - 1 are slow to copy.
    shifted.reshape(-1)[:-1] = mask.reshape(-1)[1:]
    shifted[:, -1] = at_end
    return shifted


def _words(mask: BoolArray) -> npt.NDArray[np.unsignedinteger]:
    """Each row as a number of at least B bits, position p in bit p, [n]."""
    bits = mask.shape[1]
    if bits not in (8, 16, 32, 64):
        return pack_masks(mask)
    return np.packbits(mask, bitorder="little").view(f"<u{bits // 8}")


def pack_masks(mask: BoolArray) -> npt.NDArray[np.uint64]:
    """Pack [n, B <= 64] booleans into one 64-bit word a row, position p in bit p."""
    padded = np.zeros((len(mask), 64), dtype=np.bool_)
    padded[:, : mask.shape[1]] = mask
    return np.packbits(padded, bitorder="little").view("<u8").astype(np.uint64)


def unpack_masks(words: npt.NDArray[np.uint64], block_length: int) -> BoolArray:
    """The inverse of `pack_masks`."""
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
    return bits.reshape(len(words), 64)[:, :block_length].astype(np.bool_)
