"""The points of the paper's throughput parts, and how they become tables."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from focus_bench.bench.paper import parts_named
from focus_bench.bench.paper_speed import (
    SPANS,
    SPEED_PARTS,
    PaperSetup,
    SpeedSetting,
    gap_reasons,
    speed_parts_named,
    speed_settings,
)
from focus_bench.bench.paper_speed_parts import SpeedFindings, speed_part
from focus_bench.core.errors import UsageError
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Provenance
from focus_bench.report.distribution import Distribution
from focus_bench.report.plots import LineChart
from focus_bench.report.results import PointResult, result_of

SETUP = PaperSetup()


def test_parts_are_told_apart_and_run_in_order() -> None:
    names = ["fig6", "table3", "table5"]
    assert speed_parts_named(names) == ("table5", "fig6")
    assert parts_named(names) == ("table3",)
    assert (
        speed_parts_named(["all-throughput"])
        == SPEED_PARTS
        == tuple(sorted(SPANS, key=SPEED_PARTS.index))
    )
    assert parts_named(["all-throughput"]) == ()
    with pytest.raises(
        UsageError, match=r"part: 'fig5'.*table3.*fig18.*fig19.*fig17.*all-quality, all-throughput"
    ):
        parts_named(["fig5"])


def test_the_papers_settings() -> None:
    def points(part: str) -> list[tuple[str, str, str, int, int, float]]:
        return [
            (
                s.gpu,
                s.dataset,
                s.point.decode.policy,
                s.point.scheduler.batch_size,
                s.point.decode.block_length,
                s.point.decode.alpha,
            )
            for s in speed_settings(part, SETUP)
        ]

    batches = (32, 64, 128, 256)
    assert points("fig6") == [
        ("a100-sxm4-80g", "sharegpt", policy, batch, 32, 1.5)
        for batch in batches
        for policy in ("baseline", "focus")
    ]
    assert [p[1:] for p in points("fig17")] == [p[1:] for p in points("fig6")]
    assert {p[0] for p in points("fig17")} == {"h100-pcie"}
    assert {p[4] for p in points("fig7")} == {16, 64}
    assert len(points("fig15")) == len(batches) * (1 + 4)  # alpha is none of the baseline's
    assert [p[1:4] for p in points("table7")] == [
        (dataset, policy, 1)
        for dataset in ("sharegpt", "wildchat", "math")
        for policy in ("baseline", "focus")
    ]
    assert points("fig19") == [
        ("a100-sxm4-80g", "sharegpt", policy, batch, 32, 1.5)
        for batch in batches
        for policy in ("baseline", "fast-dllm-v2", "focus")
    ]
    assert set(points("fig6")) < set(points("fig19"))


def test_fast_dllm_runs_as_the_paper_has_it() -> None:
    def setups(part: str) -> dict[str, tuple[str, str]]:
        points = [s.point for s in speed_settings(part, SETUP)]
        return {p.decode.policy: (p.engine.model, p.scheduler.kind) for p in points}

    assert setups("fig18") == {
        "fast-dllm-v2": ("fast-dllm-v2-7b", "static"),  # our model of its official code
        "focus": ("sdar-8b", "continuous"),
    }
    assert set(setups("fig19").values()) == {("sdar-8b", "continuous")}
    points = {p: [s.point for s in speed_settings(p, SETUP)] for p in ("fig6", "fig18", "fig19")}
    shared = {p.hash() for p in points["fig6"]}
    for part in ("fig18", "fig19"):  # FOCUS and the baseline are those of Fig. 6, simulated once
        assert all(p.hash() in shared for p in points[part] if p.decode.policy != "fast-dllm-v2")


def test_every_data_set_decodes_as_its_own_ratio_says_on_lengths_of_sharegpt() -> None:
    found = {s.dataset: s.point for s in speed_settings("table5", SETUP)}
    assert {d: p.acceptance.mean for d, p in found.items()} == {
        "sharegpt": 2.351,
        "wildchat": 2.385,
        "math": 5.363,
    }
    for point in found.values():
        assert point.workload.dataset == "synthetic"
        assert point.workload.max_new_tokens == 2048
        assert point.workload.num_prompts == 5000
    asked = ("sharegpt", "math")
    own = PaperSetup(tokenizer="folder", paths={"math": "file.jsonl"}, datasets=asked)
    read = {s.dataset: s.point.workload for s in speed_settings("table5", own)}
    assert [(w.dataset, w.dataset_path) for w in read.values()] == [
        ("sharegpt", ""),
        ("math", "file.jsonl"),
    ]


def test_few_requests_at_batch_1_and_rounds_of_128_positions_for_the_baseline() -> None:
    assert {s.point.workload.num_prompts for s in speed_settings("table7", SETUP)} == {64}
    in_rounds = PaperSetup(in_rounds=True)
    rounds = {
        (s.point.decode.policy, s.point.decode.block_length): s.point.scheduler.steps_per_round
        for part in ("fig6", "fig7")
        for s in speed_settings(part, in_rounds)
    }
    assert rounds == {
        ("baseline", 16): 8,
        ("baseline", 32): 4,
        ("baseline", 64): 2,
        ("focus", 16): 1,
        ("focus", 32): 1,
        ("focus", 64): 1,
    }


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ({"model": "sdar-4b"}, "--model: 'sdar-4b'.*sdar-8b, llada2-mini in table5, "),
        ({"datasets": ("gsm8k",)}, "--dataset: 'gsm8k'.*sharegpt, wildchat, math"),
        ({"num_prompts": 0}, "--num-prompts: 0"),
        ({"paths": {"math": "x"}}, "--dataset-path: 'math'.*--tokenizer"),
    ],
)
def test_what_is_refused(setup: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PaperSetup(**setup)  # type: ignore[arg-type]


def test_reasons_name_the_devices_only_where_it_is_not_calibrated() -> None:
    assert len(gap_reasons("table5", SETUP, is_calibrated=False)) == 1
    few = dataclasses.replace(SETUP, num_prompts=255)
    assert "255 never fill a larger batch" in " ".join(gap_reasons("fig6", few, is_calibrated=True))
    assert "never fill" not in " ".join(gap_reasons("table7", few, is_calibrated=True))
    assert "roofline" in " ".join(gap_reasons("fig6", SETUP, is_calibrated=False))
    assert "roofline" not in " ".join(gap_reasons("fig6", SETUP, is_calibrated=True))


def test_reasons_name_what_of_fast_dllm_is_not_modelled() -> None:
    def said(part: str) -> str:
        return " ".join(gap_reasons(part, SETUP, is_calibrated=True))

    assert "gap, sub-blocks" in said("fig18")
    assert "gap, sub-blocks" in said("fig19")
    assert "gap, engine" in said("fig18")
    assert "gap, engine" not in said("fig19")
    assert "Fast-dLLM" not in said("fig6")


def predicted(setting: SpeedSetting) -> PointResult:
    """450 tokens/s of the baseline, else 900, in 1,000 steps of 0.1 s, a tenth of it the host's."""
    speed = 450 if setting.point.decode.policy == "baseline" else 900
    nothing = np.zeros(0)
    run = RunRecord(
        source="predicted",
        steps=(),
        requests=(),
        duration_s=100.0,
        step_fed_tokens=0,
        step_kept_tokens=0,
        steps_per_block=nothing.astype(np.int64),
        group_gaps_s=nothing,
        block_latencies_s=nothing,
        num_pages=1,
    )
    data = Provenance(dataset="synthetic", origin="synthetic", tokenizer="byte", synthetic=True)
    result = result_of(setting.point, run, provenance=data, hardware=setting.gpu)
    metrics = dataclasses.replace(
        result.metrics,
        total_output_tokens=speed * 100,
        output_throughput=float(speed),
        processed_per_decoded=3.0,
        step_time_s=Distribution.of([0.1] * 1000),
        step_shares=dataclasses.replace(result.metrics.step_shares, host=0.1),
    )
    return dataclasses.replace(result, metrics=metrics)


