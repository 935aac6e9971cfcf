"""Draws panels with matplotlib, in the colours that it is given for their roles.

Knows no result and writes no file. A panel is 320 units wide, a unit being a pixel of a phone, and
its text is at least 9 units high, so that it can be read there.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise, zip_longest
from math import log

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from focus_bench.report import formats
from focus_bench.report.figures_labels import (
    Box,
    dense,
    emptiest_corner,
    place_names,
    spread_labels,
)
from focus_bench.report.figures_panels import (
    Guide,
    HeatPanel,
    LinePanel,
    Panel,
    RowPanel,
    Series,
    StackPanel,
)

WIDTH = 320.0
_UNITS_PER_INCH = 72.0
_TEXT, _SMALL = 10.5, 9.8
_TITLE_CHARACTERS = 44
_LINE_HEIGHT = 13.0
_ROUND = [1, 2, 5, 10]  # first digits of the distances between ticks
_TICK_GAP = 0.16  # share of an axis that the name of a time takes
_FOOTER_TEXT, _FOOTER_LINE, _FOOTER_CHARACTERS = 6.5, 8.2, 86

Colours = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What a panel is drawn on: `axes` of `canvas`, in `colours`."""

    canvas: Canvas
    axes: Axes
    colours: Colours


def draw_panel(
    panel: Panel, colours: Colours, *, title: str | None = None, footer: str = ""
) -> Canvas:
    """The panel as a matplotlib figure; `title`: another than the panel's own; `footer`: what its
    numbers rest on, for a panel that stands alone.
    """
    lines = textwrap.wrap(panel.title if title is None else title, _TITLE_CHARACTERS)
    foot = textwrap.wrap(footer, _FOOTER_CHARACTERS)
    foot_height = _FOOTER_LINE * len(foot) + (6 if foot else 0)
    height = _height(panel) + _LINE_HEIGHT * len(lines) + foot_height
    style = {"font.sans-serif": ["DejaVu Sans"], "font.size": _TEXT, "axes.unicode_minus": False}
    with matplotlib.rc_context(style):
        size = (WIDTH / _UNITS_PER_INCH, height / _UNITS_PER_INCH)
        canvas = Canvas(figsize=size, dpi=_UNITS_PER_INCH)
        base = foot_height / height
        layout = ConstrainedLayoutEngine(
            w_pad=3 / 72, h_pad=3 / 72, rect=(0.0, base, 1.0, 1.0 - base)
        )
        canvas.set_layout_engine(layout)
        axes = canvas.add_subplot()
        sheet = Sheet(canvas=canvas, axes=axes, colours=colours)
        canvas.patch.set_visible(False)
        axes.patch.set_visible(False)
        _style_axes(sheet)
        if lines:
            canvas.suptitle(
                "\n".join(lines),
                x=2 / WIDTH,
                horizontalalignment="left",
                fontsize=_TEXT,
                fontweight="bold",
                color=colours["ink"],
            )
        canvas.text(
            6 / WIDTH,
            5 / height,
            "\n".join(foot),
            fontsize=_FOOTER_TEXT,
            color=colours["muted"],
            linespacing=1.2,
            verticalalignment="bottom",
        )
        _draw(panel, sheet)
    return canvas


def _height(panel: Panel) -> float:
    if isinstance(panel, RowPanel):
        return 48 + 26 * len(panel.rows)
    if isinstance(panel, StackPanel):
        return 92 + 31 * len({bar.label for bar in panel.bars})
    if isinstance(panel, HeatPanel):
        return 52 + 32 * len(panel.rows)
    return 236


def _style_axes(sheet: Sheet) -> None:
    axes, colours = sheet.axes, sheet.colours
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colours["line"])
    axes.tick_params(length=0, colors=colours["muted"], labelsize=_SMALL, pad=4)
    axes.tick_params(which="minor", length=0)
    axes.set_axisbelow(True)


def _axis_label(sheet: Sheet, text: str) -> None:
    sheet.axes.set_xlabel(text, color=sheet.colours["muted"], fontsize=_SMALL, labelpad=5)


