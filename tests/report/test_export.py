"""Rows, CSV and JSON of results, and records through JSON and back."""

import csv
import dataclasses
import io
import json
import math

import numpy as np
import pytest
from report_samples import (
    PROVENANCE,
    make_point,
    make_request,
    make_result,
    make_run,
    make_step,
)

from focus_bench.core.config import PointConfig, WorkloadConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.intervals import Interval, interval_settings
from focus_bench.core.workload import Provenance
from focus_bench.report.codec import from_plain, to_plain
from focus_bench.report.export import (
    requests_csv,
    results_json,
    runs_csv,
    steps_csv,
    summary_csv,
    summary_row,
    vllm_row,
)
from focus_bench.report.failures import PointFailure
from focus_bench.report.results import PointResult, result_of


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_summary_row_has_the_documented_columns_first_and_raw_numbers():
    result = make_result(make_point("focus", batch_size=32, alpha=1.8))
    row = summary_row(result)
    assert list(row)[:12] == [
        "point_hash",
        "source",
        "hardware",
        "policy",
        "model",
        "dataset",
        "batch_size",
        "block_length",
        "alpha",
        "threshold",
        "unmasking_strategy",
        "acceptance",
    ]
    assert row["policy"] == "focus"
    assert (row["batch_size"], row["block_length"], row["alpha"]) == (32, 32, 1.8)
    assert row["acceptance"] == "synthetic:sharegpt=2,scatter=0,fitted"
    assert row["importance"] == "synthetic:tau=4,noise=0.1"
    assert row["output_throughput"] == 100.0
    assert row["processed_per_decoded"] == 4.0
    assert row["tokens_per_step"] == 3.2
    assert row["ttft_p50_ms"] == 1000.0
    assert row["e2e_p99_ms"] == 3000.0
    assert row["step_time_mean_ms"] == 500.0
    assert row["step_share_suffix"] == pytest.approx(0.4)
    assert row["num_runs"] == 1
    assert row["finished_by_reason"] == "length=1"
    assert row["failed_by_reason"] is None


def test_threads_are_those_of_the_run_or_of_the_predicted_cpu():
    point = make_point()
    engine = dataclasses.replace(point.engine, threads=3)
    failure = PointFailure(
        point_hash="0" * 16,
        source="measured",
        hardware="cpu",
        point=dataclasses.replace(point, engine=engine),
        reason="out of memory",
    )
    results = [
        make_result(point, settings={"device": "cpu", "threads": "2"}),
        make_result(point, source="predicted", settings={"for device": "cpu", "for threads": "1"}),
        make_result(point, source="predicted", settings={"for device": "NVIDIA H200"}),
    ]
    rows = read_csv(summary_csv(results, [failure]))
    assert [row["threads"] for row in rows] == ["2", "1", "", "3"]
    assert [vllm_row(result)["threads"] for result in results] == [2, 1, None]


def test_labels_name_whatever_stands_for_something_else():
    provenance = Provenance(dataset="sharegpt", origin="synthetic", tokenizer="b", synthetic=True)
    notes = ("extrapolated decode dynamics",)
    measured = make_result(make_point(), provenance=provenance, notes=notes)
    row = summary_row(measured)
    assert row["labels"] == (
        "dummy weights; synthetic acceptance (synthetic:sharegpt=2,scatter=0,fitted); "
        "synthetic importance (synthetic:tau=4,noise=0.1); synthetic data (sharegpt)"
    )
    assert row["notes"] == "extrapolated decode dynamics"
    predicted = make_result(make_point(), source="predicted")
    assert "dummy weights" not in predicted.labels
    assert predicted.all_notes[-1] == "no chat template"


def test_undefined_figures_are_empty_cells():
    result = result_of(
        make_point(),
        make_run(duration_s=0.0, step_fed_tokens=0),
        provenance=PROVENANCE,
    )
    (row,) = read_csv(summary_csv([result]))
    assert row["output_throughput"] == row["tpot_p99_ms"] == row["retained_fraction"] == ""
    assert row["tpot_count"] == "0"


