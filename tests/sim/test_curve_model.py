"""Steps from measured curves: against a GPU of known formulas, against roofline and plain table."""

import dataclasses

import numpy as np
import pytest
from analytic_gpu import AnalyticGpu, calibrate, calibrate_at, run_steps, with_steps
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from sim_cases import ConstantTime, make_point, make_workload, simulate

from focus_bench.core.config import SchedulerConfig
from focus_bench.core.costs import DecodeShape, PrefillShape, StepShape
from focus_bench.core.errors import UsageError
from focus_bench.core.gpu_profile_file import load_gpu_calibration
from focus_bench.core.hardware import get_hardware
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.op_curves import CURVES, GpuCalibration
from focus_bench.core.token_buckets import MAX_GRAPH_TOKENS, token_bucket
from focus_bench.engine.calibration_grid import Limits, planned_points
from focus_bench.sim.calibration import bundled_profiles
from focus_bench.sim.curve_model import SETTLING_S, CurveModel, as_new
from focus_bench.sim.domain import domain_note, domain_of, shares_text
from focus_bench.sim.gpu_profile import GpuProfile, with_fits
from focus_bench.sim.roofline import RooflineModel
from focus_bench.sim.step_capacity import StepCapacity
from focus_bench.sim.step_fit import StepFit

SPEC = PRESETS["sdar-8b"]
LIMITS = Limits(cache_tokens=800_000, sequence_tokens=32_768, page_size=64)
RUNS = (
    *(("baseline", 1), ("baseline", 8), ("baseline", 48), ("baseline", 128)),
    *(("focus", 4), ("focus", 16), ("focus", 64), ("focus", 160)),
)


@pytest.fixture(scope="module")
def calibration() -> GpuCalibration:
    """What measuring a slightly noisy GPU gives, whole steps of both modes included."""
    gpu = AnalyticGpu(spec=SPEC, noise=0.01)
    measured = calibrate(gpu)
    for mode, graphs in (("graph", "auto"), ("eager", "off")):
        steps = [s for p, b in RUNS for s in run_steps(gpu, p, b, cuda_graphs=graphs, seed=1)]
        measured = with_steps(measured, mode, steps)
    return measured


@pytest.fixture(scope="module")
def profile(calibration: GpuCalibration) -> GpuProfile:
    return GpuProfile(calibration)


