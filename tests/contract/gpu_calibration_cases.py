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
from focus_bench.core.expert_load import UNIFORM_LOAD, MeasuredLoad
from focus_bench.core.hardware import HARDWARE
from focus_bench.core.model_spec import PRESETS, ModelSpec
from focus_bench.core.op_curves import (
    CURVES,
    STEP_MODES,
    GpuCalibration,
    MeasuredExperts,
    OpCurve,
    curves_of_model,
)

SPEC = PRESETS["sdar-8b"].replace(dtype="bfloat16")
# Its first layer is dense, the others have experts.
MINI = PRESETS["llada2-mini"]
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


def experts_of(spec: ModelSpec) -> MeasuredExperts | None:
    """Of tokens that choose evenly and independently, the busiest expert twice as often."""
    if spec.experts is None:
        return None
    rows = VALUES["rows"]
    touched = tuple(round(UNIFORM_LOAD.expected_touched(spec.experts, n), 3) for n in rows)
    load = MeasuredLoad(
        rows=rows,
        touched=touched,
        largest_share=tuple(min(2.0 / n, 1.0 / spec.experts.experts_per_token) for n in touched),
    )
    return MeasuredExperts(spec=spec.experts, dense_width=spec.intermediate_size, load=load)


def seconds_of(curve: str, point: tuple[int, ...], spec: ModelSpec = SPEC) -> float:
    """1.3 times the floor and 5 us."""
    widths = Widths.of(dimensions_of(spec), experts_of(spec))
    return 1.3 * floor_s(curve, point, widths, SHEET) + 5e-6


def make_curves(spec: ModelSpec = SPEC) -> dict[str, OpCurve]:
    """Every curve of a model at a small grid, each point with three samples 1 % apart."""
    samples = []
    for name in curves_of_model(spec.experts):
        axes = CURVES[name].axes
        grid = np.array(np.meshgrid(*(VALUES[axis] for axis in axes), indexing="ij"))
        for values in grid.reshape(len(axes), -1).T.tolist():
            point = tuple(values)
            samples += [
                Sample(
                    curve=name,
                    point=point,
                    round=0,
                    sample=index,
                    seconds=share * seconds_of(name, point, spec),
                )
                for index, share in enumerate((0.99, 1.0, 1.01))
            ]
    return curves_of(samples)


def make_steps(spec: ModelSpec = SPEC) -> CalibrationSamples:
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
        model=spec.name,
        dimensions=dimensions_of(spec),
        counts=counts,
        seconds=seconds,
    )


def make_calibration(*, spec: ModelSpec = SPEC, **changes: Any) -> GpuCalibration:
    """A calibration that nothing is wrong with, but for the `changes`."""
    calibration = GpuCalibration(
        device=DEVICE,
        date="2026-01-02",
        settings=SETTINGS,
        model=spec.name,
        dimensions=dimensions_of(spec),
        kernel_revision="0123456789ab",
        duration_s=180.0,
        curves=make_curves(spec),
        ceilings={"copy_bytes_per_s": 4.24e12, "gemm_flops_per_s": 745e12},
        steps={mode: make_steps(spec) for mode in STEP_MODES},
        experts=experts_of(spec),
    )
    return replace(calibration, **changes)


def with_curve(calibration: GpuCalibration, name: str, **changes: Any) -> GpuCalibration:
    """The same with one curve's fields replaced."""
    curve = replace(calibration.curves[name], **changes)
    return replace(calibration, curves={**calibration.curves, name: curve})