@singledispatch
def _draw(panel: Panel, sheet: Sheet) -> None:
    raise TypeError(type(panel).__name__)


# -- lines -----------------------------------------------------------------------------------------


@_draw.register
def _(panel: LinePanel, sheet: Sheet) -> None:
    axes, colours = sheet.axes, sheet.colours
    axes.grid(axis="y", color=colours["grid"], linewidth=0.8)
    for guide in panel.guides:
        axes.plot(guide.x, guide.y, color=colours["muted"], linewidth=1.0, zorder=1.5)
    for series in panel.series:
        _draw_series(series, sheet)
    _scale(panel, sheet)
    _axis_label(sheet, panel.x_label)
    axes.annotate(
        panel.y_label,
        (0, 1),
        xycoords="axes fraction",
        xytext=(0, 8),
        textcoords="offset points",
        color=colours["muted"],
        fontsize=_SMALL,
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
        found = MaxNLocator(nbins=6, steps=_ROUND, integer=whole).tick_values(low, high)
        ticks = [t for t in found if low <= t <= high]
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: show_x(value)))
    if panel.y_scale == "log":
        axes.yaxis.set_major_locator(FixedLocator(log_ticks(*axes.get_ylim())))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=_ROUND))
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
            fontsize=_SMALL,
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
            fontsize=_SMALL,
            fontweight="bold",
            horizontalalignment="right" if at_right else "left",
            verticalalignment="top" if at_top else "bottom",
        )


def _label_points(panel: LinePanel, sheet: Sheet) -> None:
    canvas, axes = sheet.canvas, sheet.axes
    guides = [_label_guide(guide, sheet) for guide in panel.guides]
    canvas.draw_without_rendering()  # type: ignore[no-untyped-call]  # lays the axes out
    marks = [
        (float(x), float(y), name, series.role)
        for series in panel.series
        for x, y, name in zip_longest(series.x, series.y, series.names, fillvalue="")
    ]
    spots = [tuple(axes.transData.transform((x, y))) for x, y, _, _ in marks]
    taken = [Box.around(*spot, 4.0) for spot in spots]
    taken += [Box(*text.get_window_extent().extents) for text in guides]
    for line in _lines(panel):
        places = [(float(x), float(y)) for x, y in axes.transData.transform(line)]
        taken += [Box.around(x, y, 2.0) for x, y in dense(places)]
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
            fontsize=_SMALL,
            fontweight="bold",
            verticalalignment="center",
        )


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
        fontsize=_SMALL,
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


# -- rows, bars, heat maps -------------------------------------------------------------------------


@_draw.register
def _(panel: RowPanel, sheet: Sheet) -> None:
    axes, colours = sheet.axes, sheet.colours
    top = max((m.high or m.value for row in panel.rows for m in row.marks), default=1.0)
    axes.set_xlim(0, 1.22 * top if top > 0 else 1.0)  # the numbers stand behind the marks
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    axes.set_yticks(range(len(panel.rows)), [row.label for row in panel.rows])
    for place, (row, tick) in enumerate(zip(panel.rows, axes.get_yticklabels(), strict=True)):
        colour = colours[row.role]
        tick.set(color=colour, fontweight="bold", fontsize=_SMALL)
        shown = [m for m in row.marks if not m.is_predicted] or list(row.marks)
        mean = sum(m.value for m in shown) / len(shown)
        axes.plot([0, mean], [place, place], color=colour, linewidth=2.2, alpha=0.35)
        for mark in row.marks:
            if mark.low is not None and mark.high is not None:
                axes.plot([mark.low, mark.high], [place, place], color=colour, linewidth=1.2)
                for end in (mark.low, mark.high):
                    axes.plot([end, end], [place - 0.14, place + 0.14], color=colour, linewidth=1.2)
            axes.plot(
                [mark.value],
                [place],
                linestyle="none",
                marker=row.marker,
                markersize=9.0 if mark.is_predicted else 5.5,
                markerfacecolor="none" if mark.is_predicted else colour,
                markeredgecolor=colour,
                markeredgewidth=1.1,
            )
        right = max(m.high or m.value for m in row.marks)
        axes.annotate(
            formats.number(mean),
            (right, place),
            xytext=(8, 0),
            textcoords="offset points",
            color=colours["ink"],
            fontsize=_SMALL,
            verticalalignment="center",
        )
    axes.grid(axis="x", color=colours["grid"], linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=_ROUND))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.number(value)))
    _axis_label(sheet, panel.x_label)


