"""Draws line panels: their series, scales and labels, and the bounds behind them."""

from collections.abc import Callable, Sequence
from itertools import pairwise, zip_longest
from math import log

from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from focus_bench.report import formats
from focus_bench.report.figures.axes import ROUND, SMALL, WIDTH, Sheet, axis_label
from focus_bench.report.figures.labels import (
    Box,
    dense,
    emptiest_corner,
    place_names,
    spread_labels,
)
from focus_bench.report.figures.panels import Guide, LinePanel, Series

_TICK_GAP = 0.16  # share of an axis that the name of a time takes


def draw_lines(panel: LinePanel, sheet: Sheet) -> None:
    """Everything of a line panel but its title."""
    axes, colours = sheet.axes, sheet.colours
    axes.grid(axis="y", color=colours["grid"], linewidth=0.8)
    for guide in panel.guides:
        axes.plot(guide.x, guide.y, color=colours["muted"], linewidth=1.0, zorder=1.5)
    for series in panel.series:
        _draw_series(series, sheet)
    _scale(panel, sheet)
    axis_label(sheet, panel.x_label)
    axes.annotate(
        panel.y_label,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 8),
        textcoords="offset points",
        color=colours["muted"],
        fontsize=SMALL,
    )
    if panel.labels == "edge":
        _label_at_edge(panel, sheet)
    elif panel.labels == "last":
        _label_points(panel, sheet)
    else:
        _label_in_corner(panel, sheet)


def _draw_series(series: Series, sheet: Sheet) -> None:
    axes, colour = sheet.axes, sheet.colours[series.role]
    if series.join == "steps":
        style = (0, (3, 2)) if series.is_predicted else "-"
        axes.step(series.x, series.y, where="post", color=colour, linestyle=style, linewidth=1.5)
        return
    errors = None
    if series.low:
        below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
        above = [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]
        errors = [below, above]
    joined = series.join == "line"
    axes.errorbar(
        series.x,
        series.y,
        yerr=errors,
        color=colour,
        linestyle=("none" if not joined else (0, (3, 2)) if series.is_predicted else "-"),
        linewidth=1.3 if series.is_predicted else 1.8,
        marker=series.marker,
        markersize=6.5 if series.is_predicted else 5.0,
        markerfacecolor=sheet.colours["surface"] if series.is_predicted else colour,
        markeredgecolor=colour,
        markeredgewidth=1.1,
        elinewidth=1.1,
        capsize=2.5,
        zorder=3 if series.is_predicted else 4,
    )


def _scale(panel: LinePanel, sheet: Sheet) -> None:
    axes = sheet.axes
    if panel.x_scale == "log":
        axes.set_xscale("log")
    if panel.y_scale == "log":
        axes.set_yscale("log")
        axes.set_xlim(*_decade(*axes.get_xlim()))
        axes.set_ylim(*_decade(*axes.get_ylim()))
    else:
        ends = [y for s in panel.series for y in (*s.y, *s.low, *s.high)]
        bottom, top = (0.0, max(ends)) if panel.from_zero else (min(ends), max(ends))
        room = 0.08 * (top - bottom) or 0.02
        top = min(1.02, top + room) if panel.is_share else top + room
        axes.set_ylim(bottom if panel.from_zero else bottom - room, top)
    show_x: Callable[[float], str] = _time if panel.is_time else formats.number
    low, high = axes.get_xlim()
    if panel.x_ticks:
        ticks: Sequence[float] = panel.x_ticks
    elif panel.x_scale == "log":
        ticks = log_ticks(low, high)
    else:
        whole = all(x.is_integer() for s in panel.series for x in s.x)
        found = MaxNLocator(nbins=6, steps=ROUND, integer=whole).tick_values(low, high)
        ticks = [t for t in found if low <= t <= high]
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show_x(value)))
    if panel.y_scale == "log":
        axes.yaxis.set_major_locator(FixedLocator(log_ticks(*axes.get_ylim())))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    share = panel.is_share
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{100 * value:g} %" if share else formats.number(value))
    )


def _named_once(panel: LinePanel) -> list[Series]:
    """One series for each label, the measured one if there is one; empty labels are left out."""
    named: dict[str, Series] = {}
    for series in sorted(panel.series, key=lambda s: s.is_predicted):
        if series.label and series.y:
            named.setdefault(series.label, series)
    return list(named.values())


def _label_at_edge(panel: LinePanel, sheet: Sheet) -> None:
    axes = sheet.axes
    named = _named_once(panel)
    low, high = axes.get_ylim()
    # Lines are some 170 units high, labels 12: they are pushed apart where they would overlap.
    places = spread_labels([(s.y[-1] - low) / (high - low) for s in named], gap=12 / 170)
    for series, place in zip(named, places, strict=True):
        axes.annotate(
            series.label,
            (1, place),
            xycoords="axes fraction",
            xytext=(5, 0),
            textcoords="offset points",
            color=sheet.colours[series.role],
            fontsize=SMALL,
            fontweight="bold",
            verticalalignment="center",
            annotation_clip=False,
        )


