"""Steps of models with experts from measured curves: by hand, and on a GPU of known formulas."""

import numpy as np
import pytest
from analytic_gpu import AnalyticGpu, calibrate, calibrate_at, run_steps, with_steps
from sim_cases import ConstantTime, make_point, make_workload, simulate

from focus_bench.core.config import SchedulerConfig
from focus_bench.core.costs import DecodeShape, PrefillShape, StepShape
from focus_bench.core.expert_load import ExpertLoad
from focus_bench.core.hardware import get_hardware
from focus_bench.core.model_spec import PRESETS, ModelSpec
from focus_bench.core.op_curves import GpuCalibration
from focus_bench.engine.calibration_grid import Limits, planned_points
from focus_bench.sim.curve_model import CurveModel
from focus_bench.sim.domain import domain_of
from focus_bench.sim.gpu_profile import GpuProfile
from focus_bench.sim.step_capacity import StepCapacity

MINI, SDAR_MOE = PRESETS["llada2-mini"], PRESETS["sdar-30b-a3b"]
LIMITS = Limits(cache_tokens=800_000, sequence_tokens=32_768, page_size=64)
NONE = np.zeros(0, dtype=np.int64)
NO_PREFILL = PrefillShape(start=NONE, length=NONE, block_length=32)
# Eight experts that all tokens go to.
FEW = ExpertLoad(shares=(*[1 / 8] * 8, *[0.0] * 248))
each_model = pytest.mark.parametrize("spec", [MINI, SDAR_MOE], ids=lambda spec: spec.name)


def decode_step(kept: int, *, sequences: int = 4, keys: int = 512) -> StepShape:
    """A step of sequences all alike that evict nothing, yet keep fewer than they are fed."""
    each = np.ones(sequences, dtype=np.int64)
    forward = DecodeShape(
        fed=32 * each,
        kept=kept * each,
        masked_fed=0 * each,
        first_keys=keys * each,
        later_keys=keys * each,
        head_rows=kept * sequences,
    )
    return StepShape(prefill=NO_PREFILL, forwards=(forward,), swapped_pages=0, page_size=64)


def at(calibration: GpuCalibration, name: str, rows: float) -> float:
    """A curve over rows, on the straight line between its points."""
    curve = calibration.curves[name]
    return float(np.interp(rows, curve.points[:, 0], curve.seconds))


def attention(calibration: GpuCalibration, *point: float) -> float:
    curve = calibration.curves["attention_decode"]
    return float(curve.seconds[(curve.points == point).all(axis=1)][0])


@each_model
def test_a_step_is_the_sum_of_its_curves(spec: ModelSpec) -> None:
    measured = calibrate(AnalyticGpu(spec=spec))
    layers = spec.num_layers
    model = CurveModel(
        spec=spec,
        calibration=measured,
        capacity=StepCapacity(max_rows=64, block_length=32, experts=True),
    )
    found = model.step_timing(decode_step(9))
    first_finish = "dense_finish" if spec.num_dense_layers else "finish"
    assert found.prefix_s == pytest.approx(
        at(measured, "embed_rope", 128)
        + 2 * at(measured, "project", 128)
        + at(measured, first_finish, 128)
        + attention(measured, 4, 32, 512)
    )
    # 36 tokens are padded to 64 rows, of which the experts see the tokens alone.
    finish_s = (
        at(measured, "finish", 64) - at(measured, "experts", 64) + at(measured, "experts", 36)
    )
    nine_s = 0.75 * attention(measured, 4, 8, 512) + 0.25 * attention(measured, 4, 12, 512)
    assert found.suffix_s == pytest.approx(
        (layers - 2) * at(measured, "project", 64) + (layers - 1) * (finish_s + nine_s)
    )
    assert domain_of(model.tally.shares) == "calibrated"
    chunk = PrefillShape(start=np.array([0]), length=np.array([512]), block_length=32)
    prefill = StepShape(prefill=chunk, forwards=(), swapped_pages=0, page_size=64)
    dense = spec.num_dense_layers
    curve = measured.curves["attention_prefill"]
    of_chunk = float(curve.seconds[(curve.points == (1, 512, 0)).all(axis=1)][0])
    assert model.step_timing(prefill).prefill_s == pytest.approx(
        at(measured, "embed_rope", 512)
        + layers * at(measured, "project", 512)
        + (dense * at(measured, "dense_finish", 512) if dense else 0.0)
        + (layers - 1 - dense) * at(measured, "finish", 512)
        + (layers - 1) * of_chunk
    )


