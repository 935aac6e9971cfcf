"""Where policies pay and the baseline becomes compute-bound, on hand-made sweeps."""

import csv
import dataclasses
import io
from collections.abc import Mapping

import pytest
from report_samples import make_point, make_result

from focus_bench.core.config import EngineConfig, SchedulerConfig, WorkloadConfig
from focus_bench.core.hardware import HARDWARE
from focus_bench.report.console import make_console
from focus_bench.report.figures.groups import plotted
from focus_bench.report.figures.roofline import Place, ridge_of
from focus_bench.report.results import PointResult
from focus_bench.report.what_if import (
    BatchSweep,
    batch_sweeps,
    hardware_table,
    what_if_csv,
    what_if_table,
)


def result_at(
    policy: str, batch: int, throughput: float, *, hardware: str = "h200", fills: int = 0
) -> PointResult:
    point = dataclasses.replace(
        make_point(policy),
        engine=EngineConfig(model="sdar-8b", load_format="dummy"),
        scheduler=SchedulerConfig(batch_size=batch),
        workload=WorkloadConfig(num_prompts=fills * batch or 64),
    )
    result = make_result(point, hardware=hardware, source="predicted")
    metrics = dataclasses.replace(result.metrics, output_throughput=throughput)
    return dataclasses.replace(result, metrics=metrics)


def results_of(
    series: Mapping[str, Mapping[int, float]], hardware: str = "h200", fills: int = 0
) -> list[PointResult]:
    return [
        result_at(policy, batch, value, hardware=hardware, fills=fills)
        for policy, values in series.items()
        for batch, value in values.items()
    ]


def sweep_of(
    series: Mapping[str, Mapping[int, float]],
    intensities: Mapping[int, float] | None = None,
    hardware: str = "h200",
) -> BatchSweep:
    results = results_of(series, hardware)
    placed = {
        r.key: Place(intensity=intensities[r.point.scheduler.batch_size], rate=1e14)
        for r in results
        if intensities and r.point.decode.policy == "baseline"
    }
    (sweep,) = batch_sweeps(plotted(results), placed)
    return sweep


@pytest.mark.parametrize(
    ("focus", "pays_from"),
    [
        ({1: 90, 2: 203, 4: 500, 8: 900}, 4),  # 1.5 % at batch 2 are not enough
        ({1: 90, 2: 205, 4: 500, 8: 900}, 2),
        ({1: 150, 2: 150, 4: 500, 8: 900}, 4),  # a win at batch 1 that does not last is none
        ({1: 150, 2: 300, 4: 500, 8: 900}, 1),
        ({1: 150, 2: 300, 4: 500, 8: 700}, None),
        ({4: 500, 8: 900, 16: 1}, 4),  # nothing to set batch 16 against
    ],
)
def test_a_policy_pays_from_the_batch_from_which_on_it_is_2_percent_ahead(
    focus: dict[int, float], pays_from: int | None
) -> None:
    baseline = {1: 100.0, 2: 200.0, 4: 400.0, 8: 700.0}
    (other,) = sweep_of({"baseline": baseline, "focus": focus}).others
    assert other.pays_from == pays_from


def test_the_baseline_is_compute_bound_from_the_ridge_on() -> None:
    baseline = {1: 100.0, 2: 200.0, 4: 400.0}
    ridge = ridge_of(HARDWARE["h200"])
    assert ridge == pytest.approx(989e12 / 4.8e12)
    series = {"baseline": baseline, "ideal": {1: 110.0, 2: 220.0, 4: 440.0}}
    at = {1: 30.0, 2: ridge, 4: 400.0}
    sweep = sweep_of(series, at)
    assert sweep.compute_bound_from == 2
    assert sweep.roof == {
        1: pytest.approx(30 * 4.8e12),
        2: pytest.approx(989e12),
        4: pytest.approx(989e12),
    }
    assert list(sweep.marks.values()) == ["batch 2: compute-bound"]  # ideal is a bound, no choice
    assert sweep_of(series, {**at, 4: 100.0}).compute_bound_from is None
    assert sweep_of(series).compute_bound_from is None
    assert sweep_of(series, at, hardware="unknown").ridge is None
    assumed = sweep_of(series, at, hardware="h200+lmdeploy-eager")
    assert assumed.ridge == ridge


