"""All figures of a report, and those that its results cannot fill. Draws nothing."""

import re
from collections.abc import Sequence
from dataclasses import replace

from focus_bench.report.captions import captions
from focus_bench.report.compare import pair_results
from focus_bench.report.figures.data import ReportData
from focus_bench.report.figures.groups import plotted
from focus_bench.report.figures.latency import latency
from focus_bench.report.figures.panels import MAX_PANELS, AbsentFigure, Figure
from focus_bench.report.figures.quality import quality
from focus_bench.report.figures.roofline import roofline
from focus_bench.report.figures.steps import step_time, steps_per_block, tokens_per_step
from focus_bench.report.figures.throughput import (
    processed_per_decoded,
    speedup_by_alpha,
    speedup_by_block_length,
    throughput,
)
from focus_bench.report.results import PointResult


def all_figures(data: ReportData) -> tuple[tuple[Figure, ...], tuple[AbsentFigure, ...]]:
    """The figures that the results fill, in the order of the page, and the others with why not."""
    points = plotted(data.results)
    of_points = (
        throughput(points),
        speedup_by_block_length(points),
        speedup_by_alpha(points),
        processed_per_decoded(points),
        step_time(points),
        tokens_per_step(points),
        steps_per_block(points),
        latency(points, data.records.latencies),
        roofline(points, data.records.steps),
    )
    of_eval = quality(data.quality)
    footers = [rests_on(data.results)] * len(of_points)
    footers.append(rests_on([result.decoding for result in data.quality]))
    shown, absent = [], []
    for item, footer in zip((*of_points, of_eval), footers, strict=True):
        if isinstance(item, AbsentFigure):
            absent.append(item)
        else:
            shown.append(_within_limits(replace(item, footer=footer)))
    return tuple(shown), tuple(absent)


def rests_on(results: Sequence[PointResult]) -> str:
    """What the results rest on beside real weights and data, in one line; "" for nothing.

    Short: what stands in parentheses above the table of results is left out.
    """
    every: dict[str, None] = {}
    some: dict[str, None] = {}
    for line in captions(pair_results(results)).lines:
        text = re.sub(r" \([^()]*\)", "", line)
        numbered = re.match(r"\[\d+\] ", text)  # it holds for the rows of a table with this number
        (some if numbered else every)[text[numbered.end() :] if numbered else text] = None
    for_some = f"some points: {', '.join(some)}" if some else ""
    return "; ".join(part for part in (*every, for_some) if part)


def _within_limits(figure: Figure) -> Figure:
    more = figure.panels[MAX_PANELS:]
    if not more:
        return figure
    titles = "; ".join(panel.title for panel in more)
    dropped = f"The first {MAX_PANELS} of {len(figure.panels)} panels; not drawn: {titles}."
    left_out = f"{figure.left_out} {dropped}".strip()
    return replace(figure, panels=figure.panels[:MAX_PANELS], left_out=left_out)
