"""Writes a report's HTML file and its figures' files. Loads matplotlib."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import RenderableType

from focus_bench.report.atomic import write_atomic
from focus_bench.report.figures.catalogue import all_figures
from focus_bench.report.figures.data import ReportData
from focus_bench.report.figures.svg import write_figure
from focus_bench.report.html.page import report_html


def write_html(
    data: ReportData, file: Path, *, extra: Sequence[tuple[str, RenderableType]] = ()
) -> None:
    """Write the page, whole or not at all; `extra`: see `report_html`."""
    text = report_html(data, extra=extra)
    write_atomic(file, text)


def write_figures(data: ReportData, folder: Path) -> tuple[Path, ...]:
    """Write every figure of the page into the folder as PNG and SVG, light and dark.

    The folder is made if there is a figure.
    """
    figures, _ = all_figures(data)
    if figures:
        folder.mkdir(parents=True, exist_ok=True)
    return tuple(path for figure in figures for path in write_figure(figure, folder))
