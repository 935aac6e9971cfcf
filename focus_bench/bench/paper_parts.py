"""From results to the parts of the paper: one table and one chart each. Runs nothing."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from focus_bench.bench.paper import RETAINS, Setting, settings_of
from focus_bench.core.config import SELECTIONS, DecodeConfig
from focus_bench.core.decodability import DecodabilityRecords
from focus_bench.report.decodability import (
    delta_statistics,
    layer_importance,
    position_auc_within_rows,
    step_shares,
)
from focus_bench.report.paper.quality import (
    PairedDifference,
    PaperTable,
    QualityRow,
    basis_lines,
    order_line,
    quality_part,
    saving_line,
)
from focus_bench.report.paper.signal import fig2_table, fig3_table, fig14_table
from focus_bench.report.plots import BarChart, Chart, DensityChart, LineChart, Series
from focus_bench.report.quality_results import QualityResult


@dataclass(frozen=True, kw_only=True)
class Part:
    """One table or figure of the paper, measured here."""

    table: PaperTable
    chart: Chart


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was measured so far: a setting's result and the marks of its answers, if any."""

    result: Callable[[DecodeConfig], QualityResult | None]
    marks: Callable[[DecodeConfig], Sequence[float]]

    def row(self, setting: Setting) -> QualityRow:
        """A setting with what is known of it."""
        difference = None
        if setting.compared_with is not None:
            difference = PairedDifference.of(
                self.marks(setting.decode), self.marks(setting.compared_with)
            )
        return QualityRow(
            names=setting.names,
            result=self.result(setting.decode),
            published=setting.published,
            difference=difference,
        )


def quality_part_of(part: str, findings: Findings, *, block_length: int) -> Part:
    """One of QUALITY_PARTS; settings without a result are shown as undefined."""
    settings = settings_of(part, block_length=block_length)
    rows = [findings.row(setting) for setting in settings]
    table = _TABLES[part](rows)
    footer = "; ".join(basis_lines([r.result for r in rows if r.result is not None]))
    return Part(table=table, chart=_CHARTS[part](rows, footer))


def observed_parts(
    records: DecodabilityRecords, basis: Sequence[str], parts: Sequence[str]
) -> dict[str, Part]:
    """Those of OBSERVED_PARTS that are asked for; `basis`: lines about what was observed."""
    footer = "; ".join(basis)
    make = {"fig2": _fig2, "fig3": _fig3, "fig14": _fig14}
    return {part: make[part](records, basis, footer) for part in parts if part in make}


def _fig2(records: DecodabilityRecords, basis: Sequence[str], footer: str) -> Part:
    shares = step_shares(records)
    counts = np.array(shares.decoded_counts)
    last = int(np.flatnonzero(counts).max())
    chart = BarChart(
        title=f"Positions decoded in a step of B = {shares.block_length}",
        x_label="positions decoded",
        y_label="share of steps, %",
        x=tuple(float(c) for c in range(1, last + 1)),
        y=tuple((100 * counts[1 : last + 1] / shares.num_rows).tolist()),
        footer=footer,
    )
    return Part(table=fig2_table(shares, basis), chart=chart)


def _fig3(records: DecodabilityRecords, basis: Sequence[str], footer: str) -> Part:
    layers = layer_importance(records)
    places = tuple(float(layer.layer) for layer in layers)
    chart = LineChart(
        title="Importance of masked tokens by layer (1: a uniform share)",
        x_label="layer",
        y_label="mean importance / heads",
        series=(
            Series(label="decodable", x=places, y=tuple(x.decodable_mean or 0.0 for x in layers)),
            Series(label="other", x=places, y=tuple(x.other_mean or 0.0 for x in layers)),
        ),
        footer=footer,
    )
    return Part(table=fig3_table(layers, position_auc_within_rows(records), basis), chart=chart)


def _fig14(records: DecodabilityRecords, basis: Sequence[str], footer: str) -> Part:
    statistics = delta_statistics(records)
    delta = records.delta(1, 0).astype(np.float64)
    marks = [(statistics.decodable.mean, "mu"), (statistics.other.std, "sigma")]
    chart = DensityChart(
        title="Importance delta, layer 1 minus layer 0",
        x_label="delta",
        samples=(("decodable", delta[records.decoded]), ("other", delta[~records.decoded])),
        marks=tuple((x, name) for x, name in marks if x is not None),
        footer=footer,
    )
    return Part(table=fig14_table(statistics, basis), chart=chart)


def _table3(rows: Sequence[QualityRow]) -> PaperTable:
    found = {row.names: row.result for row in rows}
    lines = [order_line({s: found[str(k), s] for s in SELECTIONS}, k) for k in RETAINS]
    return quality_part(
        "table3",
        "Table 3: fixed K masked tokens, chosen by importance delta (top), at random, or the worst",
        (("retain", "K"), ("select", "select")),
        rows,
        lines=[line for line in lines if line],
        compared_with="the baseline",
    )


def _table4(rows: Sequence[QualityRow]) -> PaperTable:
    return quality_part(
        "table4",
        "Table 4: thresholds and alpha",
        (("threshold", "thr."), ("policy", "policy"), ("alpha", "alpha")),
        rows,
        compared_with="the baseline at the same threshold",
    )


