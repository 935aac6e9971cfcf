"""A GPU's calibration as a time model: curves, corrected by whole steps, and how far off they are.

Puts core.op_curves, sim.curve_model and sim.uncertainty together; measures nothing.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from focus_bench.core.calibration import COUNT_NAMES, TIMED_PARTS
from focus_bench.core.costs import StepShape
from focus_bench.core.errors import UsageError
from focus_bench.core.hardware import Hardware, sheet_of_device
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.op_curves import BLOCK_LENGTH, GpuCalibration
from focus_bench.sim.curve_model import (
    NO_CORRECTIONS,
    Corrections,
    CurveModel,
    StepCapacity,
    missing_curves,
)
from focus_bench.sim.uncertainty import (
    Uncertainty,
    corrected,
    fit_corrections,
    kinds_of,
    parts_of,
    seconds_of,
    shape_of_counts,
    uncertainty_of,
)

FloatArray = npt.NDArray[np.float64]

# Assumed, not measured: the relative standard deviation of an efficiency that is carried over to
# what was not measured (another GPU or model, sizes beyond the curves).
CARRIED_SPREAD = 0.10
# What products may be rounded up to: the height of a tile, as whole steps show best.
ROW_TILES = (1, 64, 128)
_CURVES_OF_PART = {
    "prefill": ("project", "finish", "dense_finish", "attention_prefill"),
    "prefix": ("project", "finish", "dense_finish"),
    "eviction": ("importance", "selection", "compaction"),
    "suffix": ("project", "finish"),
    "head": ("head",),
    "swap": ("swap_out", "swap_in"),
}
# Steps of a mode that are compared with the curves; of these every fourth tells the tile.
MAX_STEPS, _TILE_STRIDE = 400, 4
_ALL_GRAPHS = 4096  # rows of a run that has graphs of every size that "auto" captures


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Measured steps of all modes: seconds [steps, parts], kinds, modes with shapes."""

    measured: FloatArray
    kinds: npt.NDArray[np.int64]
    shapes: tuple[tuple[str, StepShape], ...]


@dataclass(frozen=True)
class GpuProfile:
    """A calibration of one model on one GPU, ready to predict. Raises UsageError for one that lacks
    curves.
    """

    calibration: GpuCalibration
    _memo: dict[tuple[int, int], FloatArray] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        missing = missing_curves(self.calibration)
        if missing:
            raise UsageError(
                f"calibration of {self.calibration.device}",
                f"without {', '.join(missing)}",
                "one with every curve (calibrate again)",
            )

    def label_on(self, hardware: Hardware | None) -> str:
        """Where seconds come from that it predicts for a GPU (None: the one that was measured)."""
        measured = self.calibration
        label = f"calibrated on {measured.device} ({measured.date}, {measured.model})"
        if hardware is None or hardware == sheet_of_device(measured.device):
            return label
        return f"{label}, efficiencies carried over to {hardware.full_name}"

    def model(
        self, spec: ModelSpec, capacity: StepCapacity, *, hardware: Hardware | None = None
    ) -> CurveModel:
        """The time model of `spec` on `hardware` (None: the GPU that was measured)."""
        tile, corrections = self.fitted
        return CurveModel(
            spec=spec,
            calibration=self.calibration,
            capacity=capacity,
            hardware=hardware,
            corrections=corrections,
            row_tile=tile,
        )

    @cached_property
    def fitted(self) -> tuple[int, Corrections]:
        """The tile of rows and the corrections that explain the measured steps best."""
        if self._steps is None:
            return 1, NO_CORRECTIONS
        errors = {tile: self._error_of(tile, self._steps) for tile in ROW_TILES}
        best = min(errors, key=lambda tile: errors[tile])
        return best, fit_corrections(self._predicted(best, 1), self._steps.measured)

    def _error_of(self, tile: int, steps: _Steps) -> float:
        """Median error of some of the steps, corrections fitted to them."""
        predicted, measured = self._predicted(tile, _TILE_STRIDE), steps.measured[::_TILE_STRIDE]
        ours = corrected(predicted, fit_corrections(predicted, measured)).sum(axis=1)
        return float(np.median(np.abs(np.log(ours / measured.sum(axis=1)))))

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """How far whole steps are from the model, and measurements of one operation apart."""
        curves = self.calibration.curves
        spread = {
            part: float(
                np.median(np.concatenate([curves[name].spread for name in names if name in curves]))
            )
            for part, names in _CURVES_OF_PART.items()
        }
        if self._steps is None:
            nothing = np.zeros((0, len(TIMED_PARTS)))
            return uncertainty_of(nothing, nothing, np.zeros(0, np.int64), part_spread=spread)
        return uncertainty_of(
            self._predicted(self.fitted[0], 1),
            self._steps.measured,
            self._steps.kinds,
            fit=fit_corrections,
            part_spread=spread,
        )

    @cached_property
    def _steps(self) -> _Steps | None:
        """Steps of every mode; of many, evenly chosen ones."""
        measured, kinds, shapes = [], [], []
        for i, (mode, samples) in enumerate(self.calibration.steps.items()):
            stride = -(-samples.num_steps // MAX_STEPS) or 1
            measured.append(seconds_of(samples)[::stride])
            kinds.append(1000 * i + kinds_of(samples)[::stride])
            for step in range(0, samples.num_steps, stride):
                counts = {name: int(samples.counts[name][step]) for name in COUNT_NAMES}
                shapes.append((mode, shape_of_counts(counts, block_length=BLOCK_LENGTH)))
        if not shapes:
            return None
        return _Steps(
            measured=np.concatenate(measured), kinds=np.concatenate(kinds), shapes=tuple(shapes)
        )

    def _predicted(self, tile: int, stride: int) -> FloatArray:
        """Seconds [steps, parts] of every `stride`-th measured step by the curves alone."""
        key = (tile, stride)
        if key not in self._memo:
            assert self._steps is not None
            models = {
                mode: CurveModel(
                    spec=_measured_spec(self.calibration),
                    calibration=self.calibration,
                    capacity=StepCapacity(
                        max_rows=_ALL_GRAPHS // BLOCK_LENGTH,
                        block_length=BLOCK_LENGTH,
                        cuda_graphs="off" if mode == "eager" else "auto",
                    ),
                    sustains=False,  # the runs are short
                    row_tile=tile,
                )
                for mode in self.calibration.steps
            }
            steps = self._steps.shapes[::stride]
            self._memo[key] = np.array([parts_of(models[m].step_timing(s)) for m, s in steps])
        return self._memo[key]

    def uncertainty_of(self, model: CurveModel) -> Uncertainty:
        """That of a prediction made with a model, once it is made."""
        outside = model.tally.shares[2]
        own = self.uncertainty
        carried = np.sqrt(own.part_spread**2 + (CARRIED_SPREAD * outside) ** 2)
        return replace(own, part_spread=carried)


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
