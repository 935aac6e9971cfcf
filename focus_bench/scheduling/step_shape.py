"""The shape of an executed step, for the cost account in core.costs. Decides nothing."""

import numpy as np

from focus_bench.core.costs import DecodeShape, PrefillShape, StepShape
from focus_bench.decoding.block_state import BoolArray, IntArray
from focus_bench.scheduling.plan import Plan


def decode_shape(
    plan: Plan, *, kept: BoolArray, progress: IntArray, evicting: BoolArray
) -> DecodeShape:
    """Shape of one forward of the plan's rows.

    `kept[n,B]`: positions that go past layer 1's K/V write; `progress[n]`: after the step;
    `evicting[n]`: rows for which importance is computed.
    """
    history, decodable = plan.history, plan.feed.decodable
    return DecodeShape(
        fed=plan.feed.positions.sum(axis=1),
        kept=kept.sum(axis=1),
        masked_fed=np.where(evicting, decodable.sum(axis=1), 0),
        first_keys=history + plan.block.block_length,
        later_keys=history + progress + 1,
        head_rows=int((kept & decodable).sum()),
    )


def step_shape(plan: Plan, forwards: tuple[DecodeShape, ...], *, page_size: int) -> StepShape:
    """Shape of the whole step, given those of its forwards (none without decode rows)."""
    swaps = (*plan.swap_out, *plan.swap_in)
    return StepShape(
        prefill=PrefillShape(
            start=np.array([chunk.start for chunk in plan.prefill], dtype=np.int64),
            length=np.array([len(chunk.token_ids) for chunk in plan.prefill], dtype=np.int64),
            block_length=plan.block.block_length,
        ),
        forwards=forwards,
        swapped_pages=sum(len(swap.pages) for swap in swaps),
        page_size=page_size,
    )
