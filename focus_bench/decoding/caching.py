"""Which positions of a block a step feeds, and which it freezes (algorithm 1 and 2, paper 4.3).

Knows masks only: no scores, no confidences, no K/V.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from focus_bench.decoding.block_state import BlockState, BoolArray, IntArray
from focus_bench.decoding.masks import all_true, count_true, right_neighbor
from focus_bench.decoding.policies import (
    FREEZES_OF_CODE,
    NEEDS_NEIGHBOR_OF_CODE,
    SUB_BLOCK_OF_CODE,
)


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What one step feeds: `positions[n,B]`; `decodable[n,B]`, the masked ones it may decode;
    `commit[n]`: rows whose block holds no mask, fed once more for their final K/V.
    """

    positions: BoolArray
    decodable: BoolArray
    commit: BoolArray

    @cached_property
    def num_fed(self) -> IntArray:
        """Positions fed, [n]."""
        return count_true(self.positions)

    @cached_property
    def num_decodable(self) -> IntArray:
        """M, masked fed positions, [n]."""
        return count_true(self.decodable)


def plan_feed(block: BlockState, *, refresh_prompt: bool = False) -> Feed:
    """Positions that the next forward of each row feeds, in ascending order.

    `refresh_prompt`: commit passes also feed the tokens that a block began with.
    """
    positions = block.uncached.copy()
    decodable = positions & ~block.decoded
    sub_block = SUB_BLOCK_OF_CODE[block.policy_code]
    if sub_block.any():
        positions, decodable = _limit_to_sub_block(block, positions, decodable)
    commit = all_true(block.decoded)
    if refresh_prompt:
        # What no step of the block decoded was there when it began, and led it.
        num_known = (block.block_length - block.block_decoded)[:, None]
        positions |= commit[:, None] & (np.arange(block.block_length) < num_known)
    feed = Feed(positions=positions, decodable=decodable, commit=commit)
    if not feed.num_fed.all():
        raise AssertionError("a running row has no position left to feed")
    return feed


def _limit_to_sub_block(
    block: BlockState, positions: BoolArray, decodable: BoolArray
) -> tuple[BoolArray, BoolArray]:
    """Sub-blocks in order (Fast-dLLM v2): the first one with a mask is current. Only its positions
    may be decoded; it is fed alone unless its first position is a mask or the block is new.
    """
    length = SUB_BLOCK_OF_CODE[block.policy_code]
    columns = np.arange(block.block_length)
    first_mask = block.masked.argmax(axis=1)
    safe_length = np.maximum(length, 1)
    start = first_mask // safe_length * safe_length
    current = (columns >= start[:, None]) & (columns < (start + safe_length)[:, None])
    sub_blocked = (length > 0) & block.masked.any(axis=1)
    first_is_mask = block.masked[np.arange(block.num_rows), start]
    alone = sub_blocked & ~first_is_mask & (block.block_steps > 0)
    return (
        np.where(alone[:, None], positions & current, positions),
        np.where(sub_blocked[:, None], decodable & current, decodable),
    )


def freeze(block: BlockState) -> BoolArray:
    """`uncached[n,B]` after a step, from the block as it stood when the step began.

    A position is frozen once it was decoded before the step (so the step fed it with its token)
    and, for the neighbour rule, its right neighbour was decoded before the step too; the last
    position of the block has no neighbour to wait for.
    """
    freezes = FREEZES_OF_CODE[block.policy_code]
    if not freezes.any():
        return block.uncached
    ready = block.decoded & freezes[:, None]
    alone = ~NEEDS_NEIGHBOR_OF_CODE[block.policy_code]
    ready &= right_neighbor(block.decoded, at_end=True) | alone[:, None]
    return np.asarray(block.uncached & ~ready)
