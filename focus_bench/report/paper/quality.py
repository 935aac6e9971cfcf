"""The paper's quality tables with our scores, and the paper's own beside them, marked published.

Takes rows of results as they come; which settings a table has is decided by the caller.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.report import formats
from focus_bench.report.export import Cell, csv_text
from focus_bench.report.layout import Column, FittedTable, column
from focus_bench.report.paper.published import SOURCE, Published
from focus_bench.report.quality_results import QualityResult

_Z_975 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """Scores of two settings on the same `count` problems: those that only one got right.

    Shared problems cancel, so the interval is far narrower than that of either score.
    """

    count: int
    only_this: int
    only_other: int

    @property
    def value(self) -> float:
        """Share of this minus share of the other."""
        return (self.only_this - self.only_other) / self.count

    @property
    def ci95(self) -> tuple[float, float]:
        """95 % interval for a difference of paired shares (Agresti and Min 2005: a half is added
        to each of the four counts, so that it has a width also where all answers agree).
        """
        count = self.count + 2
        difference = self.only_this - self.only_other
        discordant = self.only_this + self.only_other + 1
        half = _Z_975 * math.sqrt(discordant - difference**2 / count)
        return (difference - half) / count, (difference + half) / count

    @classmethod
    def of(cls, this: Sequence[float], other: Sequence[float]) -> "PairedDifference | None":
        """From each problem's marks, 1 for right; None where the problems are not the same."""
        if not this or len(this) != len(other):
            return None
        pairs = list(zip(this, other, strict=True))
        return cls(
            count=len(pairs),
            only_this=sum(a > b for a, b in pairs),
            only_other=sum(b > a for a, b in pairs),
        )


@dataclass(frozen=True, kw_only=True)
class QualityRow:
    """One setting: how the table names it, our result (None: not there) and published scores.

    `difference`: to the row that the table compares it with, on the same problems.
    """

    names: tuple[str, ...]
    result: QualityResult | None
    published: Published = field(default_factory=dict)
    difference: PairedDifference | None = None


@dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """A column: its key in the CSV, and how the terminal shows it (no heading: CSV only)."""

    key: str
    heading: str = ""
    show: Callable[[Cell], str] = lambda cell: formats.UNDEFINED if cell is None else str(cell)
    is_name: bool = False


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table or figure of the paper as rows of cells; `lines` say what it shows and rests on."""

    name: str
    lines: tuple[str, ...]
    columns: tuple[PaperColumn, ...]
    rows: tuple[Mapping[str, Cell], ...]

    def render(self) -> RenderableType:
        """For the terminal; fits the width that it gets."""
        columns: list[Column] = [
            column(
                c.heading,
                self.rows,
                lambda row, c=c: c.show(row.get(c.key)),
                is_name=c.is_name,
            )
            for c in self.columns
            if c.heading
        ]
        lines = [Text(line) for line in self.lines]
        return Group(*lines, Text(), FittedTable(columns=tuple(columns)))

    def csv(self) -> str:
        """Tidy rows, numbers unformatted, undefined ones empty."""
        keys = tuple(c.key for c in self.columns)
        return csv_text(keys, ([row.get(key) for key in keys] for row in self.rows))


def quality_part(
    name: str,
    title: str,
    name_columns: Sequence[tuple[str, str]],
    rows: Sequence[QualityRow],
    *,
    lines: Sequence[str] = (),
    compared_with: str = "",
    with_throughput: bool = False,
) -> PaperTable:
    """A table of scores; `name_columns`: (CSV key, heading) of each of the rows' names.

    `compared_with`: what differences are to; "" where there are none. `with_throughput`: with the
    measured output throughput.
    """
    published = dict.fromkeys(key for row in rows for key in row.published)
    columns = [PaperColumn(key=key, heading=h, is_name=True) for key, h in name_columns]
    columns += [
        PaperColumn(key="score", heading="score\n%", show=_percent),
        PaperColumn(key="score_ci95", heading="95 %\ninterval"),
        PaperColumn(key="score_ci95_low"),
        PaperColumn(key="score_ci95_high"),
        PaperColumn(key="num_problems", heading="n"),
    ]
    if compared_with:
        columns += [
            PaperColumn(key="difference", heading="diff.\npoints", show=_points),
            PaperColumn(key="difference_ci95", heading="95 %\ninterval"),
            PaperColumn(key="difference_ci95_low"),
            PaperColumn(key="difference_ci95_high"),
            PaperColumn(key="only_this_right"),
            PaperColumn(key="only_other_right"),
        ]
    columns += [
        PaperColumn(key="tokens_per_step", heading="tok/\nstep", show=_fixed),
        PaperColumn(key="processed_per_decoded", heading="proc./\ndec.", show=_fixed),
        PaperColumn(
            key="output_throughput",
            heading="meas.\ntok/s" if with_throughput else "",
            show=_number,
        ),
        PaperColumn(key="source"),
        PaperColumn(key="hardware"),
        PaperColumn(key="plan_hash"),
    ]
    columns += [
        PaperColumn(
            key=f"published_percent {model} {benchmark}",
            heading=f"published\n{model.partition('-')[0]}\n{benchmark}",
            show=_fixed,
        )
        for model, benchmark in published
    ]
    notes = list(lines)
    if compared_with:
        notes.append(f"diff.: on the same problems, to {compared_with}")
    if published:
        models = " and ".join(dict.fromkeys(model for model, _ in published))
        notes.append(f"published: {SOURCE}, {models} on other benchmarks, in percent")
    results = [row.result for row in rows if row.result is not None]
    return PaperTable(
        name=name,
        lines=(title, *basis_lines(results), *notes),
        columns=tuple(columns),
        rows=tuple(_cells(row, [key for key, _ in name_columns]) for row in rows),
    )


def basis_lines(results: Sequence[QualityResult]) -> list[str]:
    """What was measured on what, and every label and note."""
    said = dict.fromkeys(
        f"measured: {r.plan.point.engine.model}, {r.num_problems} problems of {r.plan.task}, "
        f"{r.plan.metric}, at most {r.plan.point.workload.max_new_tokens} new tokens, batch "
        f"{r.plan.point.scheduler.batch_size}, B {r.plan.point.decode.block_length}, on "
        f"{r.hardware}"
        for r in results
    )
    notes = dict.fromkeys(note for r in results for note in r.decoding.all_notes)
    return [*said, *notes]


def saving_line(
    whole: QualityResult | None, ours: QualityResult | None, ideal: QualityResult | None
) -> str:
    """How much of the work that a perfect predictor saves FOCUS saves, in processed per decoded."""
    figures = [
        r.decoding.metrics.processed_per_decoded if r is not None else None
        for r in (whole, ours, ideal)
    ]
    if whole is None or any(figure is None for figure in figures):
        return ""
    before, with_ours, with_ideal = (figure or 0.0 for figure in figures)
    if before <= with_ideal:
        return ""
    share = (before - with_ours) / (before - with_ideal)
    return (
        f"of what a perfect predictor would save over {whole.plan.point.decode.policy} "
        f"({before:.2f} to {with_ideal:.2f} processed per decoded) FOCUS saves {100 * share:.0f} %"
    )


def order_line(rows: Mapping[str, QualityResult | None], retain: int) -> str:
    """Whether Top > Random > Bottom holds at one K, and whether the intervals are apart."""
    scores = {select: r.accuracy.value if r is not None else None for select, r in rows.items()}
    if any(score is None for score in scores.values()):
        return ""
    top, random, bottom = (scores[s] or 0.0 for s in ("top", "random", "bottom"))
    holds = top > random > bottom
    text = f"K = {retain}: Top > Random > Bottom {'holds' if holds else 'does NOT hold'}"
    ends = {s: r.ci95 for s, r in rows.items() if r is not None}
    if holds and all(ends.values()):
        upper, middle, lower = (ends[s] or (0.0, 0.0) for s in ("top", "random", "bottom"))
        apart = upper[0] > middle[1] and middle[0] > lower[1]
        text += "; the intervals are apart" if apart else "; intervals overlap"
    return text


def _cells(row: QualityRow, name_keys: Sequence[str]) -> dict[str, Cell]:
    cells: dict[str, Cell] = dict(zip(name_keys, row.names, strict=True))
    cells |= {
        f"published_percent {model} {benchmark}": value
        for (model, benchmark), value in row.published.items()
    }
    if row.difference is not None:
        low, high = row.difference.ci95
        cells |= {
            "difference": row.difference.value,
            "difference_ci95": f"{100 * low:+.1f} to {100 * high:+.1f}",
            "difference_ci95_low": low,
            "difference_ci95_high": high,
            "only_this_right": row.difference.only_this,
            "only_other_right": row.difference.only_other,
        }
    result = row.result
    if result is None:
        return cells
    interval, metrics = result.ci95, result.decoding.metrics
    return cells | {
        "score": result.accuracy.value,
        "score_ci95": f"{100 * interval[0]:.1f}-{100 * interval[1]:.1f}" if interval else None,
        "score_ci95_low": interval[0] if interval else None,
        "score_ci95_high": interval[1] if interval else None,
        "num_problems": result.num_problems,
        "tokens_per_step": metrics.tokens_per_step,
        "processed_per_decoded": metrics.processed_per_decoded,
        "output_throughput": metrics.output_throughput,
        "source": "measured",
        "hardware": result.hardware,
        "plan_hash": result.plan.hash(),
    }


def _percent(cell: Cell) -> str:
    return formats.UNDEFINED if cell is None else f"{100 * float(cell):.1f}"


def _points(cell: Cell) -> str:
    return formats.UNDEFINED if cell is None else f"{100 * float(cell):+.1f}"


def _fixed(cell: Cell) -> str:
    return formats.fixed(None if cell is None else float(cell))


def _number(cell: Cell) -> str:
    return formats.number(None if cell is None else float(cell))
