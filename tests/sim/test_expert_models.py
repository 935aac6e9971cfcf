"""Predictions for models with experts: their load, and which profiles apply."""

import dataclasses

import numpy as np
import pytest
from gpu_calibration_cases import make_calibration

from focus_bench.core.calibration import CalibrationSamples, dimensions_of, samples_of
from focus_bench.core.costs import DecodeShape, PrefillShape, StepShape
from focus_bench.core.errors import UsageError
from focus_bench.core.expert_load import ExpertLoad
from focus_bench.core.hardware import get_hardware
from focus_bench.core.model_spec import PRESETS, ModelSpec
from focus_bench.sim.calibration import Profile, ProfileModel
from focus_bench.sim.curve_model import CurveModel
from focus_bench.sim.roofline import RooflineModel
from focus_bench.sim.step_capacity import StepCapacity

MINI = PRESETS["llada2-mini"]
NO_PREFILL = np.array([], dtype=np.int64)


def one_block() -> StepShape:
    """A step of one sequence, whose time is that of reading weights."""
    fed = np.array([32])
    forward = DecodeShape(
        fed=fed,
        kept=fed,
        masked_fed=np.array([0]),
        first_keys=np.array([64]),
        later_keys=np.array([64]),
        head_rows=30,
    )
    return StepShape(
        prefill=PrefillShape(start=NO_PREFILL, length=NO_PREFILL, block_length=32),
        forwards=(forward,),
        swapped_pages=0,
        page_size=64,
    )


def test_a_load_on_few_experts_is_faster_by_the_bytes_it_does_not_read() -> None:
    h200 = get_hardware("h200")
    few = ExpertLoad(shares=(*[1 / 8] * 8, *[0.0] * 248))
    uniform = RooflineModel(spec=MINI, hardware=h200)
    skewed = RooflineModel(spec=MINI, hardware=h200, expert_load=few)
    saved_s = (
        uniform.step_timing(one_block()).duration_s - skewed.step_timing(one_block()).duration_s
    )
    assert MINI.experts is not None
    touched = 256 * (1 - (1 - 8 / 256) ** 32)
    expert_bytes = 3 * MINI.hidden_size * MINI.experts.expert_size * MINI.dtype_bytes
    unread = 19 * (touched - 8) * expert_bytes
    bandwidth = h200.memory_bandwidth * uniform.efficiency.bandwidth
    assert saved_s == pytest.approx(unread / bandwidth, rel=0.01)


def profile_of(spec: ModelSpec) -> Profile:
    counts, seconds = samples_of([])
    samples = CalibrationSamples(
        device="a device",
        kind="gpu",
        date="2026-01-02",
        settings={},
        model=spec.name,
        dimensions=dimensions_of(spec),
        counts=counts,
        seconds=seconds,
    )
    return Profile(
        name="measured",
        samples=samples,
        knots=(64.0,),
        coefficients={"gemm_flop_at_64_rows": 1e-12},
        error_p50=0.0,
        error_p90=0.0,
        error_total=0.0,
    )


def test_profiles_are_not_carried_over_to_other_models_with_experts() -> None:
    ProfileModel(spec=MINI, profile=profile_of(MINI))
    ProfileModel(spec=PRESETS["sdar-4b"], profile=profile_of(PRESETS["sdar-8b"]))
    for measured in ("sdar-8b", "llada2-flash"):
        with pytest.raises(UsageError, match=r"--gpu: 'measured'.*measured on llada2-mini"):
            ProfileModel(spec=MINI, profile=profile_of(PRESETS[measured]))


def test_operations_are_not_carried_over_to_other_kinds_of_models() -> None:
    """Dense, mixed, or all layers with experts."""
    dense, mixed, experts = (
        make_calibration(spec=PRESETS[name]) for name in ("sdar-8b", "llada2-mini", "sdar-30b-a3b")
    )
    capacity = StepCapacity(max_rows=8, block_length=32)
    for calibration, names in (
        (dense, ("sdar-4b",)),
        (mixed, ("llada2-mini", "llada2-flash", "sdar-30b-a3b")),
        (experts, ("sdar-30b-a3b",)),
    ):
        for name in names:
            CurveModel(spec=PRESETS[name], calibration=calibration, capacity=capacity)
    for calibration, name in ((dense, "llada2-mini"), (mixed, "sdar-4b"), (experts, "llada2-mini")):
        said = f"--gpu: 'operations of {calibration.model} on NVIDIA H200'.*layers as {name} has"
        with pytest.raises(UsageError, match=said):
            CurveModel(spec=PRESETS[name], calibration=calibration, capacity=capacity)


def test_time_of_products_scales_with_the_channels_of_one_token() -> None:
    narrow = dataclasses.replace(MINI.experts, experts_per_token=4)
    assert dimensions_of(MINI)["intermediate_size"] == round((5120 + 19 * 9 * 512) / 20)
    assert dimensions_of(MINI.replace(experts=narrow)) != dimensions_of(MINI)
    assert dimensions_of(PRESETS["sdar-8b"])["intermediate_size"] == 12288
