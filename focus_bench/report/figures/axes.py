"""What every panel is drawn on: its size, its text, its axes. Knows no panel.

A panel is 320 units wide, a unit being a pixel of a phone, and its text is at least 9 units high,
so that it can be read there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

WIDTH = 320.0
TEXT, SMALL = 10.5, 9.8
ROUND = [1, 2, 5, 10]  # first digits of the distances between ticks

Colours = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What a panel is drawn on: `axes` of `canvas`, in `colours`.

    `corner`: shares of the canvas at whose right and above a key below the axes may stand.
    """

    canvas: Canvas
    axes: Axes
    colours: Colours
    corner: tuple[float, float]


def style_axes(sheet: Sheet) -> None:
    """Leave of the frame what is needed: a thin line below, and quiet numbers."""
    axes, colours = sheet.axes, sheet.colours
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colours["line"])
    axes.tick_params(length=0, colors=colours["muted"], labelsize=SMALL, pad=4)
    axes.tick_params(which="minor", length=0)
    axes.set_axisbelow(True)


def axis_label(sheet: Sheet, text: str) -> None:
    """Name the horizontal axis."""
    sheet.axes.set_xlabel(text, color=sheet.colours["muted"], fontsize=SMALL, labelpad=5)
