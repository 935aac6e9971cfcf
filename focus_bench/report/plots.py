"""Charts as PNG and SVG through matplotlib; what is charted comes as records.

Knows no table and no result: lines with intervals, and densities of samples.
"""

import io
import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from focus_bench.report.atomic import write_atomic

FORMATS = ("png", "svg")
_MARKERS = "osD^vPX*"


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one line; `low` and `high` bound an interval around each y (empty: none)."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Lines over a common axis. `ticks`: (place, name) where x is no number of its own.

    `is_joined`: whether the points of a series are joined. `from_zero`: whether the vertical axis
    begins there. `footer`: what it rests on.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    ticks: tuple[tuple[float, str], ...] = ()
    is_joined: bool = True
    from_zero: bool = False
    footer: str = ""


@dataclass(frozen=True, kw_only=True)
class DensityChart:
    """Distributions of samples, each of area 1. `marks`: (x, name) of vertical lines.

    Samples outside the central 99.8 % of all of them are not drawn.
    """

    title: str
    x_label: str
    samples: tuple[tuple[str, npt.NDArray[np.float64]], ...]
    marks: tuple[tuple[float, str], ...] = ()
    footer: str = ""


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """One bar a value of `x`, heights `y`."""

    title: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    footer: str = ""


Chart = LineChart | DensityChart | BarChart


def write_chart(chart: Chart, stem: Path) -> tuple[Path, ...]:
    """Write `stem`.png and `stem`.svg, each whole or not at all. Equal charts give equal files."""
    files = []
    # Ids and dates would otherwise differ from run to run.
    with matplotlib.rc_context({"svg.hashsalt": "focus-bench", "svg.fonttype": "none"}):
        figure = draw(chart)
        for kind in FORMATS:
            buffer = io.BytesIO()
            metadata = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
            file = stem.with_name(f"{stem.name}.{kind}")
            write_atomic(file, buffer.getvalue())
            files.append(file)
    return tuple(files)


def draw(chart: Chart) -> Figure:
    """The chart as a matplotlib figure."""
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(chart.title, fontsize=11)
    axes.set_xlabel(chart.x_label)
    if isinstance(chart, LineChart):
        _draw_lines(axes, chart)
    elif isinstance(chart, DensityChart):
        _draw_densities(axes, chart)
    else:
        axes.bar(chart.x, chart.y, width=0.85)
        axes.set_ylabel(chart.y_label)
    axes.grid(alpha=0.3)
    if chart.footer:
        figure.supxlabel(textwrap.fill(chart.footer, 120), fontsize=7, color="0.35")
    return figure


def _draw_lines(axes: Axes, chart: LineChart) -> None:
    for index, series in enumerate(chart.series):
        errors = None
        if series.low:
            below = np.subtract(series.y, series.low)
            above = np.subtract(series.high, series.y)
            errors = np.maximum(0.0, np.stack([below, above]))
        axes.errorbar(
            series.x,
            series.y,
            yerr=errors,
            label=series.label,
            marker=_MARKERS[index % len(_MARKERS)],
            linestyle="-" if chart.is_joined else "none",
            markersize=5,
            capsize=2,
            elinewidth=0.8,
        )
        for x, y, note in zip(series.x, series.y, series.notes, strict=False):
            axes.annotate(note, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=6)
    if chart.ticks:
        axes.set_xticks([x for x, _ in chart.ticks], [name for _, name in chart.ticks], fontsize=6)
    axes.set_ylabel(chart.y_label)
    if chart.from_zero:
        axes.set_ylim(bottom=0.0)
    if len(chart.series) > 1:
        axes.legend(fontsize=8)


def _draw_densities(axes: Axes, chart: DensityChart) -> None:
    everything = np.concatenate([values for _, values in chart.samples])
    low, high = np.percentile(everything, (0.1, 99.9)) if len(everything) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, 81)
    for label, values in chart.samples:
        if len(values):
            counts, _ = np.histogram(values, bins=edges)
            density = counts / (len(values) * np.diff(edges))
            axes.stairs(density, edges, fill=True, alpha=0.45, label=label)
    for x, name in chart.marks:
        axes.axvline(x, color="0.2", linestyle="--", linewidth=0.9)
        axes.annotate(
            name,
            (x, 0.97),
            xycoords=("data", "axes fraction"),
            verticalalignment="top",
            rotation=90,
            fontsize=7,
        )
    axes.set_ylabel("density")
    axes.legend(fontsize=8)
