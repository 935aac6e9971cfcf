"""A GPU's calibration as a time model: curves, corrected by whole steps, and how far off they are.

Puts core.op_curves, sim.curve_model and sim.uncertainty together; measures nothing.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from focus_bench.core.calibration import COUNT_NAMES, CalibrationSamples
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
    "prefill": ("project", "finish", "attention_prefill"),
    "prefix": ("project", "finish"),
    "eviction": ("importance", "selection", "compaction"),
    "suffix": ("project", "finish"),
    "head": ("head",),
    "swap": ("swap_out", "swap_in"),
}
_ALL_GRAPHS = 4096  # rows of a run that has graphs of every size that "auto" captures


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Measured steps of all modes: seconds [steps, parts], their kinds, and what predicts them."""

    measured: FloatArray
    kinds: npt.NDArray[np.int64]
    predicted: dict[int, FloatArray]


@dataclass(frozen=True)
class GpuProfile:
    """A calibration of one model on one GPU, ready to predict. Raises UsageError for one that lacks
    curves.
    """

    calibration: GpuCalibration

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
        steps = self._steps
        if steps is None:
            return 1, NO_CORRECTIONS
        best: tuple[float, int, Corrections] | None = None
        for tile, predicted in steps.predicted.items():
            corrections = fit_corrections(predicted, steps.measured)
            ours = corrected(predicted, corrections).sum(axis=1)
            error = float(np.median(np.abs(np.log(ours / steps.measured.sum(axis=1)))))
            if best is None or error < best[0]:
                best = (error, tile, corrections)
        assert best is not None
        return best[1], best[2]

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """How far whole steps are from the model, and measurements of one operation apart."""
        spread = {
            part: float(
                np.median(np.concatenate([self.calibration.curves[n].spread for n in names]))
            )
            for part, names in _CURVES_OF_PART.items()
        }
        steps = self._steps
        if steps is None:
            nothing = np.zeros((0, len(spread) + 1))
            return uncertainty_of(nothing, nothing, np.zeros(0, np.int64), part_spread=spread)
        return uncertainty_of(
            steps.predicted[self.fitted[0]],
            steps.measured,
            steps.kinds,
            fit=fit_corrections,
            part_spread=spread,
        )

    @cached_property
    def _steps(self) -> _Steps | None:
        found = [(mode, s) for mode, s in self.calibration.steps.items() if s.num_steps]
        if not found:
            return None
        return _Steps(
            measured=np.concatenate([seconds_of(samples) for _, samples in found]),
            kinds=np.concatenate([1000 * i + kinds_of(s) for i, (_, s) in enumerate(found)]),
            predicted={
                tile: np.concatenate([self._predicted(mode, s, tile) for mode, s in found])
                for tile in ROW_TILES
            },
        )

    def _predicted(self, mode: str, samples: CalibrationSamples, tile: int) -> FloatArray:
        """Seconds [steps, parts] of measured steps by the curves alone."""
        model = CurveModel(
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
        rows = []
        for i in range(samples.num_steps):
            counts = {name: int(samples.counts[name][i]) for name in COUNT_NAMES}
            shape = shape_of_counts(counts, block_length=BLOCK_LENGTH)
            rows.append(parts_of(model.step_timing(shape)))
        return np.array(rows)

    def uncertainty_of(self, model: CurveModel) -> Uncertainty:
        """That of a prediction made with a model, once it is made."""
        outside = model.tally.shares[2]
        own = self.uncertainty
        carried = np.sqrt(own.part_spread**2 + (CARRIED_SPREAD * outside) ** 2)
        return replace(own, part_spread=carried)


def _measured_spec(calibration: GpuCalibration) -> ModelSpec:
    """A model of the measured dimensions."""
    sizes = {n: int(v) for n, v in calibration.dimensions.items() if n != "dtype"}
    return ModelSpec(
        name=calibration.model,
        num_layers=sizes["num_layers"],
        hidden_size=sizes["hidden_size"],
        num_q_heads=sizes["num_q_heads"],
        num_kv_heads=sizes["num_kv_heads"],
        head_dim=sizes["head_dim"],
        intermediate_size=sizes["intermediate_size"],
        vocab_size=sizes["vocab_size"],
        mask_token_id=0,
        dtype=str(calibration.dimensions["dtype"]),
    )