def findings_of(
    result_of: Callable[[SpeedSetting], PointResult | None], **options: object
) -> SpeedFindings:
    return SpeedFindings(
        result_of=result_of,
        hardware_of=lambda setting: setting.gpu,
        is_calibrated=False,
        **options,  # type: ignore[arg-type]
    )


def test_what_was_measured_stands_beside_and_has_a_line() -> None:
    def measured(setting: SpeedSetting) -> PointResult | None:
        if setting.point.scheduler.batch_size != 32:
            return None
        return dataclasses.replace(predicted(setting), source="measured", hardware="NVIDIA H200")

    made = speed_part("fig17", SETUP, findings_of(predicted, measured_of=measured))
    shown = {(r["policy"], r["batch_size"]): r for r in made.table.rows}
    assert shown["focus", 32]["measured_output_throughput"] == 900.0
    assert shown["focus", 32]["measured_on"] == "NVIDIA H200"
    assert "measured_on" not in shown["focus", 64]
    assert isinstance(made.chart, LineChart)
    (line,) = (s for s in made.chart.series if s.label == "focus, measured")
    assert (line.x, line.y) == ((32.0,), (900.0,))
    assert any(c.heading.startswith("meas.") for c in made.table.columns)
    without = speed_part("fig17", SETUP, findings_of(predicted))
    assert not any(c.heading.startswith("meas.") for c in without.table.columns)


