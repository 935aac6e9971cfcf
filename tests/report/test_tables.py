"""Tables rendered at fixed widths: exact text where it matters, and never wider than asked."""

import dataclasses
import io

import pytest
from report_samples import PROVENANCE, make_point, make_request, make_result, make_run
from rich.cells import cell_len
from rich.console import Console

from focus_bench.core.config import AcceptanceConfig, PointConfig
from focus_bench.core.workload import Provenance
from focus_bench.report import formats
from focus_bench.report.captions import captions, data_line
from focus_bench.report.compare import pair_results
from focus_bench.report.detail import point_detail
from focus_bench.report.goodput import GoodputThresholds
from focus_bench.report.results import result_of
from focus_bench.report.tables import (
    comparison_table,
    facts_table,
    failures_table,
    plan_table,
    results_table,
)

POLICIES = ("baseline", "delayed-cache-neighbor", "focus")


def render(item, width: int = 80, encoding: str = "utf-8", **options: object) -> list[str]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=file, width=width, markup=False, highlight=False, **options).print(item)
    file.flush()
    return [line.rstrip() for line in raw.getvalue().decode(encoding).splitlines()]


def sweep(batches=(8, 32), sources=("measured", "predicted")):
    return [
        make_result(
            make_point(policy, batch_size=batch),
            source=source,
            output_tokens=batch * tokens * (i + 1),
            notes=("extrapolated decode dynamics",)
            if (policy, batch, source) == ("focus", 32, "predicted")
            else (),
        )
        for batch in batches
        for i, policy in enumerate(POLICIES)
        for source, tokens in zip(("measured", "predicted"), (400, 430), strict=True)
        if source in sources
    ]


def test_main_table_at_80_columns():
    lines = render(results_table(sweep()))
    assert lines[3:22] == [
        "data: sharegpt, local file; s.json; 10 of 12 rows used; left out: 2 empty prompt",
        "measured: dummy weights",
        "synthetic acceptance (synthetic:sharegpt=2,scatter=0,fitted)",
        "synthetic importance (synthetic:tau=4,noise=0.1)",
        "no chat template",
        "[1] predicted: extrapolated decode dynamics",
        "+-: one run each, so run-to-run noise is not known (--num-runs)",
        "~ fewer than 2 samples for a p50, 10 samples for a p90, 100 samples for a p99",
        "",
        "                                  meas. +-  pred. err. x base +- x base proc./",
        "policy                 batch  B # tok/s  %  tok/s    %  meas.  %  pred.   dec.",
        "\u2500" * 78,
        "baseline                   8 32     800  -    860 +7.5  1.00x  -  1.00x   4.00",
        "delayed-cache-neighbor     8 32    1.6k  -  1.72k +7.5  2.00x  -  2.00x   4.00",
        "focus                      8 32    2.4k  -  2.58k +7.5  3.00x  -  3.00x   4.00",
        "baseline                  32 32    3.2k  -  3.44k +7.5  1.00x  -  1.00x   4.00",
        "delayed-cache-neighbor    32 32    6.4k  -  6.88k +7.5  2.00x  -  2.00x   4.00",
        "focus                     32 32 1  9.6k  - 10.32k +7.5  3.00x  -  3.00x   4.00",
        "",
    ]
    assert lines[22:26] == [
        "                                  tok/    TTFT     TPOT     E2E",
        "policy                 batch  B # step     p50      p50     p50",
        "\u2500" * 63,
        "baseline                   8 32   3.20 ~1.00 s  ~625 us ~3.00 s",
    ]


def test_main_table_at_120_columns_is_one_table_with_every_column():
    lines = render(results_table(sweep()), 120)
    (heading,) = [line for line in lines if line.startswith("policy")]
    names = "policy batch B # tok/s % tok/s % meas. % pred. dec. step p50 p50 p50"
    assert heading.split() == names.split()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_nothing_is_wider_than_asked(width, encoding):
    results = sweep()
    long = dataclasses.replace(
        results[0].point,
        engine=dataclasses.replace(results[0].point.engine, model="/data/models/" + "x" * 80),
    )
    results.append(make_result(long))
    items = (
        results_table(results),
        comparison_table(results),
        plan_table([r.point for r in results]),
        point_detail(results[0]),
    )
    for item in items:
        for line in render(item, width, encoding):
            assert cell_len(line) <= width