@_draw.register
def _(panel: StackPanel, sheet: Sheet) -> None:
    axes, colours = sheet.axes, sheet.colours
    labels = list(dict.fromkeys(bar.label for bar in panel.bars))
    both = {bar.is_predicted for bar in panel.bars} == {True, False}
    top = max((bar.total for bar in panel.bars), default=0.0) or 1.0
    axes.set_xlim(0, 1.2 * top)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_yticks(range(len(labels)), labels)
    parts: dict[str, str] = {}
    for bar in panel.bars:
        thin = both and bar.is_predicted
        place = labels.index(bar.label) + (0.27 if thin else -0.08 if both else 0.0)
        height, left = (0.2 if thin else 0.46 if both else 0.6), 0.0
        for segment in bar.segments:
            if segment.value <= 0:
                continue
            parts.setdefault(segment.name, segment.role)
            axes.barh(
                place,
                segment.value,
                left=left,
                height=height,
                color=colours[segment.role],
                edgecolor=colours["surface"],
                linewidth=0.8,
            )
            if not thin and segment.value > 0.13 * top:
                axes.text(
                    left + segment.value / 2,
                    place,
                    f"{100 * segment.value / bar.total:.0f} %",
                    color=colours["ink"],
                    fontsize=9.2,
                    horizontalalignment="center",
                    verticalalignment="center_baseline",
                )
            left += segment.value
        if not thin:
            axes.annotate(
                formats.number(left),
                (left, place),
                xytext=(4, 0),
                textcoords="offset points",
                color=colours["ink"],
                fontsize=_SMALL,
                verticalalignment="center",
            )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=_ROUND))
    axes.grid(axis="x", color=colours["grid"], linewidth=0.8)
    _axis_label(sheet, panel.x_label)
    handles = [Rectangle((0, 0), 1, 1, color=colours[role]) for role in parts.values()]
    sheet.canvas.legend(
        handles,
        list(parts),
        loc="outside lower left",
        ncols=4,
        frameon=False,
        fontsize=_SMALL,
        labelcolor=colours["ink"],
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.2,
    )


@_draw.register
def _(panel: HeatPanel, sheet: Sheet) -> None:
    axes, colours = sheet.axes, sheet.colours
    axes.set_xlim(0, len(panel.columns))
    axes.set_ylim(0, len(panel.rows))
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([i + 0.5 for i in range(len(panel.columns))], panel.columns)
    axes.set_yticks([i + 0.5 for i in range(len(panel.rows))], panel.rows)
    for y, row in enumerate(panel.values):
        for x, value in enumerate(row):
            strength, role = heat(value)
            axes.add_patch(
                Rectangle(
                    (x + 0.03, y + 0.04),
                    0.94,
                    0.92,
                    facecolor=colours[role],
                    alpha=strength,
                    linewidth=0,
                )
            )
            axes.text(
                x + 0.5,
                y + 0.5,
                formats.factor(value),
                color=colours["ink"],
                fontsize=_TEXT,
                horizontalalignment="center",
                verticalalignment="center_baseline",
            )
    _axis_label(sheet, panel.x_label)
    axes.set_ylabel(panel.y_label, color=colours["muted"], fontsize=_SMALL)


def heat(factor: float | None) -> tuple[float, str]:
    """Opacity and role of a cell: the stronger, the farther the factor is from 1 (full at 3)."""
    if factor is None or factor <= 0:
        return 0.5, "grid"
    distance = max(factor, 1 / factor) - 1
    return min(0.72, 0.06 + 0.33 * distance), "faster" if factor >= 1 else "slower"