def test_predictions_stand_beside_published_figures_but_fitted_ones_are_no_test() -> None:
    def part(name: str, setup: PaperSetup = SETUP, **options: object) -> list[dict[str, object]]:
        made = speed_part(name, setup, findings_of(predicted, **options))
        return [dict(row) for row in made.table.rows]

    rows = {(r["policy"], r["batch_size"]): r for r in part("fig6")}
    assert rows["baseline", 32]["output_throughput_over_published"] == 0.5  # of 900
    assert rows["focus", 256]["published_output_throughput"] == 2272
    assert rows["focus", 256]["speedup"] == 2.0
    assert rows["focus", 32]["published_output_throughput"] is None
    assert rows["focus", 32]["throughput_host_added"] is None
    ratios = {(r["policy"], r["dataset"]): r for r in part("table5")}
    fitted = {key for key, row in ratios.items() if row["processed_per_decoded_is"] == "fitted"}
    assert fitted == {
        ("baseline", "sharegpt"),
        ("baseline", "wildchat"),
        ("baseline", "math"),
        ("focus", "sharegpt"),
    }
    assert all(ratios[key]["processed_per_decoded_over_published"] is None for key in fitted)
    assert ratios["focus", "math"]["processed_per_decoded_over_published"] == 3.0 / 2.69
    other = part("table5", PaperSetup(model="llada2-mini"))
    assert [r["processed_per_decoded_is"] for r in other] == ["fitted", "beside"] * 3
    assert other[1]["published_processed_per_decoded"] == 4.19
    at_1 = part("table7", host_step_s=0.1, is_host_fitted=True)
    assert [r["output_throughput_is"] for r in at_1] == ["fitted", "beside"] * 3
    # 90 s of the device and 1,000 steps of 0.1 s on top: 190 s for what took 100.
    assert at_1[0]["throughput_host_added"] == pytest.approx(450 * 100 / 190)
    assert [r["output_throughput_is"] for r in part("table7")] == ["beside"] * 6


def by_policy(setting: SpeedSetting) -> PointResult:
    """450 tokens/s of the baseline and 600 of Fast-dLLM v2; of FOCUS 900, at batch 256 1,200."""
    decode, batch = setting.point.decode, setting.point.scheduler.batch_size
    of_focus = 1200.0 if batch == 256 else 900.0
    speed = {"baseline": 450.0, "fast-dllm-v2": 600.0}.get(decode.policy, of_focus)
    result = predicted(setting)
    metrics = dataclasses.replace(result.metrics, output_throughput=speed)
    return dataclasses.replace(result, metrics=metrics)