def test_noise_stands_beside_measurement_and_speedup_and_is_a_dash_for_one_run():
    results = [
        make_result(make_point("baseline"), output_tokens=200, run_tokens=(190, 200, 210)),
        make_result(make_point("focus"), output_tokens=500, run_tokens=(480, 500, 520)),
        make_result(make_point("baseline", batch_size=32), output_tokens=200),
        make_result(make_point("focus", batch_size=32), output_tokens=500),
    ]
    lines = render(results_table(results), 120)
    assert "+-: half of the 95 % t-interval of the mean over 1 to 3 runs, in percent" in lines
    rows = [line.split()[3:7] for line in lines if line[:8] in ("baseline", "focus   ")]
    # 4.303 * 2.5 / sqrt(3) / 50 and 4.303 * 5 / sqrt(3) / 125
    assert rows[0] == ["50", "12.4", "1.00x", "-"]
    assert rows[1][:3] == ["125", "9.9", "2.50x"]
    assert 9.9 < float(rows[1][3]) < 12.4 * 1.5
    assert rows[2] == ["50", "-", "1.00x", "-"]
    assert rows[3] == ["125", "-", "2.50x", "-"]
    predicted = [make_result(r.point, source="predicted") for r in results]
    compared = render(comparison_table([*results, *predicted]), 160)
    (first,) = [line.split() for line in compared if line.split()[:3] == ["focus", "8", "32"]]
    assert first[3:5] == ["-20.0", "9.9"]


def test_goodput_is_shown_with_its_limits():
    limits = GoodputThresholds.parse(["ttft:1500", "tpot:20"])
    requests = [make_request(0, output_tokens=400), make_request(1, output_tokens=5)]
    result = result_of(make_point(), make_run(requests), provenance=PROVENANCE, goodput=limits)
    lines = render(results_table([result]), 120)
    assert "good: requests with TTFT <= 1500 ms, TPOT <= 20 ms" in lines
    row = next(line for line in lines if line.startswith("focus"))
    assert row.split()[-1] == "0.25"  # one of two in 4 s
    assert "good" not in "\n".join(render(results_table([make_result(make_point())])))
    detail = "\n".join(render(point_detail(result), 120))
    assert "0.25 req/s (TTFT <= 1500 ms, TPOT <= 20 ms)" in detail


def test_two_models_are_one_table_at_80_columns():
    def of(point, model, mean, preset):
        return dataclasses.replace(
            point,
            engine=dataclasses.replace(point.engine, model=model),
            acceptance=AcceptanceConfig(kind="synthetic", mean=mean, preset=preset),
        )

    results = [
        make_result(of(make_point(policy), *model), source="predicted")
        for model in (("focus-tiny", 3.0, "focus-tiny"), ("sdar-8b", 2.0, "sharegpt"))
        for policy in ("baseline", "focus")
    ]
    lines = render(results_table(results))
    assert len([line for line in lines if line.startswith("policy")]) == 1
    rows = [line.split()[:5] for line in lines if line[:8] in ("baseline", "focus   ")]
    assert [(row[0], row[3], row[4]) for row in rows] == [
        ("baseline", "focus-tiny", "1"),
        ("focus", "focus-tiny", "1"),
        ("baseline", "sdar-8b", "2"),
        ("focus", "sdar-8b", "2"),
    ]
    assert "[2] synthetic acceptance (synthetic:sharegpt=2,scatter=0,fitted)" in lines


