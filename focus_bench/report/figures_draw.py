"""Draws panels with matplotlib, in the colours that it is given for their roles.

Knows no result and writes no file.
"""

import textwrap

import matplotlib
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine

from focus_bench.report.figures_axes import TEXT, WIDTH, Colours, Sheet, style_axes
from focus_bench.report.figures_cells import draw_heat, draw_rows, draw_stacks
from focus_bench.report.figures_lines import draw_lines
from focus_bench.report.figures_panels import (
    HeatPanel,
    LinePanel,
    Panel,
    RowPanel,
    StackPanel,
)

_UNITS_PER_INCH = 72.0
_TITLE_CHARACTERS = 44
_LINE_HEIGHT = 13.0
_FOOTER_TEXT, _FOOTER_LINE, _FOOTER_CHARACTERS = 6.5, 8.2, 86


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
    style = {"font.sans-serif": ["DejaVu Sans"], "font.size": TEXT, "axes.unicode_minus": False}
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
        style_axes(sheet)
        if lines:
            canvas.suptitle(
                "\n".join(lines),
                x=2 / WIDTH,
                horizontalalignment="left",
                fontsize=TEXT,
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
        if isinstance(panel, LinePanel):
            draw_lines(panel, sheet)
        elif isinstance(panel, RowPanel):
            draw_rows(panel, sheet)
        elif isinstance(panel, StackPanel):
            draw_stacks(panel, sheet)
        else:
            draw_heat(panel, sheet)
    return canvas


def _height(panel: Panel) -> float:
    if isinstance(panel, RowPanel):
        return 48 + 26 * len(panel.rows)
    if isinstance(panel, StackPanel):
        return 92 + 31 * len({bar.label for bar in panel.bars})
    if isinstance(panel, HeatPanel):
        return 52 + 32 * len(panel.rows)
    return 236
