"""Draws panels of rows, of stacked bars and of heat maps."""

from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from focus_bench.report import formats
from focus_bench.report.figures.axes import ROUND, SMALL, TEXT, Sheet, axis_label
from focus_bench.report.figures.panels import HeatPanel, Row, RowPanel, StackPanel

_KEY_COLUMNS = 4


def draw_rows(panel: RowPanel, sheet: Sheet) -> None:
    """A line from zero to the mean of each row, and its marks."""
    axes, colours = sheet.axes, sheet.colours
    top = max((m.high or m.value for row in panel.rows for m in row.marks), default=1.0)
    room = 1.1 + 0.02 * max(len(_row_text(row)) for row in panel.rows)  # for the text behind them
    axes.set_xlim(0, room * top if top > 0 else 1.0)
    axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    axes.set_yticks(range(len(panel.rows)), [row.label for row in panel.rows])
    for place, (row, tick) in enumerate(zip(panel.rows, axes.get_yticklabels(), strict=True)):
        colour = colours[row.role]
        tick.set(color=colour, fontweight="bold", fontsize=SMALL)
        measured, predicted = _means(row)
        mean = (predicted if measured is None else measured) or 0.0
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
            _row_text(row),
            (right, place),
            xytext=(8, 0),
            textcoords="offset points",
            color=colours["ink"],
            fontsize=SMALL,
            verticalalignment="center",
        )
    axes.grid(axis="x", color=colours["grid"], linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formats.number(value)))
    axis_label(sheet, panel.x_label)


def _row_text(row: Row) -> str:
    """The mean, and that of the predictions where it is another one."""
    measured, predicted = _means(row)
    if measured is None or predicted is None:
        return formats.number(predicted if measured is None else measured)
    far = abs(predicted - measured) > 0.005 * abs(measured)
    return f"{formats.number(measured)}{f' (pred. {formats.number(predicted)})' if far else ''}"


def _means(row: Row) -> tuple[float | None, float | None]:
    """Mean of the measurements and of the predictions; None where there are none."""
    measured = [m.value for m in row.marks if not m.is_predicted]
    predicted = [m.value for m in row.marks if m.is_predicted]
    return (
        sum(measured) / len(measured) if measured else None,
        sum(predicted) / len(predicted) if predicted else None,
    )


def key_height(panel: StackPanel) -> float:
    """Units that the key of a panel's parts takes below it."""
    return 2.0 + 15.0 * -(-len(_parts(panel)) // _KEY_COLUMNS)


def _parts(panel: StackPanel) -> dict[str, str]:
    """Names of the parts that took time, and their roles."""
    return {s.name: s.role for bar in panel.bars for s in bar.segments if s.value > 0}


def draw_stacks(panel: StackPanel, sheet: Sheet) -> None:
    """Bars with their shares, and a key of their parts below."""
    axes, colours = sheet.axes, sheet.colours
    labels = list(dict.fromkeys(bar.label for bar in panel.bars))
    both = {bar.is_predicted for bar in panel.bars} == {True, False}
    top = max((bar.total for bar in panel.bars), default=0.0) or 1.0
    axes.set_xlim(0, 1.2 * top)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_yticks(range(len(labels)), labels)
    for bar in panel.bars:
        thin = both and bar.is_predicted
        place = labels.index(bar.label) + (0.27 if thin else -0.08 if both else 0.0)
        height, left = (0.2 if thin else 0.46 if both else 0.6), 0.0
        for segment in bar.segments:
            if segment.value <= 0:
                continue
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
                fontsize=SMALL,
                verticalalignment="center",
            )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    axes.grid(axis="x", color=colours["grid"], linewidth=0.8)
    axis_label(sheet, panel.x_label)
    parts = _parts(panel)
    handles = [Rectangle((0, 0), 1, 1, color=colours[role]) for role in parts.values()]
    sheet.canvas.legend(
        handles,
        list(parts),
        loc="lower left",
        bbox_to_anchor=sheet.corner,
        borderaxespad=0.0,
        borderpad=0.0,
        ncols=_KEY_COLUMNS,
        frameon=False,
        fontsize=SMALL,
        labelcolor=colours["ink"],
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.2,
    )


def draw_heat(panel: HeatPanel, sheet: Sheet) -> None:
    """Cells with their factors."""
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
                fontsize=TEXT,
                horizontalalignment="center",
                verticalalignment="center_baseline",
            )
    axis_label(sheet, panel.x_label)
    axes.set_ylabel(panel.y_label, color=colours["muted"], fontsize=SMALL)


def heat(factor: float | None) -> tuple[float, str]:
    """Opacity and role of a cell: the stronger, the farther the factor is from 1 (full at 3)."""
    if factor is None or factor <= 0:
        return 0.5, "grid"
    distance = max(factor, 1 / factor) - 1
    return min(0.72, 0.06 + 0.33 * distance), "faster" if factor >= 1 else "slower"