def _table6(rows: Sequence[QualityRow]) -> PaperTable:
    baseline, _, frozen, _, focus, ideal = (row.result for row in rows)
    lines = [saving_line(whole, focus, ideal) for whole in (baseline, frozen)]
    return quality_part(
        "table6",
        "Table 6: delayed cache (DC), with the neighbour rule (DC+), and FOCUS at alpha 1.5; ideal "
        "keeps exactly what the step decodes without eviction, and its constraints",
        (("method", "method"), ("threshold", "thr.")),
        rows,
        lines=[line for line in lines if line],
        compared_with="the baseline at 0.9",
    )


def _choices_table(rows: Sequence[QualityRow]) -> PaperTable:
    return quality_part(
        "choices",
        "Choices that the paper leaves open",
        (("choice", "choice"), ("policy", "policy"), ("threshold", "thr.")),
        rows,
        compared_with="the rule, with the same policy and threshold",
    )


def _fig16(rows: Sequence[QualityRow]) -> PaperTable:
    return quality_part(
        "fig16",
        "Fig. 16: score against measured throughput over thresholds and alpha",
        (("policy", "policy"), ("alpha", "alpha"), ("threshold", "thr.")),
        rows,
        lines=[
            "tok/s: output tokens per second of this engine on this machine, one run, prefill and "
            "the ragged end of the batch included",
            "published (arXiv 2601.23278, F.4, GSM8K): FOCUS dominates the baseline; best near "
            "alpha 1.5, threshold 0.8 (a plot, no figures)",
        ],
        with_throughput=True,
    )


def _series(label: str, rows: Sequence[QualityRow], x: Sequence[float]) -> Series:
    """The rows that have a score, in percent, at their places."""
    places, scores, intervals = [], [], []
    for place, row in zip(x, rows, strict=True):
        if row.result is None or row.result.accuracy.value is None:
            continue
        places.append(place)
        scores.append(100 * row.result.accuracy.value)
        low, high = row.result.ci95 or (row.result.accuracy.value,) * 2
        intervals.append((100 * low, 100 * high))
    return Series(
        label=label,
        x=tuple(places),
        y=tuple(scores),
        low=tuple(low for low, _ in intervals),
        high=tuple(high for _, high in intervals),
    )


def _chart3(rows: Sequence[QualityRow], footer: str) -> Chart:
    by_name = {row.names: row for row in rows}
    baseline = by_name["all", "baseline"]
    places = [float(k) for k in RETAINS]
    lines = [_series(s, [by_name[str(k), s] for k in RETAINS], places) for s in SELECTIONS]
    lines.append(_series("baseline", [baseline] * len(places), places))
    return LineChart(
        title="Table 3: score by number of masked tokens kept",
        x_label="K",
        y_label="score, %",
        series=tuple(lines),
        footer=footer,
    )


def _chart4(rows: Sequence[QualityRow], footer: str) -> Chart:
    return LineChart(
        title="Table 4: score by confidence threshold",
        x_label="threshold",
        y_label="score, %",
        series=tuple(
            _series(label, members, [float(row.names[0]) for row in members])
            for label, members in _grouped(rows, lambda r: f"{r.names[1]} {r.names[2]}")
        ),
        footer=footer,
    )


def _chart16(rows: Sequence[QualityRow], footer: str) -> Chart:
    lines = []
    for label, members in _grouped(rows, lambda r: f"{r.names[0]} {r.names[1]}"):
        found = [row for row in members if row.result is not None]
        throughput = [
            row.result.decoding.metrics.output_throughput or 0.0
            for row in found
            if row.result is not None
        ]
        line = _series(label, found, throughput)
        notes = tuple(row.names[2] for row in found)
        lines.append(Series(label=line.label, x=line.x, y=line.y, notes=notes))
    return LineChart(
        title="Fig. 16: score against throughput; thresholds at the points",
        x_label="measured output tokens per second",
        y_label="score, %",
        series=tuple(lines),
        footer=footer,
    )


def _named_points(rows: Sequence[QualityRow], footer: str) -> Chart:
    places = [float(number) for number in range(len(rows))]
    return LineChart(
        title="Score by setting",
        x_label="",
        y_label="score, %",
        series=(_series("score", rows, places),),
        ticks=tuple(
            (place, textwrap.fill(" ".join(row.names), 12))
            for place, row in zip(places, rows, strict=True)
        ),
        is_joined=False,
        footer=footer,
    )


def _grouped(
    rows: Sequence[QualityRow], label: Callable[[QualityRow], str]
) -> list[tuple[str, list[QualityRow]]]:
    """Rows of equal label together, in the order of their first."""
    groups: dict[str, list[QualityRow]] = {}
    for row in rows:
        groups.setdefault(label(row).removesuffix(" -"), []).append(row)
    return list(groups.items())


_TABLES = {
    "table3": _table3,
    "table4": _table4,
    "table6": _table6,
    "choices": _choices_table,
    "fig16": _fig16,
}
_CHARTS = {
    "table3": _chart3,
    "table4": _chart4,
    "table6": _named_points,
    "choices": _named_points,
    "fig16": _chart16,
}
