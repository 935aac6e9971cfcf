"""Pairing, errors, speed-ups: exact on hand-made results."""

import csv
import dataclasses
import io
import math

import numpy as np
import pytest
import scipy.stats
from report_samples import make_point, make_result

from focus_bench.core.config import EngineConfig
from focus_bench.core.intervals import Interval, interval_settings
from focus_bench.report.compare import (
    FIGURES,
    JUDGED,
    THROUGHPUT,
    by_policy,
    coverage,
    error_percent,
    error_summary,
    hardware_differences,
    noise_percent,
    pair_results,
    speedup_noises,
    speedups,
)
from focus_bench.report.comparison_csv import comparison_csv


def on_device(point, device):
    engine = EngineConfig(model=point.engine.model, device=device, gpu_memory_utilization=0.5)
    scheduler = dataclasses.replace(point.scheduler, num_pages=99)
    return dataclasses.replace(point, engine=engine, scheduler=scheduler)


def test_error_is_relative_to_the_measurement():
    point = make_point()
    (pair,) = pair_results(
        [
            make_result(point, output_tokens=400),
            make_result(point, source="predicted", output_tokens=350),
        ]
    )
    assert error_percent(pair, THROUGHPUT) == -12.5
    by_name = {figure.name: error_percent(pair, figure) for figure in FIGURES}
    assert by_name["ttft_p50_s"] == 0.0
    # tpot is 2 s / (n - 1): 349 gaps instead of 399 make it longer.
    assert by_name["tpot_p50_s"] == pytest.approx(100 * (399 / 349 - 1))


def test_error_needs_both_and_a_measurement_above_zero():
    point = make_point()
    (alone,) = pair_results([make_result(point)])
    assert error_percent(alone, THROUGHPUT) is None
    (zero,) = pair_results(
        [make_result(point, output_tokens=0), make_result(point, source="predicted")]
    )
    assert error_percent(zero, THROUGHPUT) is None
    assert error_summary([alone, zero], THROUGHPUT).mape is None


def test_prediction_of_another_device_setting_still_belongs():
    point = make_point()
    results = [
        make_result(on_device(point, "cuda")),
        make_result(point, source="predicted"),
        make_result(make_point(seed=1), source="predicted"),
    ]
    first, second = pair_results(results)
    assert (first.measured, first.predicted) == (results[0], results[1])
    assert (second.measured, second.predicted) == (None, results[2])


def test_equal_configuration_wins_over_a_like_one():
    point = make_point()
    like = make_result(on_device(point, "cpu"), source="predicted")
    equal = make_result(point, source="predicted", output_tokens=200)
    pairs = pair_results([make_result(point), like, equal])
    assert pairs[0].predicted is equal
    assert (pairs[1].measured, pairs[1].predicted) == (None, like)


def test_each_profile_is_a_line_and_the_last_of_equal_results_counts():
    point = make_point()
    pairs = pair_results(
        [
            make_result(point, output_tokens=1),
            make_result(point, output_tokens=400),
            make_result(point, source="predicted", hardware="H100-SXM"),
            make_result(point, source="predicted", hardware="H200"),
        ]
    )
    assert [p.predicted.hardware for p in pairs if p.predicted] == ["H100-SXM", "H200"]
    assert {p.measured.metrics.total_output_tokens for p in pairs if p.measured} == {400}


def test_mape_is_by_policy_over_absolute_errors():
    results = []
    for policy, batch, predicted in (
        ("baseline", 8, 440),
        ("baseline", 32, 320),
        ("focus", 8, 404),
    ):
        point = make_point(policy, batch_size=batch)
        results.append(make_result(point))
        results.append(make_result(point, source="predicted", output_tokens=predicted))
    groups = by_policy(pair_results(results))
    assert list(groups) == ["baseline", "focus"]
    summary = {policy: error_summary(own, THROUGHPUT) for policy, own in groups.items()}
    assert (summary["baseline"].count, summary["baseline"].worst) == (2, pytest.approx(20.0))
    assert summary["baseline"].mape == pytest.approx(15.0)
    assert summary["focus"].mape == pytest.approx(1.0)


def test_speedup_is_over_the_baseline_of_the_same_settings_and_source():
    baseline = make_result(make_point("baseline", alpha=1.2), output_tokens=200)
    focus = make_result(make_point("focus", alpha=1.8), output_tokens=500)
    other_batch = make_result(make_point("focus", batch_size=32), output_tokens=900)
    other_threshold = make_result(make_point("focus", threshold=0.8))
    predicted = make_result(make_point("focus"), source="predicted")
    faster = speedups([baseline, focus, other_batch, other_threshold, predicted])
    assert faster[baseline.key] == 1.0
    assert faster[focus.key] == 2.5
    assert faster[other_batch.key] is None
    assert faster[other_threshold.key] is None
    assert faster[predicted.key] is None


@pytest.mark.parametrize("source", ["measured", "predicted"])
def test_of_several_baselines_each_is_its_own_and_policies_take_the_most_alike(source):
    def result(policy, tokens, **decode):
        return make_result(make_point(policy, **decode), source=source, output_tokens=tokens)

    first = result("baseline", 200, alpha=1.5), result("focus", 500, alpha=1.5)
    second = result("baseline", 400, alpha=2.0), result("focus", 500, alpha=2.0)
    fixed = result("baseline", 100, alpha=2.0, retain=4), result("focus", 500, alpha=2.0, retain=4)
    other = result("focus", 800, alpha=3.0)  # of no baseline's alpha: that of its own folder
    for order in (
        [*first, *second, *fixed, other],
        [*fixed, *first, *second, other],
        [*second, *fixed, other, *first],
    ):
        faster = speedups(order)
        assert [faster[r.key] for r in (first[0], second[0], fixed[0])] == [1.0, 1.0, 1.0]
        assert [faster[r.key] for r in (first[1], second[1], fixed[1])] == [2.5, 1.25, 5.0]
    assert speedups([*first, *second, other])[other.key] == 2.0
    assert speedups([*second, *first, other])[other.key] == 4.0


