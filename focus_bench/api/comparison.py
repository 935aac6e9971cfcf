"""A result folder beside predictions of it, and what moves each error.

Predicts from a measured point's configuration, workload and decisions only; steps.csv serves the
search for causes, after the prediction. Loads SimPy, never torch.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
from focus_bench.api.profiles import CPU
from focus_bench.bench.workload_cache import WorkloadCache
from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.records import RunRecord, StepTiming
from focus_bench.core.workload import Workload
from focus_bench.report.attribution import Attribution, RunTotals, attribute, busy_seconds
from focus_bench.report.compare import Comparison, pair_results
from focus_bench.report.figures.records import STEP_COLUMNS, FloatArray, read_records, step_totals
from focus_bench.report.folder import load_folder
from focus_bench.report.points_file import choose, read_points
from focus_bench.report.results import PointResult, result_of

if TYPE_CHECKING:
    from focus_bench.sim.cost_model import CostModel
ResultKey = tuple[str, str, str]
_TIMED = tuple(field.name for field in dataclasses.fields(StepTiming))


@dataclass(frozen=True, kw_only=True)
class FolderComparison:
    """Measured points with their predictions, and for those with steps.csv the causes of errors."""

    pairs: tuple[Comparison, ...]
    causes: tuple[tuple[Comparison, Attribution], ...]


@dataclass(frozen=True, kw_only=True)
class _Prediction:
    """A prediction with what its causes of error are costed by."""

    result: PointResult
    record: RunRecord
    model: "CostModel"

    @cached_property
    def totals(self) -> RunTotals:
        """Of its steps."""
        columns = [
            [getattr(step.timing if name in _TIMED else step, name) for name in STEP_COLUMNS]
            for step in self.record.steps
        ]
        steps = np.array(columns, dtype=np.float64).reshape(-1, len(STEP_COLUMNS))
        served = [(r.arrival_s, r.finished_s) for r in self.record.requests]
        return self.totals_of(steps, np.array(served).reshape(-1, 2), self.result)

    def totals_of(self, steps: FloatArray, served: FloatArray, result: PointResult) -> RunTotals:
        """Of a run's steps and of its requests' arrivals and ends, by this prediction's model."""
        from focus_bench.sim.curve_model import as_new

        model = as_new(self.model)
        columns = {name: steps[:, i] for i, name in enumerate(STEP_COLUMNS)}
        block_length = result.point.decode.block_length
        # Sequences taken to be alike: what that leaves out is left out of both sides alike.
        shapes = (step_totals(row).shape(block_length) for row in steps)
        modelled_s = sum(model.step_timing(shape).duration_s for shape in shapes)
        return RunTotals(
            duration_s=result.metrics.duration_s,
            busy_s=busy_seconds(served),
            modelled_s=modelled_s,
            sequence_steps=int(columns["num_rows"].sum()),
            tokens=result.metrics.total_output_tokens,
        )


def compare_folder(
    folder: Path,
    *,
    hardware: str | None = None,
    points: Path | str | None = None,
    seed: int | None = None,
) -> FolderComparison:
    """Predict the measured points of a folder; see `api.prediction.compare`."""
    measured = [r for r in load_folder(folder).results if r.source == "measured"]
    if not measured:
        raise UsageError("result folder", str(folder), "a folder with measured points")
    if points is not None:
        measured = _fixed_points(measured, Path(points))
    predictable = [result for result in measured if _is_predictable(folder, result, seed)]
    if not predictable:
        of_seed = "" if seed is None else f" with --seed {seed}"
        traces = "or a decode trace, which no outside engine keeps"
        raise UsageError(
            "result folder",
            str(folder),
            f"a folder with a measured point that can be predicted{of_seed}: one with synthetic "
            f"acceptance {traces if seed is None else 'and importance'}",
        )
    cache = WorkloadCache()
    predictions: dict[tuple[PointConfig, str], _Prediction] = {}
    causes: dict[tuple[ResultKey, ResultKey], Attribution | None] = {}
    records = read_records([folder])
    for result in predictable:
        point = result.point if seed is None else dataclasses.replace(result.point, seed=seed)
        workload = cache.of(point)
        if workload.provenance.sha256 != result.provenance.sha256:
            raise UsageError(
                "data",
                f"{workload.provenance.path} with SHA-256 {workload.provenance.sha256}",
                f"the file that was measured, with SHA-256 {result.provenance.sha256}",
            )
        name = hardware or hardware_of_device(result.hardware)
        if (point, name) not in predictions:
            trace_file = trace_file_of(folder, point)
            simulated = replaying(point, trace_file) if needs_trace(point) else point
            threads = result.settings.get("threads") if name == CPU else None
            engine = dataclasses.replace(point.engine, threads=int(threads) if threads else None)
            target = find_target(name, engine)
            predictions[point, name] = _predict(
                target, point, simulated, workload, other_seeds=seed is not None
            )
        own = predictions[point, name]
        if result.key in records.steps and result.key in records.served:
            measured_totals = own.totals_of(
                records.steps[result.key], records.served[result.key], result
            )
            causes[result.key, own.result.key] = attribute(measured_totals, own.totals)
    pairs = pair_results(
        [*measured, *(own.result for own in predictions.values())], any_seed=seed is not None
    )
    found = [
        (pair, causes.get((pair.measured.key, pair.predicted.key)))
        for pair in pairs
        if pair.measured is not None and pair.predicted is not None
    ]
    return FolderComparison(
        pairs=pairs, causes=tuple((pair, cause) for pair, cause in found if cause is not None)
    )


def _predict(
    target: Target,
    point: PointConfig,
    simulated: PointConfig,
    workload: Workload,
    *,
    other_seeds: bool,
) -> _Prediction:
    """The prediction of a point, whose decisions `simulated` says how to take."""
    record = target.predict(simulated, workload, interval=True, other_seeds=other_seeds)
    spec = target.spec_of(point)
    return _Prediction(
        result=result_of(point, record, provenance=workload.provenance, hardware=target.name),
        record=record,
        model=target.cost_model(point, workload, spec, record.num_pages or 1),
    )


def _is_predictable(folder: Path, result: PointResult, seed: int | None) -> bool:
    """Whether it can be said what is decided in a run: where a model decides, only its trace says,
    which is of the run's own seed.
    """
    if not needs_trace(result.point):
        return True
    return seed is None and trace_file_of(folder, result.point).is_file()


def _fixed_points(measured: Sequence[PointResult], file: Path) -> list[PointResult]:
    chosen = choose(read_points(file), [result.point for result in measured])
    if chosen.absent:
        raise UsageError(
            f"--points {file}",
            "; ".join(entry.label for entry in chosen.absent),
            "points that were measured",
        )
    return [result for result in measured if result.point in chosen.points]
