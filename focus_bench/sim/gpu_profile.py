"""A GPU's calibration as a time model: curves, corrected by whole steps, and how far off they are.

Puts core.op_curves, sim.curve_model and sim.step_fit together; measures nothing.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from focus_bench.core.errors import UsageError
from focus_bench.core.hardware import Hardware, sheet_of_device
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.op_curves import EAGER, GRAPH, STEP_MODES, GpuCalibration
from focus_bench.core.step_fits import is_alike
from focus_bench.sim.curve_model import CurveModel, missing_curves
from focus_bench.sim.step_capacity import StepCapacity
from focus_bench.sim.step_fit import StepFit
from focus_bench.sim.uncertainty import Uncertainty

# Assumed, not measured: the relative standard deviation of an efficiency that is carried over to
# what was not measured (another GPU or model, sizes beyond the curves).
CARRIED_SPREAD = 0.10


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

    def fit(self, capacity: StepCapacity) -> StepFit:
        """What measured steps say of runs of that capacity."""
        return self.fit_of(GRAPH if capacity.buckets else EAGER)

    def fit_of(self, mode: str) -> StepFit:
        """The same, of runs with graphs or without (STEP_MODES)."""
        return self._fits[mode]

    @cached_property
    def _fits(self) -> dict[str, StepFit]:
        return {m: StepFit(calibration=self.calibration, has_graphs=m == GRAPH) for m in STEP_MODES}

    def model(
        self, spec: ModelSpec, capacity: StepCapacity, *, hardware: Hardware | None = None
    ) -> CurveModel:
        """The time model of `spec` on `hardware` (None: the GPU that was measured)."""
        of, corrections = self.fit(capacity).fitted
        return CurveModel(
            spec=spec,
            calibration=self.calibration,
            capacity=capacity,
            hardware=hardware,
            corrections=corrections,
            row_tile=of.row_tile,
            distinct_per_block=of.distinct_per_block,
        )

    def uncertainty_of(self, model: CurveModel) -> Uncertainty:
        """That of a prediction made with a model, once it is made."""
        outside = model.tally.shares[2]
        own = self.fit(model.capacity).uncertainty
        carried = np.sqrt(own.part_spread**2 + (CARRIED_SPREAD * outside) ** 2)
        return replace(own, part_spread=carried)


def with_fits(calibration: GpuCalibration) -> GpuCalibration:
    """The calibration with all that predictions would fit to its steps, made anew."""
    bare = GpuProfile(replace(calibration, fits={}))
    return replace(calibration, fits={mode: bare.fit_of(mode).to_keep for mode in STEP_MODES})


def fit_differences(calibration: GpuCalibration) -> list[str]:
    """The fits of a calibration that its own steps do not give, one line each."""
    own = with_fits(calibration).fits
    return [
        f"fits {mode}: not those of its own steps (calibrate again)"
        for mode, kept in calibration.fits.items()
        if mode not in own or not is_alike(kept, own[mode])
    ]
