"""The state of every running sequence's current block: a struct of arrays, B columns a row.

Holds what is known of the block and the named transitions of it; the rules that decide what to
feed, keep and decode are in caching, eviction, unmask and acceptance.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
TokenArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


@dataclass(kw_only=True)
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

    @classmethod
    def empty(cls, num_slots: int, block_length: int) -> "BlockState":
        """State for `num_slots` unused rows."""
        columns = {
            f.name: np.zeros(num_slots, dtype=np.int64)
            for f in dataclasses.fields(cls)
            if f.name not in {"tokens", "decoded", "uncached"}
        }
        shape = (num_slots, block_length)
        return cls(
            **columns,
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

    def take(self, rows: IntArray) -> "BlockState":
        """A copy of the given rows, in their order."""
        return BlockState(**{f.name: getattr(self, f.name)[rows] for f in dataclasses.fields(self)})

    def put(self, rows: IntArray, values: "BlockState") -> None:
        """Write rows back (the inverse of `take`); used when a preempted request resumes."""
        for f in dataclasses.fields(self):
            getattr(self, f.name)[rows] = getattr(values, f.name)

    def start_request(self, row: int, request_key: int) -> None:
        """A new request takes the row; its first block starts with `start_block`."""
        for f in dataclasses.fields(self):
            getattr(self, f.name)[row] = 0
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

        `known_tokens` (the P mod B prompt tokens of a first block, or a carried token) fill its
        first positions as already decoded.
        """
        self.block_index[row] += 1
        self.block_start[row] = block_start
        self.block_steps[row] = 0
        self.block_decoded[row] = 0
        self.progress[row] = -1
        self.policy_code[row] = policy_code
        self.behind_end[row] = behind_end
        self.carried_token[row] = -1
        self.decoded[row] = False
        self.uncached[row] = True
        self.tokens[row] = 0
        self.tokens[row, : len(known_tokens)] = known_tokens
        self.decoded[row, : len(known_tokens)] = True

    def record_step(
        self,
        rows: IntArray,
        *,
        commit: BoolArray,
        decoded_now: BoolArray,
        tokens: TokenArray,
        uncached: BoolArray,
        progress: IntArray,
    ) -> None:
        """Apply one forward to the given rows: what it decoded, froze and processed.

        `commit[n]` rows were commit passes, which count as forwards only. `tokens[n,B]` is read
        where `decoded_now[n,B]`.
        """
        step = (~commit).astype(np.int64)
        count = decoded_now.sum(axis=1)
        self.decoded[rows] |= decoded_now
        self.tokens[rows] = np.where(decoded_now, tokens, self.tokens[rows])
        self.uncached[rows] = uncached
        self.progress[rows] = progress
        self.block_steps[rows] += step
        self.request_steps[rows] += step
        self.block_decoded[rows] += count
        self.request_decoded[rows] += count
        self.forwards[rows] += 1


def pack_masks(mask: BoolArray) -> npt.NDArray[np.uint64]:
    """Pack [n, B <= 64] booleans into one 64-bit word a row, position p in bit p."""
    weights = np.uint64(1) << np.arange(mask.shape[1], dtype=np.uint64)
    return np.asarray((mask * weights).sum(axis=1, dtype=np.uint64))


def unpack_masks(words: npt.NDArray[np.uint64], block_length: int) -> BoolArray:
    """The inverse of `pack_masks`."""
    shifts = np.arange(block_length, dtype=np.uint64)
    return np.asarray(((words[:, None] >> shifts) & np.uint64(1)).astype(np.bool_))
