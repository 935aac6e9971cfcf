"""A calibration of a GPU as it could have been measured: data sheet floors, and some more."""

from dataclasses import replace
from typing import Any

import numpy as np

from focus_bench.core.calibration import (
    TIMED_PARTS,
    CalibrationSamples,
    StepCounts,
    dimensions_of,
    samples_of,
)
from focus_bench.core.costs import DecodeShape, PrefillShape, StepShape
from focus_bench.core.curve_floors import Widths, floor_s
from focus_bench.core.curve_samples import Sample, curves_of
from focus_bench.core.hardware import HARDWARE
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.op_curves import CURVES, STEP_MODES, GpuCalibration, OpCurve

SPEC = PRESETS["sdar-8b"].replace(dtype="bfloat16")
SHEET = HARDWARE["h200"]
DEVICE = "NVIDIA H200"
SETTINGS = {
    "driver": "580.159.04",
    "cuda": "13.0",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "python": "3.12.3",
    "page_size": "64",
}
VALUES = {
    "rows": (1, 64, 128, 512, 2048),
    "tokens": (64, 1024),
    "sequences": (1, 32, 256),
    "queries": (32, 64, 128),
    "context": (256, 640, 1024),
    "bound": (1024, 4096, 16384),
    "history": (0, 512, 1024),
    "masked": (8, 16, 32),
    "fed": (8, 32),
    "kept": (8,),
}


def seconds_of(curve: str, point: tuple[int, ...]) -> float:
    """1.3 times the floor and 5 us."""
    return 1.3 * floor_s(curve, point, Widths.of(dimensions_of(SPEC)), SHEET) + 5e-6


def make_curves() -> dict[str, OpCurve]:
    """Every curve at a small grid, each point with three samples 1 % apart."""
    samples = []
    for name, kind in CURVES.items():
        grid = np.array(np.meshgrid(*(VALUES[axis] for axis in kind.axes), indexing="ij"))
        for values in grid.reshape(len(kind.axes), -1).T.tolist():
            point = tuple(values)
            samples += [
                Sample(
                    curve=name,
                    point=point,
                    round=0,
                    sample=index,
                    seconds=share * seconds_of(name, point),
                )
                for index, share in enumerate((0.99, 1.0, 1.01))
            ]
    return curves_of(samples)


def make_steps() -> CalibrationSamples:
    """Two decode steps of one sequence."""
    one = np.array([1], dtype=np.int64)
    shape = StepShape(
        prefill=PrefillShape(start=one[:0], length=one[:0], block_length=32),
        forwards=(
            DecodeShape(
                fed=32 * one,
                kept=32 * one,
                masked_fed=0 * one,
                first_keys=64 * one,
                later_keys=64 * one,
                head_rows=32,
            ),
        ),
        swapped_pages=0,
        page_size=64,
    )
    counts, seconds = samples_of([(StepCounts.of(shape), dict.fromkeys(TIMED_PARTS, 1e-3))] * 2)
    return CalibrationSamples(
        device=DEVICE,
        kind="gpu",
        date="2026-01-02",
        settings={},
        model=SPEC.name,
        dimensions=dimensions_of(SPEC),
        counts=counts,
        seconds=seconds,
    )


def make_calibration(**changes: Any) -> GpuCalibration:
    """A calibration that nothing is wrong with, but for the `changes`."""
    calibration = GpuCalibration(
        device=DEVICE,
        date="2026-01-02",
        settings=SETTINGS,
        model=SPEC.name,
        dimensions=dimensions_of(SPEC),
        kernel_revision="0123456789ab",
        duration_s=180.0,
        curves=make_curves(),
        ceilings={"copy_bytes_per_s": 4.24e12, "gemm_flops_per_s": 745e12},
        steps={mode: make_steps() for mode in STEP_MODES},
    )
    return replace(calibration, **changes)


def with_curve(calibration: GpuCalibration, name: str, **changes: Any) -> GpuCalibration:
    """The same with one curve's fields replaced."""
    curve = replace(calibration.curves[name], **changes)
    return replace(calibration, curves={**calibration.curves, name: curve})
