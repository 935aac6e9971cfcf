"""What a calibration's whole steps say about its curves: corrections, tile, and uncertainty.

Puts sim.curve_model and sim.uncertainty together; measures nothing, predicts no run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from focus_bench.core.calibration import COUNT_NAMES, TIMED_PARTS
from focus_bench.core.costs import StepShape
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.op_curves import BLOCK_LENGTH, EAGER, GRAPH, GpuCalibration
from focus_bench.core.step_fits import StepsFit
from focus_bench.sim.corrections import NO_CORRECTIONS, Corrections
from focus_bench.sim.curve_model import CurveModel
from focus_bench.sim.curves import CurveFunction, Tally
from focus_bench.sim.step_capacity import StepCapacity
from focus_bench.sim.uncertainty import (
    NO_RUN,
    Uncertainty,
    corrected,
    fit_corrections,
    parts_of,
    runs_of,
    seconds_of,
    shape_of_counts,
    uncertainty_of,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# What products may be rounded up to: the height of a tile, as whole steps show best.
ROW_TILES = (1, 64, 128)
# How many tokens of a block choose experts for themselves, where a model has experts.
DISTINCT_PER_BLOCK = (math.inf, *(2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0))
_CURVES_OF_PART = {
    "prefill": ("project", "finish", "dense_finish", "attention_prefill"),
    "prefix": ("project", "finish", "dense_finish"),
    "eviction": ("importance", "selection", "compaction"),
    "suffix": ("project", "finish"),
    "head": ("head",),
    "swap": ("swap_out", "swap_in"),
}
# A run of which a smaller share of the steps is alike is no example of a whole one.
_WHOLE = 0.8
# Steps of a mode that are compared with the curves; of these every fourth tells the tile.
MAX_STEPS, _TILE_STRIDE = 400, 4
_ALL_GRAPHS = 8192  # tokens of a step of a run that has graphs of every size measured


@dataclass(frozen=True, kw_only=True)
class FittedShape:
    """What steps are made of beside what the curves say; as in CurveModel."""

    row_tile: int = 1
    distinct_per_block: float = math.inf


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Measured steps: seconds [steps, parts], runs, numbers of sequences, modes, seconds since the
    run began, shapes.
    """

    measured: FloatArray
    runs: IntArray
    sequences: FloatArray
    shapes: tuple[tuple[str, float, StepShape], ...]


