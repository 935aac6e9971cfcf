"""A result folder beside predictions of it, and what moves each error.

Predicts from a measured point's configuration, workload and decisions only; steps.csv serves the
search for causes, after the prediction. Loads SimPy, never torch.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from focus_bench.api.prediction import (
    Target,
    find_target,
    hardware_of_device,
    needs_trace,
    replaying,
    trace_file_of,
)
from focus_bench.bench.workload_cache import WorkloadCache
from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.records import RunRecord, StepTiming
from focus_bench.core.workload import Workload
from focus_bench.report.attribution import Attribution, RunTotals, attribute
from focus_bench.report.compare import Comparison, pair_results
from focus_bench.report.figures.records import STEP_COLUMNS, FloatArray, read_records, step_totals
from focus_bench.report.folder import load_folder
from focus_bench.report.points_file import choose, read_points
from focus_bench.report.results import PointResult, result_of

if TYPE_CHECKING:
    from focus_bench.sim.cost_model import CostModel
_TIMED = tuple(field.name for field in dataclasses.fields(StepTiming))


@dataclass(frozen=True, kw_only=True)
class FolderComparison:
    """Measured points with their predictions, and for those with steps.csv the causes of errors."""

    pairs: tuple[Comparison, ...]
    causes: tuple[tuple[Comparison, Attribution], ...]


def compare_folder(
    folder: Path, *, hardware: str | None = None, points: Path | str | None = None
) -> FolderComparison:
    """Predict the measured points of a folder; see `api.prediction.compare`."""
    measured = [r for r in load_folder(folder).results if r.source == "measured"]
    if not measured:
        raise UsageError("result folder", str(folder), "a folder with measured points")
    if points is not None:
        measured = _fixed_points(measured, Path(points))
    if not any(_is_predictable(folder, result) for result in measured):
        raise UsageError(
            "result folder",
            str(folder),
            "a folder with a measured point that can be predicted: one with synthetic acceptance "
            "or a decode trace, which no outside engine keeps",
        )
    cache = WorkloadCache()
    predicted: list[PointResult] = []
    totals: dict[str, tuple[RunTotals, RunTotals]] = {}
    steps = read_records([folder]).steps
    for result in measured:
        point = result.point
        trace_file = trace_file_of(folder, point)
        if not _is_predictable(folder, result):
            continue
        workload = cache.of(point)
        if workload.provenance.sha256 != result.provenance.sha256:
            raise UsageError(
                "data",
                f"{workload.provenance.path} with SHA-256 {workload.provenance.sha256}",
                f"the file that was measured, with SHA-256 {result.provenance.sha256}",
            )
        target = find_target(hardware or hardware_of_device(result.hardware), point.engine)
        simulated = replaying(point, trace_file) if needs_trace(point) else point
        record = target.predict(simulated, workload, interval=True)
        own = result_of(point, record, provenance=workload.provenance, hardware=target.name)
        predicted.append(own)
        if result.key in steps:
            totals[own.point_hash] = _totals(
                target, point, workload, result, steps[result.key], own, record
            )
    pairs = pair_results([*measured, *predicted])
    found = [
        (pair, attribute(*totals[pair.point.hash()]))
        for pair in pairs
        if pair.predicted is not None and pair.point.hash() in totals
    ]
    return FolderComparison(
        pairs=pairs, causes=tuple((pair, cause) for pair, cause in found if cause is not None)
    )


def _is_predictable(folder: Path, result: PointResult) -> bool:
    """Whether the folder says what was decided in the run, which a prediction cannot know."""
    return not needs_trace(result.point) or trace_file_of(folder, result.point).is_file()


def _fixed_points(measured: Sequence[PointResult], file: Path) -> list[PointResult]:
    chosen = choose(read_points(file), [result.point for result in measured])
    if chosen.absent:
        raise UsageError(
            f"--points {file}",
            "; ".join(entry.label for entry in chosen.absent),
            "points that were measured",
        )
    return [result for result in measured if result.point in chosen.points]


def _totals(
    target: Target,
    point: PointConfig,
    workload: Workload,
    result: PointResult,
    steps: FloatArray,
    predicted: PointResult,
    record: RunRecord,
) -> tuple[RunTotals, RunTotals]:
    """Of the measured and of the predicted run, costed by one model."""
    spec = target.spec_of(point)
    pages = record.num_pages or 1
    model = target.cost_model(point, workload, spec, pages)
    block_length = point.decode.block_length
    ours = np.array(
        [
            [getattr(step.timing if name in _TIMED else step, name) for name in STEP_COLUMNS]
            for step in record.steps
        ],
        dtype=np.float64,
    ).reshape(-1, len(STEP_COLUMNS))
    return (
        _sum_up(model, steps, result, block_length),
        _sum_up(model, ours, predicted, block_length),
    )


def _sum_up(
    model: "CostModel", steps: FloatArray, result: PointResult, block_length: int
) -> RunTotals:
    columns = {name: steps[:, i] for i, name in enumerate(STEP_COLUMNS)}
    # Sequences taken to be alike: what that leaves out is left out of both sides alike.
    shapes = (step_totals(row).shape(block_length) for row in steps)
    modelled_s = sum(model.step_timing(shape).duration_s for shape in shapes)
    return RunTotals(
        duration_s=result.metrics.duration_s,
        busy_s=float(columns["duration_s"].sum() + columns["schedule_s"].sum()),
        modelled_s=modelled_s,
        sequence_steps=int(columns["num_rows"].sum()),
        tokens=result.metrics.total_output_tokens,
    )
