"""What layers >= 1 attend to in a step (algorithm 2, "Effects on the forward"; ADR 0005).

Knows masks only. Layer 0 always attends to the history and the whole block.
"""

import numpy as np

from focus_bench.decoding.block_state import BlockState, BoolArray, IntArray
from focus_bench.decoding.caching import Feed
from focus_bench.decoding.eviction import evicts_by_score
from focus_bench.decoding.masks import last_true


def last_attended(
    block: BlockState, feed: Feed, kept: BoolArray, progress: IntArray, attention_cover: str
) -> IntArray:
    """The last block position [n] that layers >= 1 attend to in a step.

    `progress[n]` after the step; with cover "rightmost", in decode steps of policies that evict by
    score, the step's rightmost kept position: frozen tokens to the right of it are not seen.
    """
    if attention_cover == "progress":
        return progress
    return np.where(evicts_by_score(block) & ~feed.commit, last_true(kept), progress)
