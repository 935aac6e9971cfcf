"""What a device must be told to select positions as eviction.evict does: budgets, kinds, scores.

Knows no kernel; the rule itself is in eviction.py.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.decoding import acceptance
from focus_bench.decoding.block_state import BlockState, BoolArray, FloatArray, IntArray
from focus_bench.decoding.caching import Feed
from focus_bench.decoding.eviction import evicts_by_score, random_scores, row_budget
from focus_bench.decoding.policies import FIXED_OF_CODE
from focus_bench.decoding.rules import StepRules


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Per row [n] of a step: `budget`, masked positions kept at least; `fixed`, and no more;
    `rightmost`: layers >= 1 attend up to the step's rightmost kept position, not to the progress.

    `delta[n,B]` float32: synthetic importance, None where the model's ranks. `scores[n,B]` float64:
    what ranks fixed rows where neither the delta nor its negative does, else None.
    """

    budget: IntArray
    fixed: BoolArray
    rightmost: BoolArray
    delta: FloatArray | None
    scores: npt.NDArray[np.float64] | None


def selection_of(block: BlockState, feed: Feed, rules: StepRules) -> Selection:
    """The selection of one step's rows."""
    config = rules.decode
    fixed = np.asarray(FIXED_OF_CODE[block.policy_code])
    by_rightmost = config.attention_cover == "rightmost"
    delta = None
    if rules.importance.kind == "synthetic":
        delta = acceptance.synthetic_delta(block, feed, rules.importance, rules.seed)
    scores = None
    if config.select == "random" and fixed.any():
        scores = random_scores(block, rules.seed)
    return Selection(
        budget=row_budget(block, feed, config),
        fixed=fixed,
        rightmost=evicts_by_score(block) & ~feed.commit & by_rightmost,
        delta=delta,
        scores=scores,
    )