def _label_in_corner(panel: LinePanel, sheet: Sheet) -> None:
    axes, named = sheet.axes, _named_once(panel)
    to_fraction = axes.transScale + axes.transLimits
    curves = [
        [(float(x), float(y)) for x, y in to_fraction.transform(list(zip(s.x, s.y, strict=True)))]
        for s in panel.series
        if s.x
    ]
    width = 6.2 * max((len(s.label) for s in named), default=0) / 270
    at_top, at_right = emptiest_corner(curves, width=width, height=13 * len(named) / 170)
    for index, series in enumerate(named):
        line = index if at_top else len(named) - 1 - index
        axes.annotate(
            series.label,
            (float(at_right), float(at_top)),
            xycoords="axes fraction",
            xytext=(-3 if at_right else 4, (5 + 13 * line) * (-1 if at_top else 1)),
            textcoords="offset points",
            color=sheet.colours[series.role],
            fontsize=SMALL,
            fontweight="bold",
            horizontalalignment="right" if at_right else "left",
            verticalalignment="top" if at_top else "bottom",
        )


def _label_points(panel: LinePanel, sheet: Sheet) -> None:
    canvas, axes = sheet.canvas, sheet.axes
    guides = [_label_guide(guide, sheet) for guide in panel.guides]
    canvas.draw_without_rendering()  # lays the axes out
    marks = [
        (float(x), float(y), name, series.role)
        for series in panel.series
        for x, y, name in zip_longest(series.x, series.y, series.names, fillvalue="")
    ]
    spots = _in_units([(x, y) for x, y, _, _ in marks], sheet)
    taken = [Box.around(*spot, 4.0) for spot in spots]
    taken += [Box(*text.get_window_extent().extents) for text in guides]
    for line in _lines(panel):
        taken += [Box.around(x, y, 2.0) for x, y in dense(_in_units(line, sheet))]
    frame = axes.get_window_extent()
    named = [(mark, spot) for mark, spot in zip(marks, spots, strict=True) if mark[2]]
    places = place_names(
        [(name, *spot) for (_, _, name, _), spot in named],
        frame=Box(frame.x0, frame.y0, WIDTH - 4, frame.y1 + 4),
        taken=taken,
    )
    for ((x, y, name, role), _), offset in zip(named, places, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=offset,
            textcoords="offset points",
            color=sheet.colours[role],
            fontsize=SMALL,
            fontweight="bold",
            verticalalignment="center",
        )


def _in_units(points: Sequence[tuple[float, float]], sheet: Sheet) -> list[tuple[float, float]]:
    """Points of the axes as places on the panel."""
    return [(float(x), float(y)) for x, y in sheet.axes.transData.transform(list(points))]


def _lines(panel: LinePanel) -> list[list[tuple[float, float]]]:
    """Everything that is drawn as a line: joined series, intervals and guides."""
    joined = [list(zip(s.x, s.y, strict=True)) for s in panel.series if s.join != "none"]
    intervals = [
        [(x, low), (x, high)]
        for s in panel.series
        for x, low, high in zip(s.x, s.low, s.high, strict=False)
    ]
    return [*joined, *intervals, *(list(zip(g.x, g.y, strict=True)) for g in panel.guides)]


def _label_guide(guide: Guide, sheet: Sheet) -> Annotation:
    """Below the start of a line that rises, above the end of a level one."""
    rises = guide.y[-1] > guide.y[0]
    return sheet.axes.annotate(
        guide.name,
        (guide.x[0], guide.y[0]) if rises else (guide.x[-1], guide.y[-1]),
        xytext=(9, -1) if rises else (0, 4),
        textcoords="offset points",
        color=sheet.colours["muted"],
        fontsize=SMALL,
        horizontalalignment="left" if rises else "right",
        verticalalignment="top" if rises else "bottom",
    )


def log_ticks(low: float, high: float) -> list[float]:
    """At most six round values between two bounds, as close together as that allows."""
    first, last = _exponent(low), _exponent(high)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [d * 10.0**e for e in range(first, last + 1) for d in digits]
        ticks = [t for t in ticks if low <= t <= high]
        apart = [log(b / a) / log(high / low) for a, b in pairwise(ticks)]
        if len(ticks) <= 6 and min(apart, default=1.0) > _TICK_GAP:
            return ticks
    step = -(-len(ticks) // 6)
    return ticks[::step]


def _decade(low: float, high: float) -> tuple[float, float]:
    """The bounds, moved apart where they are less than a factor of 10 apart."""
    widen = max(1.0, (10 * low / high) ** 0.5)
    return low / widen, high * widen


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def _time(value: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 0.9999:
            return f"{value * factor:.4g} {unit}"
    return f"{value * 1e6:.4g} us"