def test_each_hardware_and_setting_is_a_sweep_of_its_own_and_needs_a_baseline() -> None:
    both = {"baseline": {1: 1.0, 2: 2.0}, "focus": {1: 2.0, 2: 3.0}}
    results = [*results_of(both), *results_of(both, "b200"), *results_of({"focus": {1: 1.0}}, "a")]
    found = batch_sweeps(plotted(results), {})
    assert [sweep.hardware for sweep in found] == ["b200", "h200"]
    # As many requests as the batch asks for are no setting of their own.
    (filled,) = batch_sweeps(plotted(results_of(both, fills=8)), {})
    assert filled.batches == (1, 2)


def shown(sweep: BatchSweep, capsys: pytest.CaptureFixture[str]) -> str:
    make_console().print(what_if_table(sweep))
    return capsys.readouterr().out


def test_the_table_says_both_marks_in_words_and_at_their_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    series = {
        "baseline": {1: 100.0, 2: 200.0, 4: 300.0},
        "focus": {1: 90.0, 2: 210.0, 4: 600.0},
        "ideal": {1: 101.0, 2: 240.0, 4: 750.0},
    }
    out = shown(sweep_of(series, {1: 30.0, 2: 60.0, 4: 400.0}), capsys)
    words = " ".join(out.split())
    assert "focus pays from batch 2 on ideal:" in words
    assert "pays: output throughput more than 2 % above the baseline's, there and at every" in words
    assert "compute-bound from batch 4 on (at or beyond the data sheet's ridge of 206 FLOP" in words
    assert "the bound on any predictor" in words
    rows = [line.split() for line in out.splitlines()[-4:-1]]
    assert [row[0] for row in rows] == ["1", "2", "4"]
    assert rows[1][1:3] == ["focus", "pays"]
    assert rows[2][1] == "compute-bound"
    assert rows[2][2:7] == ["300", "600", "2.00x", "750", "2.50x"]
    never = shown(sweep_of({"baseline": {1: 2.0}, "focus": {1: 2.0}}), capsys)
    assert "focus pays at no batch up to 1" in never
    bound = shown(sweep_of({"baseline": {1: 2.0}, "ideal": {1: 2.0}}), capsys)
    assert "pays" not in bound
    assert "no roofline" in never


def test_the_csv_has_a_row_for_each_batch_and_series() -> None:
    sweep = sweep_of({"baseline": {1: 2.0, 2: 2.0}, "focus": {1: 3.0, 2: 4.0}}, {1: 1.0, 2: 999.0})
    rows = list(csv.DictReader(io.StringIO(what_if_csv([sweep]))))
    assert [(r["policy"], r["batch_size"], r["speedup"]) for r in rows] == [
        ("baseline", "1", "1.0"),
        ("baseline", "2", "1.0"),
        ("focus", "1", "1.5"),
        ("focus", "2", "2.0"),
    ]
    assert {r["baseline_compute_bound_from_batch"] for r in rows} == {"2"}
    assert [r["pays_from_batch"] for r in rows] == ["", "", "1", "1"]
    assert {r["source"] for r in rows} == {"predicted"}


def test_hardware_stands_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    slow = {"baseline": {8: 100.0, 16: 110.0}, "focus": {8: 150.0, 16: 220.0}}
    fast = {"baseline": {8: 1000.0}, "focus": {8: 1700.0}}
    assert hardware_table(results_of(slow)) is None
    table = hardware_table([*results_of(slow, "a100-sxm4-80g"), *results_of(fast, "h200")])
    assert table is not None
    make_console().print(table)
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.startswith(("baseline", "focus"))]
    assert [row[0:2] + row[3:] for row in rows] == [
        ["baseline", "8", "100", "1.00x", "1k", "1.00x"],
        ["baseline", "16", "110", "1.00x", "-", "-"],
        ["focus", "8", "150", "1.50x", "1.7k", "1.70x"],
        ["focus", "16", "220", "2.00x", "-", "-"],
    ]