def shapes_of(policy: str, batch: int) -> list[StepShape]:
    """Steps of a run with contexts from tens to thousands of tokens."""
    rng = np.random.default_rng([batch, len(policy)])
    prompts = np.exp(rng.uniform(np.log(20), np.log(3000), size=batch + batch // 3 + 1))
    model = ConstantTime()
    point = make_point(policy, scheduler=SchedulerConfig(batch_size=batch))
    simulate(point, make_workload([int(p) for p in prompts], 40), cost_model=model)
    return [shape for shape in model.shapes if shape.forwards]


def decode_shape(queries: list[int], keys: list[int], *, evicting: bool = False) -> StepShape:
    q, k = np.array(queries), np.array(keys)
    none = np.zeros(0, dtype=np.int64)
    forward = DecodeShape(
        fed=np.full(len(q), 32) if evicting else q,
        kept=q,
        masked_fed=np.full(len(q), 30 if evicting else 0),
        first_keys=k,
        later_keys=k,
        head_rows=int(q.sum()),
    )
    return StepShape(
        prefill=PrefillShape(start=none, length=none, block_length=32),
        forwards=(forward,),
        swapped_pages=0,
        page_size=64,
    )


def test_held_out_steps_are_closer_than_by_roofline_or_plain_table(
    calibration: GpuCalibration, profile: GpuProfile
) -> None:
    roofline = RooflineModel(spec=SPEC, hardware=get_hardware("h200"))
    samples = calibration.steps["graph"]
    counts = samples.counts
    total = np.sum(list(samples.seconds.values()), axis=0)
    # The table is one of whole steps: by positions fed and kept and by keys, prefill left out.
    at = np.log1p(np.stack([counts["fed"], counts["kept"], counts["later_keys"]], axis=1))
    plain = counts["prefill_chunks"] == 0
    inside = LinearNDInterpolator(at[plain], total[plain])
    nearest = NearestNDInterpolator(at[plain], total[plain])
    errors: dict[str, list[float]] = {"roofline": [], "table": [], "curves": []}
    for policy, batch in (("baseline", 24), ("focus", 40), ("baseline", 90), ("focus", 110)):
        gpu = AnalyticGpu(spec=SPEC, capacity=batch * 32)
        model = profile.model(SPEC, StepCapacity(max_rows=batch, block_length=32))
        for shape in shapes_of(policy, batch):
            if shape.prefill.num_chunks:
                continue
            truth = gpu.step_timing(shape).duration_s
            (f,) = shape.forwards
            place = np.log1p([f.fed.sum(), f.kept.sum(), f.later_keys.sum()])
            table = float(inside(place)[0])
            table = float(nearest(place)[0]) if np.isnan(table) else table
            found = {
                "roofline": roofline.step_timing(shape).duration_s,
                "table": table,
                "curves": model.step_timing(shape).duration_s,
            }
            for name, seconds in found.items():
                errors[name].append(abs(seconds / truth - 1.0))
    mape = {name: float(np.mean(values)) for name, values in errors.items()}
    print("held-out error of a step:", {n: (mape[n], max(v)) for n, v in errors.items()})
    assert mape["curves"] < 0.02, mape
    assert float(np.quantile(errors["curves"], 0.95)) < 0.05
    assert mape["table"] > 2.0 * mape["curves"], mape
    assert mape["roofline"] > 4.0 * mape["curves"], mape


def test_the_points_that_calibrate_measures_are_enough() -> None:
    """On the engine's own plan of points: within 2.5 % and not extrapolated, at any batch."""
    gpu = AnalyticGpu(spec=SPEC)
    measured = calibrate_at(gpu, planned_points(LIMITS))
    for policy, batch, graphs in (
        *(("baseline", 3, "auto"), ("baseline", 100, "off")),
        *(("focus", 13, "auto"), ("focus", 60, "off"), ("focus", 256, "auto")),
    ):
        capacity = StepCapacity(max_rows=batch, block_length=32, cuda_graphs=graphs)
        model = CurveModel(spec=SPEC, calibration=measured, capacity=capacity, row_tile=128)
        gpu.capacity, gpu.cuda_graphs = batch * 32, graphs
        truth = found = 0.0
        for shape in shapes_of(policy, batch):
            truth += gpu.step_timing(shape).duration_s
            found += model.step_timing(shape).duration_s
        assert found == pytest.approx(truth, rel=0.025), (policy, batch)
        assert domain_of(model.tally.shares) != "extrapolated", (policy, batch)


@pytest.mark.parametrize("policy", ["baseline", "focus"])
@pytest.mark.parametrize("graphs", ["off", "auto"])
def test_skewed_contexts_cost_what_each_sequence_costs(
    calibration: GpuCalibration, policy: str, graphs: str
) -> None:
    queries = 32 if policy == "baseline" else 10
    n = 63
    skewed = [150] * n + [4000]
    mean = [sum(skewed) // 64] * 64
    gpu = AnalyticGpu(spec=SPEC, capacity=64 * 32, cuda_graphs=graphs)
    capacity = StepCapacity(max_rows=64, block_length=32, cuda_graphs=graphs)
    model = CurveModel(spec=SPEC, calibration=calibrate(AnalyticGpu(spec=SPEC)), capacity=capacity)
    for keys in (skewed, mean, [100] * 32 + [900] * 32, [60, 4000] * 32):
        shape = decode_shape([queries] * 64, keys, evicting=policy == "focus")
        truth, found = gpu.step_timing(shape), model.step_timing(shape)
        assert found.suffix_s == pytest.approx(truth.suffix_s, rel=0.03)
        assert found.duration_s == pytest.approx(truth.duration_s, rel=0.03)
    # One sequence that is far longer than the others takes longer than its share.
    alone = decode_shape([queries], [4000])
    assert (
        model.step_timing(decode_shape([queries] * 64, [10] * 63 + [4000])).suffix_s
        > 0.9 * model.step_timing(alone).suffix_s
    )


def test_prefill_chunks_cost_their_own_lengths_and_histories() -> None:
    gpu = AnalyticGpu(spec=SPEC)
    capacity = StepCapacity(max_rows=8, block_length=32)
    model = CurveModel(spec=SPEC, calibration=calibrate(gpu), capacity=capacity)
    for start, length in (([0], [1024]), ([0, 512], [512, 512]), ([0, 0, 2016], [96, 1920, 32])):
        shape = StepShape(
            prefill=PrefillShape(start=np.array(start), length=np.array(length), block_length=32),
            forwards=(),
            swapped_pages=2,
            page_size=64,
        )
        truth, found = gpu.step_timing(shape), model.step_timing(shape)
        assert found.prefill_s == pytest.approx(truth.prefill_s, rel=0.03)
        assert found.swap_s == pytest.approx(truth.swap_s, rel=0.01)


def test_graphs_pad_tokens_to_their_bucket_and_eager_steps_wait_for_launches() -> None:
    measured = calibrate(AnalyticGpu(spec=SPEC))

    def suffix(tokens: int, graphs: str) -> float:
        capacity = StepCapacity(max_rows=64, block_length=32, cuda_graphs=graphs)
        model = CurveModel(spec=SPEC, calibration=measured, capacity=capacity)
        return model.step_timing(decode_shape([tokens], [500])).suffix_s

    assert suffix(17, "auto") == pytest.approx(suffix(32, "auto"), rel=0.01)
    assert suffix(33, "auto") > suffix(32, "auto")
    assert token_bucket(17) == 32
    # One layer after the other is launched slower than one token runs through them.
    launches = measured.curves["launch_later"].seconds[0]
    assert suffix(1, "off") >= launches
    faster = {
        name: dataclasses.replace(curve, seconds=0.1 * curve.seconds)
        for name, curve in measured.curves.items()
        if name in ("project", "finish", "attention_decode")
    }
    fast = dataclasses.replace(measured, curves={**measured.curves, **faster})
    capacity = StepCapacity(max_rows=64, block_length=32, cuda_graphs="off")
    bound = CurveModel(spec=SPEC, calibration=fast, capacity=capacity)
    assert bound.step_timing(decode_shape([1], [500])).suffix_s == pytest.approx(launches, rel=0.02)


def test_products_are_slower_once_the_gpu_was_busy_for_a_while() -> None:
    measured = calibrate(AnalyticGpu(spec=SPEC))
    slow = measured.curves["layer_sustained"]
    slow = dataclasses.replace(slow, seconds=1.2 * slow.seconds)
    throttled = dataclasses.replace(measured, curves={**measured.curves, "layer_sustained": slow})
    capacity = StepCapacity(max_rows=64, block_length=32)
    model = CurveModel(spec=SPEC, calibration=throttled, capacity=capacity)
    shape = decode_shape([32] * 64, [100] * 64)
    first = model.step_timing(shape).suffix_s
    one = model.step_timing_after(SETTLING_S, shape).suffix_s
    last = model.step_timing_after(20 * SETTLING_S, shape).suffix_s
    assert 1.1 < last / first < 1.2
    assert (one - first) / (last - first) == pytest.approx(1.0 - np.exp(-1.0), abs=0.01)


def test_another_gpu_takes_over_efficiencies_not_times(profile: GpuProfile) -> None:
    """An H100 of the same make as the measured GPU: as efficient, with other peaks."""
    sheet, own = get_hardware("h100-pcie"), get_hardware("h200")
    gpu = AnalyticGpu(
        spec=SPEC,
        capacity=64 * 32,
        flops_per_s=9.0e14 * sheet.dense_16bit_flops / own.dense_16bit_flops,
        bytes_per_s=4.2e12 * sheet.memory_bandwidth / own.memory_bandwidth,
    )
    model = profile.model(SPEC, StepCapacity(max_rows=64, block_length=32), hardware=sheet)
    errors, unscaled = [], []
    own_model = profile.model(SPEC, StepCapacity(max_rows=64, block_length=32))
    for queries in (1, 4, 10, 32):
        shape = decode_shape([queries] * 64, [600] * 64)
        truth = gpu.step_timing(shape).duration_s
        errors.append(abs(model.step_timing(shape).duration_s / truth - 1.0))
        unscaled.append(abs(own_model.step_timing(shape).duration_s / truth - 1.0))
    assert np.mean(errors) < 0.10
    assert max(errors) < 0.16
    assert np.mean(unscaled) > 0.25
    assert domain_of(model.tally.shares) == "extrapolated"
    assert "efficiencies carried over to NVIDIA H100 PCIe" in model.label


@pytest.mark.parametrize("gpu", ["a100-sxm4-80g", "h100-pcie", "h100-sxm", "b200"])
@pytest.mark.parametrize("model", ["sdar-8b", "llada2-mini"])
def test_another_gpu_is_slower_by_no_more_than_its_peaks_are(model: str, gpu: str) -> None:
    """Nor less: what few rows take is no measure of a peak, at whatever rows it is looked up."""
    spec, sheet, own_sheet = PRESETS[model], get_hardware(gpu), get_hardware("h200")
    calibration = load_gpu_calibration(bundled_profiles()[f"h200_{model}"])
    capacity = StepCapacity(max_rows=64, block_length=32, experts=spec.experts is not None)
    own = CurveModel(spec=spec, calibration=calibration, capacity=capacity)
    there = dataclasses.replace(own, hardware=sheet)
    flops = own_sheet.dense_16bit_flops / sheet.dense_16bit_flops
    ratios = sorted((flops, own_sheet.memory_bandwidth / sheet.memory_bandwidth, 1.0))
    for name, curve in own.curves.items():
        if CURVES[name].axes != ("rows",) or CURVES[name].clock != "device":
            continue
        for rows in (1, 2, 5, 17, 32, 64, 100, 300, 1024, 5000):
            measured, carried = curve.at_rows(rows)[0], there.curves[name].at_rows(rows)[0]
            assert ratios[0] * measured <= carried * 1.0001, (name, rows)
            assert carried <= ratios[-1] * measured * 1.0001, (name, rows)


def test_another_model_takes_over_efficiencies(profile: GpuProfile) -> None:
    small = SPEC.replace(name="half", num_layers=20, hidden_size=2048, intermediate_size=6144)
    gpu = AnalyticGpu(spec=small, capacity=64 * 32)
    model = profile.model(small, StepCapacity(max_rows=64, block_length=32))
    for queries in (4, 32):
        shape = decode_shape([queries] * 64, [600] * 64)
        truth = gpu.step_timing(shape).duration_s
        assert model.step_timing(shape).duration_s == pytest.approx(truth, rel=0.2)
    assert model.label.endswith("efficiencies carried over to half")


def test_points_are_calibrated_interpolated_or_extrapolated() -> None:
    gpu = AnalyticGpu(spec=SPEC)
    capacity = StepCapacity(max_rows=256, block_length=32)
    shape = decode_shape([32] * 64, [600] * 64)

    def shares(calibration: GpuCalibration) -> tuple[float, float, float]:
        model = CurveModel(spec=SPEC, calibration=calibration, capacity=capacity)
        model.step_timing(shape)
        return model.tally.shares

    whole = calibrate(gpu)
    assert domain_of(shares(whole)) == "calibrated"
    assert domain_of(shares(calibrate(gpu, most_rows=1024))) == "extrapolated"
    curves = dict(whole.curves)
    for name in ("project", "finish"):
        few = np.isin(curves[name].points[:, 0], (64, 8192))
        curves[name] = dataclasses.replace(
            curves[name],
            points=curves[name].points[few],
            seconds=curves[name].seconds[few],
            spread=curves[name].spread[few],
        )
    sparse = shares(dataclasses.replace(whole, curves=curves))
    assert domain_of(sparse) == "interpolated"
    assert domain_note(sparse).startswith("costs interpolated")
    assert (
        shares_text((0.5, 0.25, 0.25))
        == "50.0 % calibrated, 25.0 % interpolated, 25.0 % extrapolated"
    )


def test_beyond_the_curves_time_grows_with_the_work() -> None:
    model = CurveModel(
        spec=SPEC,
        calibration=calibrate(AnalyticGpu(spec=SPEC), most_rows=2048),
        capacity=StepCapacity(max_rows=256, block_length=32, cuda_graphs="off"),
    )
    seconds = [
        model.step_timing(decode_shape([32] * n, [500] * n)).suffix_s for n in (32, 64, 128, 256)
    ]
    ratios = np.array(seconds[1:]) / seconds[:-1]
    assert (ratios > 1.7).all()
    assert (ratios < 2.1).all()


def test_a_calibration_without_a_curve_is_refused_by_name() -> None:
    measured = calibrate(AnalyticGpu(spec=SPEC))
    curves = {name: curve for name, curve in measured.curves.items() if name != "finish"}
    with pytest.raises(UsageError, match="without finish"):
        GpuProfile(dataclasses.replace(measured, curves=curves))


def test_corrections_find_a_host_that_is_slower_in_real_steps(calibration: GpuCalibration) -> None:
    samples = calibration.steps["graph"]
    seconds = {**samples.seconds, "head": 1.15 * samples.seconds["head"]}
    steps = {"graph": dataclasses.replace(samples, seconds=seconds)}
    fitted = fit_of(dataclasses.replace(calibration, steps=steps)).fitted[1]
    usual = fit_of(dataclasses.replace(calibration, steps={"graph": samples})).fitted[1]
    assert fitted.scale["head"] == pytest.approx(1.15 * usual.scale["head"], rel=0.03)
    assert fitted.scale["suffix"] == pytest.approx(usual.scale["suffix"], rel=0.01)
    assert min(fitted.constant_s.values()) >= 0.0


def fit_of(calibration: GpuCalibration, *, graphs: bool = True) -> StepFit:
    return StepFit(calibration=calibration, has_graphs=graphs)


def test_a_kept_fit_is_the_one_that_would_be_made(calibration: GpuCalibration) -> None:
    kept = with_fits(calibration)
    for graphs in (True, False):
        fitted, made = fit_of(kept, graphs=graphs), fit_of(calibration, graphs=graphs)
        assert fitted.fitted == made.fitted
        for name, values in vars(made.uncertainty).items():
            assert np.array_equal(getattr(fitted.uncertainty, name), values, equal_nan=True)
    tile = dataclasses.replace(kept.fits["graph"], row_tile=32)
    other = dataclasses.replace(kept, fits={"graph": tile})
    assert fit_of(other).fitted[0].row_tile == 32  # read, not made
    assert fit_of(other, graphs=False).fitted == fit_of(calibration, graphs=False).fitted


def test_small_steps_without_graphs_say_nothing_of_runs_with_graphs(
    calibration: GpuCalibration,
) -> None:
    """They wait for the host, which was slow for a while."""
    eager = calibration.steps["eager"]
    small = (eager.counts["fed"] <= MAX_GRAPH_TOKENS) & (eager.counts["rows"] > 0)
    assert small.any()
    slow = {part: np.where(small, 3.0, 1.0) * s for part, s in eager.seconds.items()}
    steps = {**calibration.steps, "eager": dataclasses.replace(eager, seconds=slow)}
    disturbed = dataclasses.replace(calibration, steps=steps)
    usual = fit_of(calibration)
    found = fit_of(disturbed)
    # (But for how long a run's GPU has been busy before a large step.)
    assert found.fitted[1].scale == pytest.approx(usual.fitted[1].scale, abs=1e-3)
    assert found.uncertainty.runs == pytest.approx(usual.uncertainty.runs, abs=1e-3, nan_ok=True)
    assert fit_of(disturbed, graphs=False).fitted != fit_of(calibration, graphs=False).fitted


def test_what_the_host_describes_grows_with_the_sequences(calibration: GpuCalibration) -> None:
    samples = calibration.steps["graph"]
    rows = samples.counts["rows"]
    seconds = {**samples.seconds, "prefix": samples.seconds["prefix"] + 2e-4 + 5e-6 * rows}
    steps = {"graph": dataclasses.replace(samples, seconds=seconds)}
    found = fit_of(dataclasses.replace(calibration, steps=steps)).fitted[1]
    assert found.scale["prefix"] == pytest.approx(1.0, abs=0.1)
    assert found.constant_s["prefix"] == pytest.approx(2e-4, rel=0.25)
    assert found.per_sequence_s["prefix"] == pytest.approx(5e-6, rel=0.25)


def test_a_model_as_new_has_not_been_busy(calibration: GpuCalibration) -> None:
    """Whatever ran before, the same steps take the same time; work slows them down."""
    curve = calibration.curves["layer_sustained"]
    slower = dataclasses.replace(curve, seconds=1.5 * curve.seconds)
    hot = dataclasses.replace(calibration, curves={**calibration.curves, "layer_sustained": slower})
    capacity = StepCapacity(max_rows=64, block_length=32)
    model = CurveModel(spec=SPEC, calibration=hot, capacity=capacity)
    step = decode_shape([32] * 64, [500] * 64)
    first = model.step_timing(step)
    while model.tally.total_s < 2.0 * SETTLING_S:
        model.step_timing(step)
    assert model.step_timing(step).suffix_s > 1.1 * first.suffix_s
    assert as_new(model).step_timing(step) == first


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_numbers_are_named(profile: GpuProfile, dtype: str) -> None:
    spec = SPEC.replace(dtype=dtype)
    label = profile.model(spec, StepCapacity(max_rows=8, block_length=32)).label
    assert f"carried over to {dtype} numbers" in label
    assert ("(too fast)" in label) == (dtype == "float32")