def test_predictions_for_another_device_are_named_above_both_tables():
    point = make_point()
    results = [
        make_result(point, hardware="cpu", settings={"device": "cpu"}),
        make_result(point, source="predicted", settings={"for device": "NVIDIA H200"}),
    ]
    line = "hardware differs: measured with device cpu, predicted for device NVIDIA H200"
    for table in (results_table(results), comparison_table(results)):
        assert line in render(table)


def test_only_measured_results_have_no_predicted_columns():
    lines = render(results_table(sweep(sources=("measured",))))
    text = "\n".join(lines)
    assert "pred." not in text
    assert "err." not in text
    assert "dummy weights" in lines  # of every row, so without the source's name


def test_settings_that_vary_become_columns_and_the_others_the_title():
    points = [make_point("focus", alpha=alpha) for alpha in (1.2, 1.8)]
    lines = render(results_table([make_result(point) for point in points]), 120)
    assert not any("alpha" in line for line in lines[:2])
    assert "threshold 0.9" in " ".join(lines[:2])
    row = next(line for line in lines if line.startswith("focus"))
    assert row.split()[:4] == ["focus", "8", "32", "1.2"]


def test_undefined_figures_are_a_dash():
    result = result_of(make_point(), make_run(duration_s=0.0), provenance=PROVENANCE)
    lines = render(results_table([result]), 120)
    row = next(line for line in lines if line.startswith("focus"))
    assert row.split()[3:] == ["-"] * 7  # tok/s, its noise, two ratios and three latencies
    assert render(results_table([])) == ["no results"]


def test_no_speedup_is_shown_without_a_baseline():
    text = "\n".join(render(results_table([make_result(make_point("focus"))])))
    assert "x base" not in text


def test_failures_are_named_by_reason():
    requests = [
        make_request(i, finish_reason="error", error="pool has [64] pages") for i in range(3)
    ]
    requests.append(make_request(4, finish_reason="aborted"))
    result = result_of(make_point(), make_run(requests), provenance=PROVENANCE)
    assert failures_table([make_result(make_point())]) is None
    table = failures_table([result])
    assert render(table) == [
        "failed requests",
        "measured focus, batch 8, B 32: 3 x error: pool has [64] pages",
        "measured focus, batch 8, B 32: 1 x aborted",
    ]
    assert render(failures_table([result], most=1))[-1].endswith("1 x 1 other reasons")
    assert "failed" in "\n".join(render(results_table([result]), 120))


@pytest.mark.parametrize(("side", "other"), [("measured", "predicted"), ("predicted", "measured")])
def test_failed_requests_are_those_of_the_side_that_failed(side, other):
    requests = [make_request(0), make_request(1, finish_reason="aborted")]
    failing = result_of(make_point(), make_run(requests, source=side), provenance=PROVENANCE)
    results = [failing, make_result(make_point(), source=other)]
    for table in (results_table(results), comparison_table(results, head=False)):
        lines = render(table, 120)
        (row,) = (i for i, line in enumerate(lines) if line.startswith("policy  batch"))
        assert lines[row - 1].split()[-1] == "failed"
        assert lines[row].split()[-1] == f"{side[:4]}."
        assert lines[row + 2].split()[-1] == "1"
        assert f"{other[:4]}." not in lines[row]


def test_comparison_shows_errors_and_their_means():
    lines = render(comparison_table(sweep(), head=False))
    assert lines[0].startswith("error of the prediction")
    assert [line.split() for line in lines if line.startswith("all")] == [
        ["all", "6", "7.5", "7.5"]
    ]
    assert render(comparison_table([make_result(make_point())])) == [
        "no point was both measured and predicted"
    ]


def test_detail_marks_percentiles_of_few_samples_and_says_how_many():
    text = render(point_detail(make_result(make_point(), notes=("ran on the CPU",))))
    assert text[0].startswith("measured focus, batch 8, B 32, point ")
    assert "ran on the CPU" in text
    ttft = next(line for line in text if line.startswith("TTFT"))
    assert ttft.split() == ["TTFT", "1.00", "s", *["~1.00", "s"] * 3, "1"]
    assert any(line.split() == ["output", "throughput", "100", "tok/s"] for line in text)


