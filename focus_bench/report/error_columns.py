"""Columns of mean and worst errors: over all comparisons, and over points where seeds are several.

Knows which errors a row sums up, not what else stands in the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from focus_bench.report import formats
from focus_bench.report.compare import Comparison, ErrorSummary, Figure, error_summary
from focus_bench.report.layout import Column, column
from focus_bench.report.seeds import by_point, has_several_seeds, summary_over_points

SEEDS_LINE = "of means: errors of a point are averaged over its seeds first"


@dataclass(frozen=True, kw_only=True)
class ErrorRow:
    """The errors of one figure over some comparisons."""

    pairs: tuple[Comparison, ...]
    figure: Figure

    @property
    def summary(self) -> ErrorSummary:
        """Over all comparisons, each seed of a point for itself."""
        return error_summary(self.pairs, self.figure)

    @property
    def point_summary(self) -> ErrorSummary:
        """Over points, seeds averaged first."""
        return summary_over_points(by_point(self.pairs), self.figure)


def error_columns(rows: Sequence[ErrorRow]) -> list[Column]:
    """How many, MAPE and worst; both once more over points if any point has several seeds."""
    several = any(has_several_seeds(by_point(row.pairs)) for row in rows)
    single = [row.summary for row in rows]
    columns = _columns(single, ("points\nx seeds" if several else "points", "MAPE", "worst"))
    if several:
        means = [row.point_summary for row in rows]
        columns += _columns(means, ("points", "MAPE of\nmeans", "worst\nmean"))
    return columns


def _columns(summaries: Sequence[ErrorSummary], headings: tuple[str, str, str]) -> list[Column]:
    count, mape, worst = headings
    return [
        column(count, summaries, lambda summary: str(summary.count)),
        column(mape, summaries, lambda summary: formats.fixed(summary.mape, 1)),
        column(worst, summaries, lambda summary: formats.fixed(summary.worst, 1)),
    ]
