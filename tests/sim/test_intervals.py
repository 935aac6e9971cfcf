"""Intervals of predictions: they hold as many runs as they say, and cost little."""

import dataclasses
import time

import numpy as np
import pytest
from analytic_gpu import AnalyticGpu, calibrate, run_steps, with_steps
from sim_cases import ConstantTime, make_point, make_workload

from focus_bench.core.config import PointConfig, SchedulerConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.intervals import Interval, interval_settings, intervals_in
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Workload
from focus_bench.sim.cost_model import CostModel
from focus_bench.sim.gpu_profile import GpuProfile
from focus_bench.sim.intervals import ScaledModel, figures_of, intervals_of
from focus_bench.sim.seed_spread import seed_ratios
from focus_bench.sim.simulate import simulate_point
from focus_bench.sim.step_capacity import StepCapacity
from focus_bench.sim.uncertainty import Uncertainty, uncertainty_of

SPEC = PRESETS["sdar-8b"]
NOISE, RUN_NOISE = 0.01, 0.01
FIGURES = ("output_throughput", "ttft_p50_s", "tpot_p50_s", "e2e_p50_s", "e2e_p99_s")
PARTS = 7


def run(point: PointConfig, workload: Workload, model: CostModel) -> RunRecord:
    return simulate_point(point, workload, SPEC, cost_model=model, num_pages=100_000)


@pytest.fixture(scope="module")
def profile() -> GpuProfile:
    gpu = AnalyticGpu(spec=SPEC, noise=NOISE, run_noise=RUN_NOISE)
    measured = calibrate(gpu)
    runs = (("baseline", 1), ("baseline", 8), ("baseline", 40), ("focus", 4), ("focus", 16))
    for mode, graphs in (("graph", "auto"), ("eager", "off")):
        steps = [
            step
            for policy, batch in (*runs, ("focus", 64))
            for step in run_steps(gpu, policy, batch, cuda_graphs=graphs, seed=1)
        ]
        measured = with_steps(measured, mode, steps)
    return GpuProfile(measured)


def predicted(
    profile: GpuProfile, point: PointConfig, workload: Workload, *, open_loop: bool = False
) -> tuple[RunRecord, dict[str, Interval]]:
    batch = point.scheduler.batch_size
    model = profile.model(SPEC, StepCapacity(max_rows=batch, block_length=32))
    record = run(point, workload, model)
    intervals = intervals_of(
        record,
        profile.uncertainty_of(model),
        seed=0,
        slots=batch,
        is_open=True,
        depends_on_time=open_loop,
        depends_on_seed=True,
        rerun=lambda factor: run(point, workload, ScaledModel(inner=model, factor=factor)),
    )
    return record, intervals


def test_nine_runs_in_ten_lie_in_the_interval(profile: GpuProfile) -> None:
    """112 held-out (point, seed) runs of known noise, other seeds than the prediction's."""
    gpu = AnalyticGpu(spec=SPEC, noise=NOISE, seed=7)
    rng = np.random.default_rng(3)
    held = {name: [] for name in FIGURES}
    for policy in ("baseline", "focus"):
        for batch, count in ((2, 5), (6, 6), (10, 15), (24, 30)):
            point = make_point(policy, scheduler=SchedulerConfig(batch_size=batch))
            workload = make_workload([int(n) for n in rng.integers(20, 900, size=count)], 48)
            gpu.capacity = batch * 32
            for seed in range(14):
                if seed in (0, 7):
                    _, intervals = predicted(
                        profile, dataclasses.replace(point, seed=seed), workload
                    )
                gpu.run_factor = 1.0 + RUN_NOISE * gpu.rng.standard_normal()
                measured = figures_of(
                    run(dataclasses.replace(point, seed=100 + seed), workload, gpu)
                )
                for name in FIGURES:
                    held[name].append(intervals[name].holds(measured[name]))
    coverage = {name: float(np.mean(values)) for name, values in held.items()}
    print("coverage of 90 % intervals:", coverage)
    assert len(held["e2e_p50_s"]) == 112
    assert 0.80 <= coverage["output_throughput"] <= 0.97, coverage
    assert 0.80 <= float(np.mean(list(coverage.values()))) <= 0.97, coverage


def test_arrivals_over_time_widen_with_the_queue(profile: GpuProfile) -> None:
    point = make_point("baseline", scheduler=SchedulerConfig(batch_size=4))
    alone, _ = predicted(profile, point, make_workload([100] * 12, 48))
    gap = alone.duration_s / 12
    for speed, most in ((0.4, 0.5), (0.95, 2.0)):
        arrivals = list(np.arange(12) * gap / speed)
        workload = make_workload([100] * 12, 48, arrivals_s=arrivals, request_rate=speed / gap)
        record, intervals = predicted(profile, point, workload, open_loop=True)
        figures = figures_of(record)
        for name in ("output_throughput", "e2e_p50_s", "ttft_p90_s"):
            assert intervals[name].holds(figures[name]), name
        width = intervals["e2e_p50_s"].high / intervals["e2e_p50_s"].low - 1.0
        assert 0.01 < width < most


def test_a_closed_loop_has_intervals_without_another_simulation(profile: GpuProfile) -> None:
    point = make_point("focus", scheduler=SchedulerConfig(batch_size=8))
    workload = make_workload([60, 300] * 6, 40, max_concurrency=3)
    model = profile.model(SPEC, StepCapacity(max_rows=8, block_length=32))
    record = run(point, workload, model)
    intervals = intervals_of(
        record,
        profile.uncertainty_of(model),
        seed=0,
        slots=3,
        is_open=False,
        depends_on_time=False,
        depends_on_seed=True,
        rerun=lambda factor: pytest.fail("simulated again"),
    )
    figures = figures_of(record)
    assert intervals.keys() == figures.keys()
    for name in FIGURES:
        low, high = intervals[name].low, intervals[name].high
        assert 0.5 * figures[name] < low <= figures[name] <= high < 2.0 * figures[name], name