def test_summary_csv_is_one_header_and_one_row_a_result():
    results = [make_result(make_point(p)) for p in ("baseline", "focus")]
    lines = summary_csv(results).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("point_hash,source,")
    assert summary_csv([]) == ""


def test_repeats_give_mean_and_interval_and_every_run_is_kept():
    result = make_result(make_point(), output_tokens=48, run_tokens=(48, 56, 40))
    row = summary_row(result)
    assert (row["num_runs"], row["output_throughput_mean"]) == (3, 12.0)
    assert row["output_throughput_std"] == 2.0
    assert row["output_throughput_cv_percent"] == pytest.approx(100 / 6)
    low, high = row["output_throughput_ci95_low"], row["output_throughput_ci95_high"]
    # t(0.975, 2) = 0.95 / sqrt(2 * 0.975 * 0.025), times 2 / sqrt(3)
    assert (low, high) == (pytest.approx(7.03172, abs=1e-5), pytest.approx(16.96828, abs=1e-5))
    one = make_result(make_point("baseline"), output_tokens=400)
    rows = read_csv(runs_csv([result, one]))
    assert [(r["run"], float(r["output_throughput"])) for r in rows] == [
        ("1", 12.0),
        ("2", 14.0),
        ("3", 10.0),
        ("1", 100.0),
    ]
    assert [r["point_hash"] for r in rows] == [*[result.point_hash] * 3, one.point_hash]
    assert float(rows[1]["tpot_p50_ms"]) == pytest.approx(2000 / 55)
    assert runs_csv([]) == ""
    first, second = json.loads(results_json([result, one]))["points"]
    assert [run["output_throughput"] for run in first["runs"]] == [12.0, 14.0, 10.0]
    assert (first["num_runs"], second["num_runs"]) == (3, 1)
    assert first["output_throughput_ci95_low"] == low
    assert second["output_throughput_ci95_low"] is None
    assert len(second["runs"]) == 1


def test_intervals_of_a_prediction_are_cells_in_the_unit_of_their_figure():
    result = make_result(make_point())
    said = {
        "output_throughput": Interval(low=90.0, high=110.0),
        "ttft_p99_s": Interval(low=0.25, high=0.5),
    }
    settings = {"domain": "calibrated", **interval_settings(said)}
    row = summary_row(dataclasses.replace(result, source="predicted", settings=settings))
    assert row["domain"] == "calibrated"
    assert row["output_throughput_interval_low"] == 90.0
    assert row["output_throughput_interval_high"] == 110.0
    assert (row["ttft_p99_interval_low_ms"], row["ttft_p99_interval_high_ms"]) == (250.0, 500.0)
    assert row["e2e_p50_interval_low_ms"] is None
    assert summary_row(result)["domain"] is None


def test_percentiles_of_few_samples_are_named_beside_their_values():
    requests = [make_request(i) for i in range(12)]
    result = result_of(make_point(), make_run(requests), provenance=PROVENANCE)
    row = summary_row(result)
    assert (row["ttft_p99_ms"], row["ttft_count"]) == (1000.0, 12)
    assert row["ttft_few_samples"] == "p99"
    assert row["block_latency_few_samples"] == "p50 p90 p99"  # a single one
    assert row["step_time_few_samples"] is None  # without any
    strict = vllm_row(result)
    assert (strict["ttft_samples"], strict["ttft_few_samples"]) == (12, "p99")
    many = make_run([make_request(i) for i in range(100)])
    row = summary_row(result_of(make_point(), many, provenance=PROVENANCE))
    assert row["ttft_few_samples"] is None