def shapes_of(policy: str, batch: int) -> list[StepShape]:
    rng = np.random.default_rng([batch, len(policy)])
    prompts = np.exp(rng.uniform(np.log(20), np.log(3000), size=batch + batch // 3 + 1))
    constant = ConstantTime()
    point = make_point(policy, scheduler=SchedulerConfig(batch_size=batch))
    simulate(point, make_workload([int(p) for p in prompts], 40), cost_model=constant)
    return [shape for shape in constant.shapes if shape.forwards]


@each_model
def test_the_points_that_calibrate_measures_are_enough(spec: ModelSpec) -> None:
    gpu = AnalyticGpu(spec=spec)
    measured = calibrate_at(gpu, planned_points(LIMITS, spec.experts))
    for policy, batch, graphs in (
        ("focus", 1, "auto"),
        ("focus", 40, "auto"),
        ("baseline", 9, "off"),
    ):
        capacity = StepCapacity(max_rows=batch, block_length=32, cuda_graphs=graphs, experts=True)
        model = CurveModel(spec=spec, calibration=measured, capacity=capacity)
        gpu.capacity, gpu.cuda_graphs = batch * 32, graphs
        shapes = shapes_of(policy, batch)
        truth = sum(gpu.step_timing(shape).duration_s for shape in shapes)
        found = sum(model.step_timing(shape).duration_s for shape in shapes)
        print(f"{spec.name} {policy} {batch}: {found / truth - 1.0:+.4f}")
        assert found == pytest.approx(truth, rel=0.03), (policy, batch)
        assert domain_of(model.tally.shares) != "extrapolated", (policy, batch)


def test_whole_steps_correct_and_widen_as_those_of_a_dense_model() -> None:
    gpu = AnalyticGpu(spec=MINI, noise=0.01)
    measured = calibrate(gpu)
    for mode, graphs in (("graph", "auto"), ("eager", "off")):
        steps = [
            step
            for policy, batch in (("baseline", 4), ("focus", 16))
            for step in run_steps(gpu, policy, batch, cuda_graphs=graphs)
        ]
        measured = with_steps(measured, mode, steps)
    profile, capacity = (
        GpuProfile(measured),
        StepCapacity(max_rows=16, block_length=32, experts=True),
    )
    fit = profile.fit(capacity)
    corrections = fit.fitted[1]
    for part in ("prefix", "suffix", "head"):
        assert corrections.scale[part] == pytest.approx(1.0, abs=0.03)
    assert 0.0 < fit.uncertainty.part_spread.max() < 0.1
    model = profile.model(MINI, capacity)
    quiet = AnalyticGpu(spec=MINI, capacity=16 * 32)
    for kept in (2, 9, 32):
        truth = quiet.step_timing(decode_step(kept, sequences=16)).duration_s
        found = model.step_timing(decode_step(kept, sequences=16)).duration_s
        assert found == pytest.approx(truth, rel=0.04)
    assert domain_of(model.tally.shares) == "calibrated"
    assert model.label.endswith("llada2-mini)")


def test_another_load_scales_what_reading_experts_takes() -> None:
    measured = calibrate(AnalyticGpu(spec=MINI))
    capacity = StepCapacity(max_rows=64, block_length=32, experts=True)
    few = CurveModel(spec=MINI, calibration=measured, capacity=capacity, expert_load=FEW)
    own = CurveModel(spec=MINI, calibration=measured, capacity=capacity)
    skewed = AnalyticGpu(spec=MINI, load=FEW, capacity=64 * 32)
    saved = []
    for kept in (4, 8, 16):
        step = decode_step(kept)
        truth, found = skewed.step_timing(step), few.step_timing_after(0.0, step)
        usual = own.step_timing_after(0.0, step)
        saved.append(1.0 - found.suffix_s / usual.suffix_s)
        assert found.suffix_s == pytest.approx(truth.suffix_s, rel=0.1)
        # Layer 0 has no experts.
        assert found.prefix_s == usual.prefix_s
    assert min(saved) > 0.3
    assert domain_of(few.tally.shares) == "extrapolated"
    assert domain_of(own.tally.shares) == "calibrated"


@each_model
def test_another_gpu_and_more_rows_take_over_efficiencies(spec: ModelSpec) -> None:
    sheet, own = get_hardware("h100-pcie"), get_hardware("h200")
    slower = AnalyticGpu(
        spec=spec,
        capacity=64 * 32,
        flops_per_s=9.0e14 * sheet.dense_16bit_flops / own.dense_16bit_flops,
        bytes_per_s=4.2e12 * sheet.memory_bandwidth / own.memory_bandwidth,
    )
    gpu = AnalyticGpu(spec=spec, capacity=64 * 32)
    capacity = StepCapacity(max_rows=64, block_length=32, experts=True)
    there = CurveModel(spec=spec, calibration=calibrate(gpu), capacity=capacity, hardware=sheet)
    short = CurveModel(spec=spec, calibration=calibrate(gpu, most_rows=512), capacity=capacity)
    carried, beyond = [], []
    for kept in (1, 4, 10, 32):
        step = decode_step(kept, sequences=64)
        for model, truth, errors in ((there, slower, carried), (short, gpu, beyond)):
            ours, theirs = (of.step_timing(step).duration_s for of in (model, truth))
            errors.append(abs(ours / theirs - 1.0))
    print(spec.name, carried, beyond)
    assert max(carried) < 0.12
    assert max(beyond) < 0.05
    assert domain_of(there.tally.shares) == domain_of(short.tally.shares) == "extrapolated"


@pytest.mark.parametrize("name", ["llada2-flash", "sdar-30b-a3b"])
def test_another_model_with_experts_takes_over_efficiencies(name: str) -> None:
    """Of 256 experts, and of 128: whose bytes are those that evenly spread tokens read."""
    spec = PRESETS[name]
    capacity = StepCapacity(max_rows=64, block_length=32, experts=True)
    measured = calibrate(AnalyticGpu(spec=MINI))
    model = CurveModel(spec=spec, calibration=measured, capacity=capacity)
    gpu = AnalyticGpu(spec=spec, capacity=64 * 32)
    for kept, sequences in ((4, 4), (9, 16), (32, 64)):
        step = decode_step(kept, sequences=sequences)
        truth, found = gpu.step_timing(step).duration_s, model.step_timing(step).duration_s
        assert found == pytest.approx(truth, rel=0.06)
    assert domain_of(model.tally.shares) == "extrapolated"
    assert model.label.endswith(f"efficiencies carried over to {name}")


def test_whole_steps_tell_how_many_tokens_of_a_block_choose_for_themselves() -> None:
    """Curves are of unrelated tokens; the masked ones of a block go to the same few experts."""
    gpu = AnalyticGpu(spec=MINI, unlike=4.0)
    measured = calibrate(gpu)
    runs = (("baseline", 1), ("baseline", 16), ("focus", 16), ("delayed-cache-neighbor", 16))
    steps = [step for policy, batch in runs for step in run_steps(gpu, policy, batch)]
    profile = GpuProfile(with_steps(measured, "graph", steps))
    gpu.capacity = 8 * 32
    model = profile.model(MINI, StepCapacity(max_rows=8, block_length=32, experts=True))
    assert model.distinct_per_block in (3.0, 4.0)
    unrelated = CurveModel(
        spec=MINI, calibration=measured, capacity=model.capacity, row_tile=model.row_tile
    )
    for kept, sequences in ((32, 1), (32, 8), (6, 8), (16, 3)):
        step = decode_step(kept, sequences=sequences)
        truth = gpu.step_timing(step).suffix_s
        assert model.step_timing_after(0.0, step).suffix_s == pytest.approx(truth, rel=0.06)
        assert unrelated.step_timing_after(0.0, step).suffix_s > 1.1 * truth
