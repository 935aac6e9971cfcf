"""Clocks, power, energy and throttling of hand-made samples, and where outputs show them."""

import csv
import dataclasses
import io
import json

import pytest
from report_samples import PROVENANCE, make_point, make_request, make_run
from rich.console import Console

from focus_bench.core.records import EnvironmentSample
from focus_bench.engine.environment import CLOCK_REASONS
from focus_bench.report.codec import from_plain, to_plain
from focus_bench.report.detail import point_detail
from focus_bench.report.environment import THROTTLE_REASONS, summarise
from focus_bench.report.export import results_json, summary_csv
from focus_bench.report.metrics import compute_metrics
from focus_bench.report.results import PointResult, result_of
from focus_bench.report.tables import results_table


def sample(time_s: float, power_w: float | None = None, **changes: object) -> EnvironmentSample:
    base = EnvironmentSample(
        time_s=time_s,
        sm_clock_mhz=1800,
        memory_clock_mhz=2619,
        power_w=power_w,
        temperature_c=50,
        energy_j=None,
        clock_reasons=(),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def text_of(renderable: object) -> str:
    buffer = io.StringIO()
    Console(file=buffer, width=200).print(renderable)
    return buffer.getvalue()


def result_with(samples: list[EnvironmentSample], **changes: object) -> PointResult:
    run = make_run([make_request(0, output_tokens=50)], environment=tuple(samples), **changes)
    return result_of(make_point(), run, provenance=PROVENANCE, hardware="GPU")


def test_energy_is_the_area_under_the_power_exactly():
    # Trapezoids of unequal widths: 0.5 * 150 + 2 * 250 + 1.5 * 400 = 1175 J in 4 s.
    powers = [(0.0, 100.0), (0.5, 200.0), (2.5, 300.0), (4.0, 500.0)]
    metrics = summarise([sample(t, p) for t, p in powers])
    assert metrics is not None
    assert (metrics.energy_j, metrics.energy_source) == (1175.0, "power")
    assert metrics.mean_power_w == 293.75


def test_one_unknown_power_between_known_ones_is_bridged_an_unknown_end_is_not():
    known = [sample(0.0, 100.0), sample(1.0), sample(2.0, 300.0)]
    bridged = summarise(known)
    assert bridged is not None
    assert bridged.energy_j == 400.0
    for open_end in ([sample(-1.0), *known], [*known, sample(3.0)]):
        metrics = summarise(open_end)
        assert metrics is not None
        assert (metrics.energy_j, metrics.energy_source, metrics.mean_power_w) == (None, "", None)


def test_the_counter_of_the_driver_comes_before_power_samples():
    samples = [
        sample(0.0, 100.0, energy_j=7_000.0),
        sample(1.0, 100.0, energy_j=None),
        sample(2.0, 100.0, energy_j=7_300.0),
    ]
    metrics = summarise(samples)
    assert metrics is not None
    assert (metrics.energy_j, metrics.energy_source) == (300.0, "counter")
    assert metrics.mean_power_w == 150.0


def test_clocks_and_reasons_are_those_within_the_run():
    idle = {"sm_clock_mhz": 345, "temperature_c": 90, "clock_reasons": ("gpu_idle",)}
    capped = {"sm_clock_mhz": 1500, "clock_reasons": ("sw_power_cap", "gpu_idle")}
    samples = [
        sample(-0.01, **idle),
        sample(0.1, sm_clock_mhz=1800, temperature_c=55),
        sample(0.2, **capped),
        sample(0.3, sm_clock_mhz=None, clock_reasons=None),
        sample(0.4, sm_clock_mhz=1950),
        sample(0.5, **idle),
    ]
    metrics = summarise(samples)
    assert metrics is not None
    assert metrics.sm_clock is not None
    assert (metrics.sm_clock.min_mhz, metrics.sm_clock.max_mhz) == (1500, 1950)
    assert metrics.sm_clock.mean_mhz == 1750
    assert metrics.max_temperature_c == 55
    assert metrics.clock_reasons == {"sw_power_cap": 1 / 3, "gpu_idle": 1 / 3}
    assert metrics.throttle_reasons == ("sw_power_cap",)
    assert metrics.num_samples == 6


def test_a_run_shorter_than_the_interval_has_its_ends_only():
    metrics = summarise([sample(0.0, sm_clock_mhz=1000), sample(0.05, sm_clock_mhz=1200)])
    assert metrics is not None
    assert metrics.sm_clock is not None
    assert metrics.sm_clock.mean_mhz == 1100
    assert metrics.is_few
    assert summarise([]) is None
    assert summarise([sample(0.0)]) is None


def test_throttling_is_neither_idleness_nor_a_clock_that_someone_set():
    others = {"gpu_idle", "applications_clocks_setting", "display_clocks_setting"}
    assert set(THROTTLE_REASONS) == CLOCK_REASONS.keys() - others


def test_energy_per_output_token_counts_finished_requests_only():
    requests = [
        make_request(0, output_tokens=30),
        make_request(1, output_tokens=20),
        make_request(2, output_tokens=900, finish_reason="error"),
    ]
    samples = (sample(0.0, 100.0), sample(4.0, 100.0))
    run = make_run(requests, environment=samples)
    assert compute_metrics(run).energy_per_output_token_j == 8.0
    assert compute_metrics(make_run(requests)).energy_per_output_token_j is None
    assert compute_metrics(make_run([], environment=samples)).energy_per_output_token_j is None


def test_every_output_names_energy_and_throttling():
    throttled = sample(2.0, 100.0, clock_reasons=("hw_thermal_slowdown",))
    result = result_with([sample(0.0, 100.0), throttled, throttled, sample(4.0, 100.0)])
    label = "GPU throttled (hw_thermal_slowdown)"
    assert result.labels[-1] == label
    (row,) = csv.DictReader(io.StringIO(summary_csv([result])))
    (point,) = json.loads(results_json([result]))["points"]
    for found in (row, point):
        assert float(found["energy_per_output_token_j"]) == 8.0
        assert float(found["energy_j"]) == 400.0
        assert float(found["power_mean_w"]) == 100.0
        assert float(found["sm_clock_min_mhz"]) == 1800
        assert found["clock_reasons"] == "hw_thermal_slowdown=1"
        assert label in found["labels"]
    table, detail = text_of(results_table([result])), text_of(point_detail(result))
    assert label in table
    assert "J/" in table
    assert label in detail
    assert "8 J per output token, 400 J in all (from power samples)" in detail
    assert "hw_thermal_slowdown 100.0 %" in detail
    assert "a hint only: 4 samples" in detail
    assert from_plain(PointResult, json.loads(json.dumps(to_plain(result))), "f") == result


def test_throttling_in_any_of_several_runs_is_labelled():
    calm = (sample(0.0), sample(1.0), sample(2.0))
    capped = (sample(0.0), sample(1.0, clock_reasons=("sw_power_cap",)), sample(2.0))
    runs = [make_run([make_request(0)], environment=samples) for samples in (calm, capped)]
    result = result_of(make_point(), runs[0], provenance=PROVENANCE, runs=runs)
    assert result.labels[-1] == "GPU throttled (sw_power_cap)"


@pytest.mark.parametrize("source", ["measured", "predicted"])
def test_without_samples_outputs_show_nothing_as_known(source: str):
    result = result_with([], source=source)
    (row,) = csv.DictReader(io.StringIO(summary_csv([result])))
    (point,) = json.loads(results_json([result]))["points"]
    for name in ("energy_per_output_token_j", "energy_j", "sm_clock_mean_mhz", "clock_reasons"):
        assert row[name] == ""
        assert point[name] is None
    assert "J/" not in text_of(results_table([result]))
    detail = [line.split() for line in text_of(point_detail(result)).splitlines()]
    assert (["GPU", "energy", "-"] in detail) == (source == "measured")


def test_a_column_of_energy_shows_a_dash_where_it_is_not_known():
    with_energy = result_with([sample(0.0, 100.0), sample(4.0, 100.0)])
    run = make_run([make_request(0)])
    other = result_of(make_point("baseline"), run, provenance=PROVENANCE, hardware="GPU")
    rows = [line.split() for line in text_of(results_table([with_energy, other])).splitlines()]
    column = {row[0]: row[-1] for row in rows if row and row[0] in ("focus", "baseline")}
    assert column == {"focus": "8", "baseline": "-"}