def test_in_one_engine_focus_stands_over_the_baseline_and_over_fast_dllm() -> None:
    table = speed_part("fig19", SETUP, findings_of(by_policy)).table
    rows = {(r["policy"], r["batch_size"]): r for r in table.rows}
    factors = {key: (r["speedup"], r["over_fast_dllm_v2"]) for key, r in rows.items()}
    assert factors["baseline", 32] == (1.0, 0.75)
    assert factors["fast-dLLM", 32] == (pytest.approx(4 / 3), 1.0)
    assert factors["focus", 32] == (2.0, 1.5)
    assert factors["focus", 256] == (pytest.approx(8 / 3), 2.0)
    largest = [line for line in table.lines if "largest" in line]
    assert largest[0] == "largest speed-up predicted: 2.67x (batch 256, B = 32)"
    assert largest[1].startswith(
        "largest speed-up over fast-dLLM predicted: 2.00x (batch 256, B = 32); published: up to "
        "1.91x (at larger batch sizes; over what is not said"
    )
    assert any("no throughputs" in line for line in table.lines if "in words" in line)
    for figure in ("published_output_throughput", "published_processed_per_decoded"):
        assert all(row[figure] is None for row in table.rows)  # only plotted: nothing is invented


def test_the_official_code_is_called_our_model_of_it_everywhere() -> None:
    made = speed_part("fig18", SETUP, findings_of(by_policy))
    assert {(r["policy"], r["model"], r["scheduler"]) for r in made.table.rows} == {
        ("fast-dLLM (our model)", "fast-dllm-v2-7b", "static"),
        ("focus", "sdar-8b", "continuous"),
    }
    assert all(r["speedup"] is None and r["over_fast_dllm_v2"] for r in made.table.rows)
    text = "\n".join(made.table.lines)
    assert "our model of Fast-dLLM v2's own engine (static batches, no paging)" in text
    assert (
        "largest speed-up over fast-dLLM (our model) predicted: 2.00x (batch 256, B = 32); "
        "published: up to 8.35x (SDAR, ShareGPT, over its official code)" in text
    )
    assert "published: arXiv 2601.23278, SDAR-8B-Chat and Fast-dLLM v2 7B;" in text
    assert all(row["published_output_throughput"] is None for row in made.table.rows)
    headings = [c.heading for c in made.table.columns]
    assert "x fast-dLLM\npred." in headings
    assert "model" in headings
    assert not any("x base" in heading for heading in headings)
    assert isinstance(made.chart, LineChart)
    assert [s.label for s in made.chart.series] == [
        "fast-dLLM (our model) fast-dllm-v2-7b, predicted",
        "focus sdar-8b, predicted",
    ]
    assert "our model" in made.chart.title
    assert "our model of" in made.chart.footer


def test_without_fast_dllm_a_part_says_nothing_of_it() -> None:
    table = speed_part("fig6", SETUP, findings_of(by_policy)).table
    assert not any("fast-dLLM" in c.heading for c in table.columns)
    assert not any("dLLM" in line for line in table.lines)
    assert all(row["over_fast_dllm_v2"] is None for row in table.rows)
    failed = speed_part("fig18", SETUP, findings_of(lambda setting: None)).table
    assert not any("largest speed-up" in line for line in failed.lines)


def test_charts_have_a_line_for_each_and_points_of_another_gpu_have_no_published_ones() -> None:
    def labels(name: str, gpus: tuple[str, ...] = ()) -> list[str]:
        findings = findings_of(
            lambda s: predicted(s) if s.point.scheduler.batch_size != 64 else None
        )
        made = speed_part(name, SETUP, findings, gpus=gpus)
        assert isinstance(made.chart, LineChart)
        for series in made.chart.series:
            assert 64.0 not in series.x or "published" in series.label
        return [series.label for series in made.chart.series]

    assert labels("fig6") == [
        "baseline, predicted",
        "baseline, published",
        "focus, predicted",
        "focus, published",
    ]
    assert labels("fig6", ("h200",)) == ["baseline, predicted", "focus, predicted"]
    assert labels("fig7")[0] == "baseline B 16, predicted"
    assert labels("fig15")[1] == "focus alpha 1.2, predicted"
    assert "focus, published" in labels("table7")
