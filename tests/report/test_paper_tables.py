"""Tables of the paper at a fixed width, and the figures that they compute themselves."""

import csv
import dataclasses
import io
import math

import pytest
from report_samples import make_point, make_result
from rich.console import Console

from focus_bench.report.decodability import LayerImportance, StepShareStatistics
from focus_bench.report.paper.published import table3
from focus_bench.report.paper.quality import (
    PairedDifference,
    PaperTable,
    QualityRow,
    order_line,
    quality_part,
    saving_line,
)
from focus_bench.report.paper.signal import fig2_table, fig3_table
from focus_bench.report.quality_results import QualityPlan, QualityResult


def result_with(score: float, *, processed_per_decoded: float = 4.0, n: int = 100) -> QualityResult:
    plan = QualityPlan(
        point=make_point(), scorer="focus-bench", benchmark="problems", metric="exact match"
    )
    decoding = make_result(plan.point)
    metrics = dataclasses.replace(
        decoding.metrics, processed_per_decoded=processed_per_decoded, tokens_per_step=2.0
    )
    return QualityResult(
        plan=plan,
        scores=(score,),
        num_problems=n,
        is_binomial=True,
        decoding=dataclasses.replace(decoding, metrics=metrics),
    )


def shown(table: PaperTable, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table.render())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    return str(text)


def two_rows() -> PaperTable:
    rows = [
        QualityRow(
            names=("2", "top"),
            result=result_with(0.9),
            published=table3(2, "top"),
            difference=PairedDifference(count=100, only_this=8, only_other=3),
        ),
        QualityRow(names=("2", "random"), result=None, published=table3(2, "random")),
    ]
    columns = (("retain", "K"), ("select", "select"))
    return quality_part("table3", "Table 3", columns, rows, compared_with="the baseline")


def test_table_at_a_fixed_width() -> None:
    text = shown(two_rows(), 120)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert (
        "2 top 90.0 82.6-94.5 100 +5.0 -1.7 to +11.5 2.00 4.00 90.33 65.40 71.65 58.56 61.78"
        in lines
    )
    assert "2 random - - - - - - - 40.38 7.50 4.88 10.32 47.35" in lines
    assert "diff.: on the same problems, to the baseline" in lines
    assert any("published: arXiv 2601.23278, SDAR-8B-Chat and LLaDA2.0-mini" in x for x in lines)
    narrow = shown(two_rows(), 60)
    assert narrow.count("random") > text.count("random")  # more tables, each with its names


def test_csv_is_tidy_and_marks_what_is_whose() -> None:
    first, second = csv.DictReader(io.StringIO(two_rows().csv()))
    assert first["source"] == "measured"
    assert float(first["score"]) == 0.9
    assert float(first["difference"]) == pytest.approx(0.05)
    assert float(first["published_percent SDAR-8B-Chat GSM8K"]) == 90.33
    assert (second["score"], second["source"]) == ("", "")
    assert float(second["published_percent LLaDA2.0-mini MBPP"]) == 22.18


def test_paired_difference_by_hand() -> None:
    found = PairedDifference.of([1, 1, 0, 0, 1], [1, 0, 1, 0, 0])
    assert found == PairedDifference(count=5, only_this=2, only_other=1)
    assert found.value == pytest.approx(0.2)
    # With a half in each cell: 2.5 and 1.5 discordant ones of 7.
    half = 1.959963984540054 * math.sqrt(4.0 - 1.0 / 7) / 7
    assert found.ci95 == pytest.approx((1 / 7 - half, 1 / 7 + half))
    low, high = PairedDifference(count=1000, only_this=0, only_other=0).ci95
    assert low == -high
    assert high == pytest.approx(1.959963984540054 / 1002)
    assert PairedDifference.of([1.0], []) is None
    assert PairedDifference.of([], []) is None


def test_saving_is_the_share_of_what_the_ideal_saves() -> None:
    whole, ours, ideal = (result_with(0.9, processed_per_decoded=x) for x in (15.0, 5.0, 3.0))
    line = saving_line(whole, ours, ideal)
    assert line.endswith("FOCUS saves 83 %")  # (15 - 5) / (15 - 3)
    assert saving_line(whole, None, ideal) == ""
    assert saving_line(ideal, ours, ideal) == ""


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ((0.9, 0.6, 0.3), "holds; the intervals are apart"),
        ((0.9, 0.85, 0.3), "holds; intervals overlap"),
        ((0.9, 0.2, 0.3), "does NOT hold"),
    ],
)
def test_order_of_selections(scores: tuple[float, ...], words: str) -> None:
    rows = dict(zip(("top", "random", "bottom"), map(result_with, scores), strict=True))
    assert order_line(rows, 4) == f"K = 4: Top > Random > Bottom {words}"
    assert order_line({**rows, "top": None}, 4) == ""


def test_fig3_names_the_pair_with_most_signal() -> None:
    def layer(number: int, raw: float, delta: float | None) -> LayerImportance:
        return LayerImportance(
            layer=number,
            decodable_mean=1.5,
            other_mean=0.9,
            auc=0.6,
            auc_within_rows=raw,
            delta_auc=delta,
            delta_auc_within_rows=delta,
        )

    table = fig3_table([layer(0, 0.7, None), layer(1, 0.8, 0.55), layer(2, 0.75, 0.65)], 0.5, ["x"])
    text = " ".join(shown(table, 80).split())
    assert "layers 2 - 1, AUC 0.650; FOCUS uses 1 - 0, AUC 0.550" in text
    assert "raw importance tells most in layer 1, AUC 0.800" in text
    assert "1 1.500 0.900 0.600 0.800 0.550 0.550" in text


def test_fig2_rows_end_at_the_largest_step() -> None:
    shares = StepShareStatistics(
        num_rows=4,
        block_length=8,
        threshold=0.9,
        tokens_per_step=1.75,
        share_of_block=1.75 / 8,
        share_of_masked=0.3,
        forced=0.5,
        decoded_counts=(0, 2, 1, 1, 0, 0, 0, 0, 0),
    )
    table = fig2_table(shares, ["measured: x"])
    assert [row["decoded"] for row in table.rows] == [0, 1, 2, 3]
    assert [row["cumulated_share_of_steps"] for row in table.rows] == [0, 0.5, 0.75, 1.0]
    text = " ".join(shown(table, 60).split())
    assert "1.75 of B = 8 tokens a step = 21.9 % of the fed" in text
    assert "in 50.0 % of the 4 steps nothing reached the threshold" in text
