"""The shape of an executed step, for the cost account in core.costs. Decides nothing."""

import numpy as np

from focus_bench.core.costs import DecodeShape, PrefillShape, StepShape
from focus_bench.decoding.attention_cover import last_attended
from focus_bench.decoding.block_state import BoolArray, IntArray
from focus_bench.decoding.eviction import keep_all
from focus_bench.decoding.masks import count_true
from focus_bench.decoding.policies import IDEAL_OF_CODE
from focus_bench.scheduling.plan import Plan


def step_shape(
    plan: Plan,
    *,
    kept: BoolArray,
    progress: IntArray,
    evicting: BoolArray,
    page_size: int,
    attention_cover: str = "progress",
    count_first_pass: bool = True,
) -> StepShape:
    """Shape of a step, from its plan and what an outcome says: `kept[n,B]`, `progress[n]` after the
    step and `evicting[n]`, the rows for which importance was computed. `count_first_pass`: count
    the pass in which policy `ideal` finds out what it keeps, as the engine does it.
    """
    forwards = []
    ideal = IDEAL_OF_CODE[plan.block.policy_code] & ~plan.feed.commit
    if count_first_pass and ideal.any():
        # The policy's first pass, without eviction, on a copy of the cache.
        whole = keep_all(plan.block, plan.feed)
        nothing = np.zeros_like(evicting)
        forwards.append(_decode_shape(plan, whole.kept, whole.progress, nothing))
    if len(plan.rows):
        attended = last_attended(plan.block, plan.feed, kept, progress, attention_cover)
        forwards.append(_decode_shape(plan, kept, attended, evicting))
    swaps = (*plan.swap_out, *plan.swap_in)
    return StepShape(
        prefill=PrefillShape(
            start=np.array([chunk.start for chunk in plan.prefill], dtype=np.int64),
            length=np.array([len(chunk.token_ids) for chunk in plan.prefill], dtype=np.int64),
            block_length=plan.block.block_length,
        ),
        forwards=tuple(forwards),
        swapped_pages=sum(len(swap.pages) for swap in swaps),
        page_size=page_size,
    )


def _decode_shape(
    plan: Plan, kept: BoolArray, attended: IntArray, evicting: BoolArray
) -> DecodeShape:
    carried = int(np.count_nonzero(plan.feed.commit)) if plan.shifted_logits else 0
    return DecodeShape(
        fed=plan.feed.num_fed,
        kept=count_true(kept),
        masked_fed=np.where(evicting, plan.feed.num_decodable, 0),
        first_keys=plan.history + plan.block.block_length,
        later_keys=plan.history + attended + 1,
        head_rows=int(np.count_nonzero(kept & plan.feed.decodable)) + carried,
    )
