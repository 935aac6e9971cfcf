"""Panels as SVG inside a page, whose colours follow the page's theme, and as files of one theme.

Knows how matplotlib writes SVG; equal panels give equal text.
"""

import html
import io
import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure as Canvas

from focus_bench.report.atomic import write_atomic
from focus_bench.report.figures.describe import describe
from focus_bench.report.figures.draw import draw_panel
from focus_bench.report.figures.panels import Figure, Panel
from focus_bench.report.figures.theme import PLACEHOLDERS, THEMES

_PNG_DPI = 216  # three pixels a unit
_NO_METADATA: dict[str, None] = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def inline_svg(panel: Panel, *, name: str) -> str:
    """The panel as an <svg> element for an HTML page with the custom properties of the themes.

    `name`, unique in the page, leads every id in it. The element has a text alternative.
    """
    text = _svg(draw_panel(panel, PLACEHOLDERS), salt=name)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.S)
    for role, colour in PLACEHOLDERS.items():
        text = text.replace(colour, f"var(--{role})")
    # One id may stand in a page once only.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'xlink:href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", text)
    text = re.sub(r"'DejaVu Sans', ?sans-serif", "var(--font)", text)
    text = re.sub(r"<defs>\s*</defs>", "", text)
    text = re.sub(r"\n\s*", "\n", text)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None  # matplotlib writes one
    body = text[text.index(">") + 1 :].strip()
    label = html.escape(describe(panel), quote=True)
    return f'<svg {box.group()} role="img" aria-label="{label}">\n{body}'


def write_figure(figure: Figure, folder: Path) -> tuple[Path, ...]:
    """Write each panel as PNG and SVG, light and dark; the names carry the figure's name.

    NAME.svg and NAME.png are light, NAME-dark.* dark; panels behind the first add their number.
    """
    files = []
    for number, panel in enumerate(figure.panels, start=1):
        stem = figure.name if len(figure.panels) == 1 else f"{figure.name}-{number}"
        for theme, suffix in (("light", ""), ("dark", "-dark")):
            file = folder / f"{stem}{suffix}.svg"
            canvas = _canvas(figure, panel, theme)
            write_atomic(file, _svg(canvas, salt=stem))
            png = folder / f"{stem}{suffix}.png"
            write_atomic(png, _png(canvas))
            files += [file, png]
    return tuple(files)


def _canvas(figure: Figure, panel: Panel, theme: str) -> Canvas:
    """A panel that stands alone: with the figure's title, its footer and a background."""
    title = f"{figure.title}: {panel.title}" if panel.title else figure.title
    canvas = draw_panel(panel, THEMES[theme], title=title, footer=figure.footer)
    canvas.patch.set(visible=True, facecolor=THEMES[theme]["surface"])
    return canvas


def _svg(canvas: Canvas, *, salt: str) -> str:
    buffer = io.StringIO()
    # Ids and dates would otherwise differ from run to run.
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        canvas.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return buffer.getvalue()


def _png(canvas: Canvas) -> bytes:
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    return buffer.getvalue()
