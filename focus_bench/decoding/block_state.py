"""The state of every running sequence's current block: a struct of arrays, B columns a row.

Holds what is known of the block and the named transitions of it; the rules that decide what to
feed, keep and decode are in caching, eviction, unmask and acceptance.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from focus_bench.decoding.masks import count_true

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
TokenArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
RowIndex = IntArray | slice
_Item = TypeVar("_Item", bound=np.generic)


def row_index(rows: IntArray) -> RowIndex:
    """An index of `rows`, ascending and each once: a slice where they follow on one another, which
    numpy reads and writes in place instead of gathering row by row.
    """
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def rows_of(array: npt.NDArray[_Item], rows: RowIndex) -> npt.NDArray[_Item]:
    """`array[rows]` along the first axis: a view where they are a slice, else a copy."""
    # `take` needs a fifth of the time of an index where a row is short and not one number.
    return array[rows] if isinstance(rows, slice) else array.take(rows, axis=0)


def put_rows(array: npt.NDArray[_Item], rows: RowIndex, values: npt.NDArray[_Item]) -> None:
    """`array[rows] = values` for contiguous arrays [S, B] and [n, B] of one dtype."""
    if isinstance(rows, slice):
        array[rows] = values
    else:
        # As one item a row: a third of the time of rows of B items.
        row = np.dtype((np.void, array.itemsize * array.shape[1]))
        array.view(row).put(rows, values.view(row))


@dataclass(init=False)
class BlockState:
    """Arrays over rows (S slots, or the n rows of a step) and the B positions of a block.

    `decoded[S,B]`: the position holds a token (prompt or decoded), a flag of its own.
    `uncached[S,B]`: fed in the next step; False once frozen.
    `progress[S]`: the largest position ever processed past layer 1 in this block, -1 at its start.
    `block_steps`, `block_decoded`: decode steps of the block and tokens decoded in them;
    `request_steps`, `request_decoded` the same over the request; commit passes count in none.
    `forwards`: forwards of the request, commit passes included.
    `behind_end`: positions at the block's right that lie behind the request's output, where its
    length is known beforehand; else 0.
    `request_key`: the request's id, the key of its random streams. `carried_token`: a token handed
    over by the previous block's commit pass, -1 if none.

    The fields of one number a row are views of one array, so that `take` is four copies, not 15.
    """

    request_key: IntArray
    block_index: IntArray
    block_start: IntArray
    block_steps: IntArray
    block_decoded: IntArray
    request_steps: IntArray
    request_decoded: IntArray
    forwards: IntArray
    progress: IntArray
    policy_code: IntArray
    behind_end: IntArray
    carried_token: IntArray
    tokens: TokenArray
    decoded: BoolArray
    uncached: BoolArray

    def __init__(
        self, numbers: IntArray, *, tokens: TokenArray, decoded: BoolArray, uncached: BoolArray
    ) -> None:
        """`numbers[12,S]`: the fields of one number a row, in their order."""
        self._numbers = numbers
        (
            self.request_key,
            self.block_index,
            self.block_start,
            self.block_steps,
            self.block_decoded,
            self.request_steps,
            self.request_decoded,
            self.forwards,
            self.progress,
            self.policy_code,
            self.behind_end,
            self.carried_token,
        ) = numbers
        self.tokens = tokens
        self.decoded = decoded
        self.uncached = uncached

    @classmethod
    def empty(cls, num_slots: int, block_length: int) -> "BlockState":
        """State for `num_slots` unused rows."""
        shape = (num_slots, block_length)
        return cls(
            np.zeros((12, num_slots), dtype=np.int64),
            tokens=np.zeros(shape, dtype=np.int32),
            decoded=np.zeros(shape, dtype=np.bool_),
            uncached=np.zeros(shape, dtype=np.bool_),
        )

    @property
    def num_rows(self) -> int:
        """Rows (slots, or sequences of a step)."""
        return int(self.decoded.shape[0])

    @property
    def block_length(self) -> int:
        """B, positions per block."""
        return int(self.decoded.shape[1])

    @property
    def masked(self) -> BoolArray:
        """Positions that hold no token yet, [rows, B]."""
        return ~self.decoded

    def take(self, rows: RowIndex) -> "BlockState":
        """A copy of the given rows, in their order."""
        if isinstance(rows, slice):
            return BlockState(
                self._numbers[:, rows].copy(),
                tokens=self.tokens[rows].copy(),
                decoded=self.decoded[rows].copy(),
                uncached=self.uncached[rows].copy(),
            )
        # Several times as fast as an index of rows, which also leaves the numbers in strides.
        return BlockState(
            self._numbers.take(rows, axis=1),
            tokens=self.tokens.take(rows, axis=0),
            decoded=self.decoded.take(rows, axis=0),
            uncached=self.uncached.take(rows, axis=0),
        )

    def put(self, rows: RowIndex, values: "BlockState") -> None:
        """Write rows back (the inverse of `take`)."""
        self._numbers[:, rows] = values._numbers
        put_rows(self.tokens, rows, values.tokens)
        put_rows(self.decoded, rows, values.decoded)
        put_rows(self.uncached, rows, values.uncached)

    def start_request(self, row: int, request_key: int) -> None:
        """A new request takes the row; its first block starts with `start_block`."""
        self._numbers[:, row] = 0
        self.request_key[row] = request_key
        self.block_index[row] = -1
        self.carried_token[row] = -1

    def start_block(
        self,
        row: int,
        *,
        block_start: int,
        policy_code: int,
        known_tokens: TokenArray,
        behind_end: int = 0,
    ) -> None:
        """A new block of mask tokens at absolute position `block_start`, all uncached.

        `known_tokens` (the P mod B prompt tokens of a first block) fill its first positions as
        already decoded.
        """
        self._empty_blocks(row, block_start, policy_code, behind_end)
        self.tokens[row, : len(known_tokens)] = known_tokens
        self.decoded[row, : len(known_tokens)] = True

    def start_blocks(
        self,
        rows: IntArray,
        *,
        block_start: IntArray,
        policy_code: int,
        behind_end: IntArray,
    ) -> None:
        """New blocks of mask tokens in the given rows [n], each at its `block_start[n]`."""
        self._empty_blocks(rows, block_start, policy_code, behind_end)

    def carry_over(self, rows: IntArray, tokens: TokenArray) -> None:
        """The new blocks of the rows [n] begin with `tokens[n]`, handed over by the blocks before
        (-1 if none), as already decoded.
        """
        carries = tokens >= 0
        self.tokens[rows[carries], 0] = tokens[carries]
        self.decoded[rows[carries], 0] = True

    def _empty_blocks(
        self,
        rows: int | IntArray,
        block_start: int | IntArray,
        policy_code: int,
        behind_end: int | IntArray,
    ) -> None:
        """The next blocks of a row or of several, of mask tokens only."""
        self.block_index[rows] += 1
        self.block_start[rows] = block_start
        self.block_steps[rows] = 0
        self.block_decoded[rows] = 0
        self.progress[rows] = -1
        self.policy_code[rows] = policy_code
        self.behind_end[rows] = behind_end
        self.carried_token[rows] = -1
        self.decoded[rows] = False
        self.uncached[rows] = True
        self.tokens[rows] = 0

    def record_forward(self, *, commit: BoolArray, uncached: BoolArray) -> None:
        """One forward of every row, as far as it does not depend on what it decodes: it counts, and
        leaves `uncached[n,B]`. `commit[n]` rows are commit passes, which count as forwards only.
        """
        step = ~commit
        self.block_steps += step
        self.request_steps += step
        self.forwards += 1
        self.uncached[:] = uncached

    def record_decoded(
        self, decoded_now: BoolArray, tokens: TokenArray, progress: IntArray, *, commit: BoolArray
    ) -> None:
        """What that forward decoded, `tokens[n,B]` where `decoded_now[n,B]`, and how far it came.

        Commit passes decode nothing: their rows stay as they are, or as their next blocks began.
        """
        count = count_true(decoded_now)
        self.decoded |= decoded_now
        np.copyto(self.tokens, tokens, where=decoded_now)
        np.copyto(self.progress, progress, where=~commit)
        self.block_decoded += count
        self.request_decoded += count