@dataclass(frozen=True, kw_only=True)
class StepFit:
    """The steps of a calibration that are as those of runs with graphs, or without.

    Runs with graphs launch kernel by kernel what is larger than any graph, so large steps without
    graphs are theirs too. Small ones, which wait for the host and vary with it, are not.
    """

    calibration: GpuCalibration
    has_graphs: bool
    _memo: dict[tuple[FittedShape, int], FloatArray] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def fitted(self) -> tuple[FittedShape, Corrections]:
        """What explains the measured steps best, corrections last."""
        kept = self._kept
        if kept is not None:
            of = FittedShape(row_tile=kept.row_tile, distinct_per_block=kept.distinct_per_block)
            return of, Corrections(
                scale=kept.scale, constant_s=kept.constant_s, per_sequence_s=kept.per_sequence_s
            )
        steps = self._steps
        if steps is None:
            return FittedShape(), NO_CORRECTIONS
        best = FittedShape()
        if self.calibration.experts is not None:
            shapes = [replace(best, distinct_per_block=tokens) for tokens in DISTINCT_PER_BLOCK]
            best = min(shapes, key=lambda of: self._error_of(of, steps))
        shapes = [replace(best, row_tile=tile) for tile in ROW_TILES]
        best = min(shapes, key=lambda of: self._error_of(of, steps))
        predicted = self._predicted(steps, best, 1)
        return best, fit_corrections(predicted, steps.measured, steps.sequences)

    @property
    def to_keep(self) -> StepsFit:
        """The same, for the profile's file."""
        (of, corrections), found = self.fitted, self.uncertainty
        return StepsFit(**vars(of), **vars(corrections), **vars(found))

    @property
    def _kept(self) -> StepsFit | None:
        """What the profile's file has; None: nothing."""
        return self.calibration.fits.get(GRAPH if self.has_graphs else EAGER)

    def _error_of(self, of: FittedShape, steps: _Steps) -> float:
        """Median error of some of the steps, corrections fitted to them."""
        predicted = self._predicted(steps, of, _TILE_STRIDE)
        measured, sequences = (x[::_TILE_STRIDE] for x in (steps.measured, steps.sequences))
        found = fit_corrections(predicted, measured, sequences)
        ours = corrected(predicted, found, sequences).sum(axis=1)
        return float(np.median(np.abs(np.log(ours / measured.sum(axis=1)))))

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """How far whole steps are from the model, and measurements of one operation apart."""
        kept = self._kept
        if kept is not None:
            return Uncertainty(
                runs=kept.runs, step_spread=kept.step_spread, part_spread=kept.part_spread
            )
        curves = self.calibration.curves
        spread = {
            part: float(
                np.median(np.concatenate([curves[name].spread for name in names if name in curves]))
            )
            for part, names in _CURVES_OF_PART.items()
        }
        steps = self._steps
        if steps is None:
            nothing = np.zeros((0, len(TIMED_PARTS)))
            return uncertainty_of(nothing, nothing, np.zeros(0, np.int64), part_spread=spread)
        predicted = self._predicted(steps, self.fitted[0], 1)

        def refit(by: BoolArray) -> FloatArray:
            found = fit_corrections(predicted[by], steps.measured[by], steps.sequences[by])
            return corrected(predicted, found, steps.sequences)

        return uncertainty_of(
            predicted, steps.measured, steps.runs, refit=refit, part_spread=spread
        )

    @cached_property
    def _steps(self) -> _Steps | None:
        """Of many, evenly chosen ones; all of them where none is alike."""
        measured, runs, sequences, shapes = [], [], [], []
        for i, (mode, samples) in enumerate(self.calibration.steps.items()):
            stride = -(-samples.num_steps // MAX_STEPS) or 1
            seconds, run = seconds_of(samples), runs_of(samples)
            busy_s = _seconds_before(seconds.sum(axis=1), run)
            measured.append(seconds[::stride])
            runs.append(1000 * i + run[::stride])
            sequences.append(samples.counts["rows"][::stride].astype(np.float64))
            for step in range(0, samples.num_steps, stride):
                counts = {name: int(samples.counts[name][step]) for name in COUNT_NAMES}
                shape = shape_of_counts(counts, block_length=BLOCK_LENGTH)
                shapes.append((mode, float(busy_s[step]), shape))
        if not shapes:
            return None
        chosen = np.array([self._is_alike(mode, shape) for mode, _, shape in shapes])
        if not chosen.any():
            chosen[:] = True
        of_run = np.concatenate(runs)
        for run in np.unique(of_run):
            own = of_run == run
            if chosen[own].mean() < _WHOLE:
                of_run[own] = NO_RUN
        return _Steps(
            measured=np.concatenate(measured)[chosen],
            runs=of_run[chosen],
            sequences=np.concatenate(sequences)[chosen],
            shapes=tuple(step for step, is_chosen in zip(shapes, chosen, strict=True) if is_chosen),
        )

    def _is_alike(self, mode: str, shape: StepShape) -> bool:
        if not self.has_graphs:
            return mode == EAGER
        largest = max(self._capacity(GRAPH).buckets)
        return mode == GRAPH or any(
            min(forward.fed.sum(), forward.kept.sum()) > largest for forward in shape.forwards
        )

    def _capacity(self, mode: str) -> StepCapacity:
        return StepCapacity(
            max_rows=_ALL_GRAPHS // BLOCK_LENGTH,
            block_length=BLOCK_LENGTH,
            cuda_graphs="off" if mode == EAGER else "auto",
            experts=self.calibration.experts is not None,
        )

    @cached_property
    def _models(self) -> dict[str, CurveModel]:
        """Of each mode, with nothing fitted."""
        curves: Mapping[str, CurveFunction] | None = None
        models = {}
        for mode in self.calibration.steps:
            models[mode] = CurveModel(
                spec=_measured_spec(self.calibration),
                calibration=self.calibration,
                capacity=self._capacity(mode),
                shared=curves,
            )
            curves = models[mode].curves
        return models

    def _predicted(self, steps: _Steps, of: FittedShape, stride: int) -> FloatArray:
        """Seconds [steps, parts] of every `stride`-th measured step by the curves alone."""
        key = (of, stride)
        if key not in self._memo:
            models = {
                mode: replace(
                    model,
                    tally=Tally(),
                    row_tile=of.row_tile,
                    distinct_per_block=of.distinct_per_block,
                )
                for mode, model in self._models.items()
            }
            shapes = steps.shapes[::stride]
            self._memo[key] = np.array(
                [parts_of(models[m].step_timing_after(busy_s, s)) for m, busy_s, s in shapes]
            )
        return self._memo[key]


def _seconds_before(seconds: FloatArray, runs: IntArray) -> FloatArray:
    """Seconds [steps] from the start of a step's run to its own."""
    ends = np.cumsum(seconds)
    first = np.searchsorted(runs, runs)  # of each step's run
    return ends - seconds - (ends - seconds)[first]


def _measured_spec(calibration: GpuCalibration) -> ModelSpec:
    """A model of the measured dimensions."""
    sizes = {n: int(v) for n, v in calibration.dimensions.items() if n != "dtype"}
    experts = calibration.experts
    return ModelSpec(
        name=calibration.model,
        num_layers=sizes["num_layers"],
        hidden_size=sizes["hidden_size"],
        num_q_heads=sizes["num_q_heads"],
        num_kv_heads=sizes["num_kv_heads"],
        head_dim=sizes["head_dim"],
        intermediate_size=sizes["intermediate_size"] if experts is None else experts.dense_width,
        vocab_size=sizes["vocab_size"],
        mask_token_id=0,
        dtype=str(calibration.dimensions["dtype"]),
        experts=None if experts is None else experts.spec,
    )