def test_request_rows_carry_point_source_and_latencies():
    point = make_point()
    run = make_run(
        [
            make_request(0, output_tokens=5),
            make_request(1, finish_reason="error", error='a, "b"\nc', first_token_s=None),
        ]
    )
    result = result_of(point, run, provenance=PROVENANCE, hardware="cpu")
    rows = read_csv(requests_csv(result, run))
    assert [row["request_id"] for row in rows] == ["0", "1"]
    assert {row["point_hash"] for row in rows} == {point.hash()}
    assert {(row["source"], row["hardware"]) for row in rows} == {("measured", "cpu")}
    assert float(rows[0]["tpot_s"]) == 0.5
    assert float(rows[0]["queue_s"]) == 0.5
    assert rows[1]["error"] == 'a, "b"\nc'
    assert rows[1]["first_token_s"] == rows[1]["ttft_s"] == ""


def test_step_rows_carry_counts_and_timings():
    run = make_run([make_request(0)], [make_step(0, start_s=0.25), make_step(1, start_s=1.0)])
    result = result_of(make_point(), run, provenance=PROVENANCE)
    rows = read_csv(steps_csv(result, run))
    assert [float(row["start_s"]) for row in rows] == [0.25, 1.0]
    assert [int(row["pages_used"]) for row in rows] == [3, 4]
    assert float(rows[0]["duration_s"]) == 0.5
    assert float(rows[0]["suffix_s"]) == 0.2
    assert "timing" not in rows[0]


def test_results_json_uses_the_names_of_vllm_and_is_strict_json():
    result = make_result(make_point())

    def refuse(name: str) -> None:
        raise AssertionError(name)

    data = json.loads(results_json([result]), parse_constant=refuse)
    (row,) = data["points"]
    assert row["request_rate"] == "inf"
    assert row["completed"] == 1
    assert row["duration"] == 4.0
    assert row["total_input_tokens"] == 1000
    assert row["total_output_tokens"] == 400
    assert row["output_throughput"] == 100.0
    assert row["request_throughput"] == 0.25
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert {f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99")} <= row.keys()
    assert row["median_ttft_ms"] == 1000.0
    runs = row.pop("runs")
    assert row == to_plain(vllm_row(result))
    assert [run["output_throughput"] for run in runs] == [100.0]


@pytest.mark.parametrize("rate", [math.inf, 12.5])
def test_point_configuration_survives_json(rate):
    point = PointConfig(
        engine=make_point().engine,
        acceptance=make_point().acceptance,
        workload=WorkloadConfig(request_rate=rate, max_concurrency=None, dataset_path="ä.json"),
    )
    text = json.dumps(to_plain(point), allow_nan=False)
    again = from_plain(PointConfig, json.loads(text), "run.json")
    assert again == point
    assert again.hash() == point.hash()


def test_result_survives_json():
    result = make_result(make_point(), notes=("a", "b"), hardware="H200 (datasheet)")
    plain = json.loads(json.dumps(to_plain(result)))
    assert from_plain(PointResult, plain, "point") == result


def test_numpy_figures_do_not_leak_into_json():
    run = make_run(
        [make_request(i) for i in range(3)],
        [make_step(i, start_s=float(i)) for i in range(3)],
        steps_per_block=np.arange(1, 9),
        requested_rate=2.0,
    )
    json.dumps(to_plain(result_of(make_point(), run, provenance=PROVENANCE)), allow_nan=False)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dataset": 3}, "f.json dataset"),
        ({"rows_read": True}, "f.json rows_read"),
        ({"rows_read": 1.5}, "f.json rows_read"),
        ({"notes": "text"}, "f.json notes"),
        ({"notes": [1]}, r"f.json notes\[0\]"),
        ({"dropped": {"x": "y"}}, "f.json dropped x"),
        ({"synthetic": None}, "f.json synthetic"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_wrong_types_are_refused_by_name(change, named):
    plain = to_plain(PROVENANCE)
    with pytest.raises(UsageError, match=named):
        from_plain(Provenance, plain | change, "f.json")


def test_missing_fields_and_other_shapes_are_refused_by_name():
    plain = to_plain(PROVENANCE)
    del plain["sha256"]
    with pytest.raises(UsageError, match="sha256"):
        from_plain(Provenance, plain, "f.json")
    with pytest.raises(UsageError, match=r"f\.json"):
        from_plain(Provenance, [1], "f.json")