def test_costs_that_are_off_by_a_factor_scale_times_and_divide_throughput() -> None:
    """An uncertainty of one run, 10 % slower: every replica is."""
    point, workload = make_point("baseline"), make_workload([40] * 6, 64)
    model = ConstantTime()
    record = run(point, workload, model)
    record = dataclasses.replace(
        record,
        steps=tuple(
            dataclasses.replace(s, timing=dataclasses.replace(s.timing, suffix_s=0.25))
            for s in record.steps
        ),
    )
    slower = Uncertainty(
        runs=np.full((1, PARTS), np.log(1.1)),
        step_spread=np.zeros(PARTS),
        part_spread=np.zeros(PARTS),
    )
    found = intervals_of(
        record,
        slower,
        seed=0,
        slots=64,
        is_open=True,
        depends_on_time=False,
        depends_on_seed=False,
        rerun=lambda factor: record,
    )
    figures, widened = figures_of(record), 1.1 ** np.sqrt(2.0)
    for name, value in figures.items():
        expected = value / widened if name == "output_throughput" else value * widened
        assert found[name].low == pytest.approx(expected)
        assert found[name].high == pytest.approx(expected)


def test_the_interval_costs_less_than_the_prediction(profile: GpuProfile) -> None:
    point = make_point("focus", scheduler=SchedulerConfig(batch_size=32))
    workload = make_workload([100, 700, 30, 250] * 32, 128)
    capacity = StepCapacity(max_rows=32, block_length=32)
    assert profile.fit(capacity).uncertainty is not None  # fitted once for all points
    model = profile.model(SPEC, capacity)
    begin = time.process_time()
    run(point, workload, model)
    plain_s = time.process_time() - begin
    begin = time.process_time()
    predicted(profile, point, workload)
    both_s = time.process_time() - begin
    assert both_s < 2.0 * plain_s


def test_the_same_seed_gives_the_same_interval(profile: GpuProfile) -> None:
    point, workload = make_point("focus"), make_workload([60] * 5, 40)
    first, second = (predicted(profile, point, workload)[1] for _ in range(2))
    assert first == second


def test_runs_are_held_out_of_the_fit_that_predicts_them() -> None:
    """Of two runs, one takes 20 % longer than predicted: no fit to the other one knows that."""
    ours = np.full((20, PARTS), 1e-2)
    theirs = ours.copy()
    theirs[10:] *= 1.2
    found = uncertainty_of(ours, theirs, np.repeat([0, 1], 10))
    assert found.runs[0] == pytest.approx(np.zeros(PARTS))
    assert found.runs[1] == pytest.approx(np.full(PARTS, np.log(1.2)))
    drawn = found.draw(np.random.default_rng(0), 1000, num_steps=100)
    assert np.quantile(drawn, 0.05) < 1.0
    assert np.quantile(drawn, 0.95) > 1.2


def test_intervals_survive_as_settings() -> None:
    intervals = {"e2e_p50_s": Interval(low=1.25, high=2.5)}
    settings = {"device": "x", **interval_settings(intervals)}
    assert intervals_in(settings) == intervals
    with pytest.raises(UsageError, match="interval e2e_p50_s"):
        intervals_in({"interval e2e_p50_s": "1.25"})


def test_other_seeds_draw_other_arrivals(profile: GpuProfile) -> None:
    """Far below what can be served, a run lasts as long as its arrivals: a sum of 24 gaps."""
    point = make_point("baseline", scheduler=SchedulerConfig(batch_size=8))
    arrivals = np.append(0.0, np.cumsum(np.random.default_rng(5).exponential(2.0, 24)))
    workload = make_workload([100] * 25, 48, arrivals_s=list(arrivals), request_rate=0.5)
    record = run(point, workload, profile.model(SPEC, StepCapacity(max_rows=8, block_length=32)))
    given, drawn = (
        seed_ratios(record, np.random.default_rng(0), 500, slots=8, is_open=True, request_rate=rate)
        for rate in (None, 0.5)
    )
    assert np.log(given["output_throughput"]).std() < 0.02
    gaps = np.diff(arrivals)
    expected = gaps.std() / gaps.mean() / np.sqrt(24)
    assert np.log(drawn["output_throughput"]).std() == pytest.approx(expected, rel=0.2)
    # The run's own gaps are a draw, too: replicas have the asked rate on average.
    assert np.median(drawn["output_throughput"]) == pytest.approx(gaps.mean() / 2.0, rel=0.1)


def test_waiting_for_prefill_is_not_drawn(profile: GpuProfile) -> None:
    """Prompts that take most of a run: every interval holds its own prediction, none explodes."""
    for policy in ("baseline", "focus"):
        point = make_point(policy, scheduler=SchedulerConfig(batch_size=64))
        record, intervals = predicted(profile, point, make_workload([1500] * 64, 32))
        prefill_s = sum(step.timing.prefill_s for step in record.steps)
        assert prefill_s > 0.5 * record.duration_s
        for name, value in figures_of(record).items():
            low, high = intervals[name].low, intervals[name].high
            assert 0.6 * value < low <= value <= high < 1.6 * value, (policy, name)
