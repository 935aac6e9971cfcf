"""Figures of speed over a sweep: throughput against batch, speed-ups, processed positions.

Takes results sorted into facets; draws nothing.
"""

from collections.abc import Callable, Sequence

from focus_bench.report.compare import speedups
from focus_bench.report.figures.groups import (
    ALPHA,
    BATCH,
    BLOCK_LENGTH,
    Facet,
    Plotted,
    facets,
    joined,
    series_of,
)
from focus_bench.report.figures.panels import (
    AbsentFigure,
    Figure,
    HeatPanel,
    LinePanel,
    Mark,
    Panel,
    Row,
    RowPanel,
    Series,
)
from focus_bench.report.quality_results import reads_alpha
from focus_bench.report.results import PointResult
from focus_bench.report.spread import Spread

_HOW_DRAWN = (
    "Filled marks and solid lines are measured, open marks and dashed lines predicted. Bars are "
    "95 % t-intervals of the mean over the runs of a point, where it was run more than once."
)


def throughput(points: Sequence[Plotted]) -> Figure | AbsentFigure:
    """Output tokens per second, against the batch where there are several."""
    title = "Throughput"
    known = [p for p in points if p.result.metrics.output_throughput is not None]
    if not known:
        return AbsentFigure(title=title, reason="no point has an output throughput")
    several = len({p.batch_size for p in known}) > 1
    panels: list[Panel] = []
    for facet in facets(known, BATCH):
        if several:
            panels.append(_throughput_lines(facet))
        else:
            panels.append(_rows(facet, "output tokens/s", _throughput_mark))
    against = " against the batch size" if several else ""
    return Figure(
        name="throughput",
        title=title,
        text=f"Output tokens per second{against}; higher is better. {_HOW_DRAWN}",
        panels=tuple(panels),
    )


def speedup_by_block_length(points: Sequence[Plotted]) -> Figure | AbsentFigure:
    """Factor over the baseline, over batch and B."""
    return _heat_maps(
        points,
        name="speedup-block-length",
        title="Speed-up over batch size and block length",
        setting=BLOCK_LENGTH,
        label="block length B",
        what="block lengths",
    )


def speedup_by_alpha(points: Sequence[Plotted]) -> Figure | AbsentFigure:
    """Factor over the baseline, over batch and alpha."""
    return _heat_maps(
        [p for p in points if p.is_baseline or reads_alpha(p.policy)],
        name="speedup-alpha",
        title="Speed-up over batch size and alpha",
        setting=ALPHA,
        label="expansion factor \u03b1",
        what="values of alpha",
    )


def processed_per_decoded(points: Sequence[Plotted]) -> Figure | AbsentFigure:
    """Positions that the layers process for each one that they decode."""
    title = "Processed positions per decoded position"
    known = [p for p in points if p.result.metrics.processed_per_decoded is not None]
    if not known:
        return AbsentFigure(title=title, reason="no point decoded anything that was counted")
    several = len({p.batch_size for p in known}) > 1
    panels = [
        _rows(facet, "positions through layers \u2265 2 / decoded", _processed_mark)
        for facet in facets(known, BATCH)
    ]
    each = " A mark is one batch size; the number is their mean." if several else ""
    return Figure(
        name="processed-per-decoded",
        title=title,
        text="The paper's Table 5: positions fed through layers 2 and up, commit passes included, "
        f"for each decoded position; lower is better, 1 is the least.{each} Rings are predicted.",
        panels=tuple(panels),
    )


def _throughput_lines(facet: Facet) -> LinePanel:
    lines = []
    for (name, _), group in series_of(facet.members).items():
        spreads = [_spread(p.result) for p in group]
        intervals = any(s.ci95_low is not None for s in spreads)
        lows = tuple(s.mean or 0.0 if s.ci95_low is None else s.ci95_low for s in spreads)
        highs = tuple(s.mean or 0.0 if s.ci95_high is None else s.ci95_high for s in spreads)
        lines.append(
            Series(
                label=name,
                role=group[0].sign.role,
                marker=group[0].marker,
                x=tuple(float(p.batch_size) for p in group),
                y=tuple(s.mean or 0.0 for s in spreads),
                low=lows if intervals else (),
                high=highs if intervals else (),
                is_predicted=group[0].is_predicted,
            )
        )
    return LinePanel(
        title=facet.title,
        x_label="batch size",
        y_label="output tokens/s",
        series=tuple(lines),
        x_scale="log",
        x_ticks=tuple(float(b) for b in sorted({p.batch_size for p in facet.members})),
    )


def _rows(facet: Facet, x_label: str, mark: Callable[[Plotted], Mark]) -> RowPanel:
    rows: dict[str, list[Plotted]] = {}
    for point in sorted(facet.members, key=lambda p: p.batch_size):
        rows.setdefault(point.series, []).append(point)
    return RowPanel(
        title=facet.title,
        x_label=x_label,
        rows=tuple(
            Row(
                label=name,
                role=group[0].sign.role,
                marker=group[0].marker,
                marks=tuple(mark(p) for p in group),
            )
            for name, group in rows.items()
        ),
    )


def _throughput_mark(point: Plotted) -> Mark:
    spread = _spread(point.result)
    return Mark(
        value=spread.mean or 0.0,
        low=spread.ci95_low,
        high=spread.ci95_high,
        is_predicted=point.is_predicted,
        name=f"batch {point.batch_size}",
    )


def _processed_mark(point: Plotted) -> Mark:
    return Mark(
        value=point.result.metrics.processed_per_decoded or 0.0,
        is_predicted=point.is_predicted,
        name=f"batch {point.batch_size}",
    )


def _spread(result: PointResult) -> Spread:
    """Of the throughputs of all runs of a point."""
    single = result.metrics.output_throughput
    return Spread.of(result.repeats or (() if single is None else (single,)))


def _heat_maps(
    points: Sequence[Plotted], *, name: str, title: str, setting: str, label: str, what: str
) -> Figure | AbsentFigure:
    factors = speedups(p.result for p in points)
    known = [p for p in points if not p.is_baseline and factors[p.result.key] is not None]
    panels: list[Panel] = []
    for facet in facets(known, BATCH, setting):
        names = {(p.series_without(setting), p.result.source): None for p in facet.members}
        sources = {p.result.source for p in facet.members}
        for series, source in names:
            cells = {
                (p.value_of(setting), p.batch_size): factors[p.result.key]
                for p in facet.members
                if (p.series_without(setting), p.result.source) == (series, source)
            }
            downs, batches = sorted({d for d, _ in cells}), sorted({b for _, b in cells})
            if len(downs) < 2 or len(batches) < 2:
                continue
            panels.append(
                HeatPanel(
                    title=joined(series, source if len(sources) > 1 else "", facet.title),
                    x_label="batch size",
                    y_label=label,
                    columns=tuple(str(b) for b in batches),
                    rows=tuple(f"{d:g}" for d in downs),
                    values=tuple(tuple(cells.get((d, b)) for b in batches) for d in downs),
                )
            )
    if not panels:
        reason = f"needs a baseline, and another policy at two batch sizes and two {what} at least"
        return AbsentFigure(title=title, reason=reason)
    return Figure(
        name=name,
        title=title,
        text="Output throughput over that of the baseline with the same settings. The stronger the "
        "colour, the farther from 1; orange is faster, blue slower.",
        panels=tuple(panels),
    )
