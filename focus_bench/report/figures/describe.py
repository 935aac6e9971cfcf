"""Panels in words and as tables of numbers, for those who do not see them and those who check them.

Knows panels only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

from focus_bench.report import formats
from focus_bench.report.figures.panels import HeatPanel, LinePanel, Panel, RowPanel, StackPanel

_FEW = 12  # points of a line that its description lists


@dataclass(frozen=True, kw_only=True)
class NumberTable:
    """Numbers behind a panel: headings, and rows of texts below them."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@singledispatch
def describe(panel: Panel) -> str:
    """The panel's content in a sentence for each series."""
    raise TypeError(type(panel).__name__)


@singledispatch
def numbers(panel: Panel) -> NumberTable:
    """The panel's numbers."""
    raise TypeError(type(panel).__name__)


@describe.register
def _(panel: LinePanel) -> str:
    lines = []
    for series in panel.series:
        points = list(zip(series.x, series.y, strict=True))
        if series.join == "steps":
            shown = "median " + formats.number(_median(points))
        else:
            shown = ", ".join(f"{_number(x)}: {_number(y)}" for x, y in _thinned(points))
        lines.append(f"{series.label} {series.source}: {shown}")
    return _sentence(panel.title, f"{panel.y_label} against {panel.x_label}", lines)


@describe.register
def _(panel: RowPanel) -> str:
    lines = [
        f"{row.label}: "
        + ", ".join(
            f"{_number(m.value)}{f' ({m.name})' if m.name else ''}"
            f"{' predicted' if m.is_predicted else ''}"
            for m in row.marks
        )
        for row in panel.rows
    ]
    return _sentence(panel.title, panel.x_label, lines)


@describe.register
def _(panel: StackPanel) -> str:
    lines = [
        f"{bar.label}{' predicted' if bar.is_predicted else ''}: {_number(bar.total)}, of it "
        + ", ".join(f"{s.name} {_number(s.value)}" for s in bar.segments if s.value > 0)
        for bar in panel.bars
    ]
    return _sentence(panel.title, panel.x_label, lines)


@describe.register
def _(panel: HeatPanel) -> str:
    lines = [
        f"{row}: "
        + ", ".join(
            f"{column}: {formats.factor(value)}"
            for column, value in zip(panel.columns, values, strict=True)
        )
        for row, values in zip(panel.rows, panel.values, strict=True)
    ]
    title = f"{panel.y_label} down, {panel.x_label} across"
    return _sentence(panel.title, title, lines)


@numbers.register
def _(panel: LinePanel) -> NumberTable:
    rows = []
    for series in panel.series:
        lows = series.low or (None,) * len(series.x)
        highs = series.high or (None,) * len(series.x)
        points = list(zip(series.x, series.y, lows, highs, strict=True))
        if series.join == "steps":
            points = [(_quantile(series.x, series.y, q), q, None, None) for q in (0.5, 0.9, 0.99)]
        for x, y, low, high in points:
            interval = "" if low is None else f"{_number(low)} to {_number(high)}"
            rows.append((series.label, series.source, _number(x), _number(y), interval))
    headings = ("series", "source", panel.x_label, panel.y_label, "95 % interval")
    return _without_empty(headings, rows)


@numbers.register
def _(panel: RowPanel) -> NumberTable:
    rows = [
        (
            row.label,
            mark.name,
            "predicted" if mark.is_predicted else "measured",
            _number(mark.value),
            "" if mark.low is None else f"{_number(mark.low)} to {_number(mark.high)}",
        )
        for row in panel.rows
        for mark in row.marks
    ]
    return _without_empty(("series", "at", "source", panel.x_label, "95 % interval"), rows)


@numbers.register
def _(panel: StackPanel) -> NumberTable:
    names = list(dict.fromkeys(s.name for bar in panel.bars for s in bar.segments if s.value > 0))
    rows = []
    for bar in panel.bars:
        values = {s.name: s.value for s in bar.segments}
        source = "predicted" if bar.is_predicted else "measured"
        cells = (_number(values.get(name, 0.0)) for name in names)
        rows.append((bar.label, source, *cells, _number(bar.total)))
    return NumberTable(headings=("", "source", *names, panel.x_label), rows=tuple(rows))


@numbers.register
def _(panel: HeatPanel) -> NumberTable:
    rows = [
        (row, *(formats.factor(value) for value in values))
        for row, values in zip(panel.rows, panel.values, strict=True)
    ]
    corner = f"{panel.y_label} \\ {panel.x_label}"
    return NumberTable(headings=(corner, *panel.columns), rows=tuple(rows))


def _without_empty(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> NumberTable:
    used = [i for i in range(len(headings)) if any(row[i] for row in rows)]
    return NumberTable(
        headings=tuple(headings[i] for i in used),
        rows=tuple(tuple(row[i] for i in used) for row in rows),
    )


def _sentence(title: str, what: str, lines: Sequence[str]) -> str:
    head = f"{title}: {what}" if title else what
    return f"{head}. {'; '.join(lines)}."


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    step = -(-len(points) // _FEW) or 1
    return points[::step]


def _median(points: list[tuple[float, float]]) -> float:
    return _quantile([x for x, _ in points], [y for _, y in points], 0.5)


def _quantile(x: Sequence[float], share: Sequence[float], level: float) -> float:
    """The smallest x below or at which that share lies; the largest where rounding hides it."""
    return next((a for a, b in zip(x, share, strict=True) if b >= level), x[-1])


def _number(value: float | None) -> str:
    return formats.number(value)
