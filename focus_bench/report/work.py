"""What a run computed and moved, counted from its step records; the numerators of MFU and MBU.

FLOPs and bytes are those of core.costs, for each step's totals. Knows no metric and no file.
"""

from collections.abc import Callable, Sequence

import numpy as np

from focus_bench.core.config import PointConfig
from focus_bench.core.costs import OpCost, decode_ops, prefill_ops, total_bytes, total_flops
from focus_bench.core.errors import UsageError
from focus_bench.core.hardware import Hardware
from focus_bench.core.model_folder import resolve_model
from focus_bench.core.records import RunRecord, StepRecord
from focus_bench.core.step_totals import StepTotals
from focus_bench.report.metrics import Work

# Counting one step takes about 0.1 ms. Of longer runs so many are counted, evenly spread, and
# scaled by the tokens of all.
_COUNTED_STEPS = 128


def work_of(point: PointConfig, run: RunRecord, sheet: Hardware | None) -> Work | None:
    """The work of a run beside its data sheet's peaks; None where either is not known.

    Without work are outside engines, and models whose folder is gone.
    """
    if sheet is None or not run.steps:
        return None
    try:
        spec = resolve_model(point.engine)
    except UsageError:
        return None
    length = point.decode.block_length
    prompt = sum(r.prompt_tokens for r in run.requests) // max(1, len(run.requests)) or 1

    def prefill(step: StepRecord) -> list[OpCost]:
        return prefill_ops(spec, totals_of(step).shape(length, chunk_tokens=prompt).prefill)

    def decode(step: StepRecord) -> list[OpCost]:
        return decode_ops(spec, totals_of(step).shape(length).forwards[0])

    parts = (
        _counted(run.steps, lambda step: step.prefill_tokens, prefill),
        _counted(run.steps, lambda step: step.kept_tokens, decode),
    )
    return Work(
        flops=sum(flops for flops, _ in parts),
        moved_bytes=sum(moved for _, moved in parts),
        peak_flops_per_s=sheet.dense_16bit_flops,
        peak_bytes_per_s=sheet.memory_bandwidth,
    )


def _counted(
    steps: Sequence[StepRecord],
    tokens_of: Callable[[StepRecord], int],
    ops_of: Callable[[StepRecord], list[OpCost]],
) -> tuple[float, float]:
    """FLOPs and bytes of the steps that have such tokens."""
    having = [step for step in steps if tokens_of(step)]
    if not having:
        return 0.0, 0.0
    places = np.unique(np.linspace(0, len(having) - 1, _COUNTED_STEPS).round().astype(int))
    chosen = [having[place] for place in places]
    ops = [tuple(ops_of(step)) for step in chosen]
    flop_scale = sum(map(tokens_of, having)) / sum(map(tokens_of, chosen))
    byte_scale = len(having) / len(chosen)  # most bytes are weights, once a step
    return flop_scale * sum(map(total_flops, ops)), byte_scale * sum(map(total_bytes, ops))


def totals_of(step: StepRecord) -> StepTotals:
    """The totals of a step's record."""
    return StepTotals(
        prefill_tokens=step.prefill_tokens,
        num_rows=step.num_rows,
        commit_rows=step.commit_rows,
        evicting_rows=step.evicting_rows,
        fed_tokens=step.fed_tokens,
        kept_tokens=step.kept_tokens,
        masked_tokens=step.masked_tokens,
        context_tokens=step.context_tokens,
    )
