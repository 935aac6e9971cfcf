"""Draws panels with matplotlib, in the colours that it is given for their roles.

Knows no result and writes no file.
"""

import textwrap

import matplotlib
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine

from focus_bench.report.figures.axes import TEXT, WIDTH, Colours, Sheet, style_axes
from focus_bench.report.figures.cells import draw_heat, draw_rows, draw_stacks, key_height
from focus_bench.report.figures.lines import draw_lines
from focus_bench.report.figures.panels import (
    HeatPanel,
    LinePanel,
    Panel,
    RowPanel,
    StackPanel,
)

_UNITS_PER_INCH = 72.0
_TITLE_CHARACTERS = 44
_LINE_HEIGHT = 13.0
_MARGIN = 8.0
_FOOTER_TEXT, _FOOTER_LINE, _FOOTER_CHARACTERS = 6.5, 8.2, 86


def draw_panel(
    panel: Panel, colours: Colours, *, title: str | None = None, footer: str = ""
) -> Canvas:
    """The panel as a matplotlib figure.

    One that stands alone, outside a page, has another `title` than the panel's own, a margin, and a
    `footer`: what its numbers rest on.
    """
    margin = 0.0 if title is None else _MARGIN
    lines = textwrap.wrap(panel.title if title is None else title, _TITLE_CHARACTERS)
    foot = textwrap.wrap(footer, _FOOTER_CHARACTERS)
    above = margin + _LINE_HEIGHT * len(lines)
    below = margin + _FOOTER_LINE * len(foot)
    key = key_height(panel) if isinstance(panel, StackPanel) else 0.0
    height = _height(panel) + above + key + below
    with matplotlib.rc_context({"font.sans-serif": ["DejaVu Sans"], "font.size": TEXT}):
        size = (WIDTH / _UNITS_PER_INCH, height / _UNITS_PER_INCH)
        canvas = Canvas(figsize=size, dpi=_UNITS_PER_INCH)
        inside = (margin / WIDTH, (below + key) / height)
        layout = ConstrainedLayoutEngine(
            w_pad=3 / _UNITS_PER_INCH,
            h_pad=3 / _UNITS_PER_INCH,
            rect=(*inside, 1 - 2 * inside[0], 1 - inside[1] - above / height),
        )
        canvas.set_layout_engine(layout)
        axes = canvas.add_subplot()
        corner = ((margin + 2) / WIDTH, below / height)
        sheet = Sheet(canvas=canvas, axes=axes, colours=colours, corner=corner)
        canvas.patch.set_visible(False)
        axes.patch.set_visible(False)
        style_axes(sheet)
        canvas.text(
            corner[0],
            1 - (margin + 1) / height,
            "\n".join(lines),
            fontsize=TEXT,
            fontweight="bold",
            color=colours["ink"],
            verticalalignment="top",
        )
        canvas.text(
            corner[0],
            0.6 * margin / height,
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
        return 60 + 31 * len({bar.label for bar in panel.bars})
    if isinstance(panel, HeatPanel):
        return 52 + 32 * len(panel.rows)
    return 236