def test_speedup_over_a_baseline_without_output_is_undefined():
    baseline = make_result(make_point("baseline"), output_tokens=0)
    focus = make_result(make_point("focus"))
    assert speedups([baseline, focus])[focus.key] is None


def test_noise_of_a_speedup_is_that_of_both_policies():
    ours, theirs = (480, 500, 540), (190, 200, 210)
    focus = make_result(make_point("focus"), output_tokens=500, run_tokens=ours)
    baseline = make_result(make_point("baseline"), output_tokens=200, run_tokens=theirs)
    reference = scipy.stats.ttest_ind(np.log(ours), np.log(theirs), equal_var=False)
    low, high = reference.confidence_interval(0.95)
    noises = speedup_noises([baseline, focus])
    half = 100 * (math.exp((high - low) / 2) - 1)
    assert noises[focus.key] == pytest.approx(half, rel=1e-9)
    assert noises[baseline.key] is None
    once = make_result(make_point("baseline"), output_tokens=200)
    assert speedup_noises([once, focus])[focus.key] is None


def test_noise_beside_an_error_is_the_measurements():
    point = make_point()
    measured = make_result(point, output_tokens=48, run_tokens=(40, 48, 56))
    (pair,) = pair_results([measured, make_result(point, source="predicted")])
    # 2 tokens/s around 12: 100 * t(0.975, 2) * 2 / sqrt(3) / 12
    assert noise_percent(pair, THROUGHPUT) == pytest.approx(41.4023, abs=1e-4)
    rows = list(csv.DictReader(io.StringIO(comparison_csv([pair]))))
    assert rows[0]["figure"] == "output_throughput"
    assert (rows[0]["measured_runs"], rows[0]["measured_mean"]) == ("3", "12.0")
    assert float(rows[0]["measured_cv_percent"]) == pytest.approx(100 / 6)
    assert float(rows[0]["measured_half_width_percent"]) == pytest.approx(41.4023, abs=1e-4)
    (once,) = pair_results([make_result(point), make_result(point, source="predicted")])
    assert noise_percent(once, THROUGHPUT) is None
    rows = list(csv.DictReader(io.StringIO(comparison_csv([once]))))
    assert (rows[0]["measured_runs"], rows[0]["measured_half_width_percent"]) == ("1", "")


def test_a_prediction_for_another_device_is_named():
    point = make_point()

    def lines(measured, predicted):
        results = [
            make_result(point, settings=measured),
            make_result(point, source="predicted", settings=predicted),
        ]
        return hardware_differences(pair_results(results))

    h200 = {"device": "NVIDIA H200", "processor": "x86_64"}
    assert lines(h200, {"for device": "NVIDIA H200"}) == ()
    assert lines(h200, {"for device": "cpu", "for processor": "arm"}) == (
        "hardware differs: measured with device NVIDIA H200, predicted for device cpu",
    )
    cpu = {"device": "cpu", "processor": "x86_64", "threads": "1"}
    other = {"for device": "cpu", "for processor": "x86_64", "for threads": "2"}
    assert lines(cpu, other) == (
        "hardware differs: measured with threads 1, predicted for threads 2",
    )
    assert lines(cpu, {"device": "unknown"}) == ()
    assert hardware_differences(pair_results([make_result(point, settings=cpu)])) == ()


def test_comparison_csv_is_tidy_and_names_what_it_rests_on():
    point = make_point()
    pairs = pair_results(
        [
            make_result(point),
            make_result(point, source="predicted", hardware="cpu", notes=("extrapolated",)),
            make_result(make_point("baseline")),
        ]
    )
    rows = list(csv.DictReader(io.StringIO(comparison_csv(pairs))))
    assert [row["figure"] for row in rows] == [figure.name for figure in JUDGED]
    assert {row["policy"] for row in rows} == {"focus"}
    assert rows[0]["error_percent"] == "0.0"
    assert rows[0]["hardware"] == "cpu"
    assert "dummy weights" in rows[0]["notes"]
    assert "extrapolated" in rows[0]["notes"]


def test_intervals_of_a_prediction_and_the_runs_that_they_hold():
    point = make_point()
    runs = [make_result(point, output_tokens=n).metrics for n in (380, 400, 420)]
    measured = dataclasses.replace(make_result(point, output_tokens=400), runs=tuple(runs))
    low, high = runs[0].output_throughput, runs[1].output_throughput
    settings = interval_settings({"output_throughput": Interval(low=low - 1e-3, high=high + 1e-3)})
    predicted = dataclasses.replace(make_result(point, source="predicted"), settings=settings)
    (pair,) = pair_results([measured, predicted])
    assert coverage([pair], JUDGED) == (2, 3)
    row = next(csv.DictReader(io.StringIO(comparison_csv([pair]))))
    assert float(row["interval_low"]) == pytest.approx(low, rel=1e-3)
    (alone,) = pair_results([measured])
    assert coverage([alone], JUDGED) == (0, 0)