def test_detail_of_a_run_without_requests_shows_dashes():
    result = result_of(make_point(), make_run(duration_s=0.0), provenance=PROVENANCE)
    text = render(point_detail(result))
    assert any(line.split() == ["output", "throughput", "-", "tok/s"] for line in text)
    ttft = next(line for line in text if line.startswith("TTFT"))
    assert ttft.split() == ["TTFT", "-", "-", "-", "-", "0"]


def test_detail_says_how_fast_requests_came_in_and_how_runs_spread():
    run = make_run(
        [make_request(i, arrival_s=float(i), admitted_s=float(i)) for i in range(3)],
        requested_rate=9.0,
    )
    result = result_of(make_point(), run, provenance=PROVENANCE)
    text = "\n".join(render(point_detail(result)))
    assert "1 req/s reached, 9 req/s asked" in text
    text = "\n".join(render(point_detail(make_result(make_point(), run_tokens=(40, 48, 56)))))
    assert "mean 12, std 2, 95 % interval 7.032 to 16.97 tok/s" in text


def test_plan_lists_points_and_what_is_finished():
    points: list[PointConfig] = [make_point(policy) for policy in POLICIES]
    lines = render(plan_table(points, [True, False, False]))
    assert lines[0] == "3 points"
    states = {line.split()[0]: line.split()[-1] for line in lines if line.split()[:1]}
    assert states["baseline"] == "finished"
    assert render(plan_table(points[:1]))[0] == "1 point"


def test_facts_are_aligned():
    assert render(facts_table([("GPU", "none"), ("version", "1")])) == [
        "GPU      none",
        "version  1",
    ]


def test_data_that_was_cut_off_or_made_up_is_named():
    provenance = Provenance(
        dataset="sharegpt",
        origin="synthetic",
        tokenizer="bytes",
        rows_read=5,
        rows_kept=3,
        dropped={"blank": 2, "long": 0},
        truncated=True,
        synthetic=True,
    )
    assert data_line(provenance) == (
        "data: sharegpt, synthetic; 3 of 5 rows used; left out: 2 blank; the file ends inside a row"
    )
    lines = render(results_table([make_result(make_point(), provenance=provenance)]), 120)
    assert "synthetic data (sharegpt)" in lines


def test_notes_of_some_rows_only_are_numbered():
    results = [
        make_result(make_point("baseline"), notes=("a", "all")),
        make_result(make_point("focus"), notes=("b", "all")),
    ]
    found = captions(pair_results(results))
    assert found.lines[-3:] == ("[1] a", "all", "[2] b")
    assert found.marks == ("1", "2")


def test_no_colour_where_none_is_wanted(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    lines = render(results_table(sweep()), force_terminal=True)
    assert not any("\x1b[3" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formats.number(None), "-"),
        (formats.number(0.0), "0"),
        (formats.number(12.345), "12.35"),
        (formats.number(999.96), "1k"),
        (formats.number(12346.0), "12.35k"),
        (formats.number(-2.5e6), "-2.5M"),
        (formats.number(float("inf")), "inf"),
        (formats.number(1e30), "1e+12E"),
        (formats.seconds(None), "-"),
        (formats.seconds(0.0), "0 s"),
        (formats.seconds(0.9996), "1.00 s"),
        (formats.seconds(0.0123), "12.3 ms"),
        (formats.seconds(4.5e-4), "450 us"),
        (formats.seconds(250.0), "250 s"),
        (formats.byte_size(16381470720), "16.38 GB"),
        (formats.byte_size(12), "12 B"),
        (formats.share(0.1234), "12.3 %"),
        (formats.signed_percent(-3.0), "-3.0"),
        (formats.factor(1.456), "1.46x"),
        (formats.fixed(None), "-"),
    ],
)
def test_formats(text, expected):
    assert text == expected
