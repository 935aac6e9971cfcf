"""The HTML report as one text that needs nothing else: figures, tables, and how they came to be.

Knows the data of a report, no file.
"""

from collections.abc import Sequence

from rich.console import RenderableType

from focus_bench.core.config import POLICY_NAMES
from focus_bench.report.detail import point_detail
from focus_bench.report.failures import failed_points_table
from focus_bench.report.figures.catalogue import all_figures
from focus_bench.report.figures.data import ReportData
from focus_bench.report.figures.describe import numbers
from focus_bench.report.figures.panels import AbsentFigure, Figure
from focus_bench.report.figures.svg import inline_svg
from focus_bench.report.figures.theme import policy_sign
from focus_bench.report.html.facts import environment, labels, subtitle, tiles
from focus_bench.report.html.renderables import escaped, renderable_html, table_html
from focus_bench.report.html.style import style_sheet
from focus_bench.report.quality import quality_table
from focus_bench.report.results import PointResult
from focus_bench.report.tables import comparison_table, failures_table, results_table


def report_html(data: ReportData, *, extra: Sequence[tuple[str, RenderableType]] = ()) -> str:
    """The page. `extra`: further tables with their headings. Equal data give equal text."""
    figures, absent = all_figures(data)
    sections = [
        ("figures", "Figures", _figures(figures, data)),
        ("tables", "Tables", _tables(data, extra)),
        ("points", "Every point", _points(data.results)),
        ("left-out", "Not shown", _absent(absent)),
        ("environment", "Environment", _environment(data)),
    ]
    shown = [(anchor, title, body) for anchor, title, body in sections if body]
    links = "".join(f'<li><a href="#{a}">{escaped(t)}</a></li>' for a, t, _ in shown)
    body = "".join(
        f'<section aria-labelledby="{a}"><h2 id="{a}">{escaped(t)}</h2>\n{b}</section>\n'
        for a, t, b in shown
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>focus-bench: {escaped(subtitle(data) or 'report')}</title>\n"
        f"<style>{style_sheet()}</style>\n</head>\n<body>\n{_header(data)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>\n{body}</main>\n'
        "<footer>Written by focus-bench report. Units are decimal; a ~ marks a percentile of few "
        "samples, a - what is undefined.</footer>\n</body>\n</html>\n"
    )


def _header(data: ReportData) -> str:
    facts = "".join(
        f"<li class={'bad' if tile.is_bad else 'fact'}><b>{escaped(tile.value)}</b>"
        f"<span>{escaped(tile.text)}</span></li>"
        for tile in tiles(data)
    )
    named = "".join(f"<li>{escaped(label)}</li>" for label in labels(data))
    chips = f'<ul class="chips" aria-label="What was not real">{named}</ul>\n' if named else ""
    return (
        f'<header>\n<h1>focus-bench report</h1>\n<p class="sub">{escaped(subtitle(data))}</p>\n'
        f'<ul class="tiles">{facts}</ul>\n{chips}</header>\n'
    )


def _figures(figures: Sequence[Figure], data: ReportData) -> str:
    if not figures:
        return ""
    points = [r.point for r in (*data.results, *(q.decoding for q in data.quality))]
    used = {point.decode.policy for point in points}
    key = "".join(
        f'<li><i style="background:var(--{sign.role})"></i>'
        f"{escaped(sign.short if sign.short == name else f'{sign.short} = {name}')}</li>"
        for name, sign in ((name, policy_sign(name)) for name in POLICY_NAMES if name in used)
    )
    cards = "".join(_figure(figure) for figure in figures)
    return (
        f'<ul class="chips key" aria-label="Policies">{key}</ul>\n'
        f'<div class="figures">\n{cards}</div>\n'
    )


def _figure(figure: Figure) -> str:
    name = figure.name
    svgs = "".join(
        inline_svg(panel, name=f"{name}-{number}")
        for number, panel in enumerate(figure.panels, start=1)
    )
    tables = []
    for panel in figure.panels:
        table = numbers(panel)
        tables.append(table_html(table.headings, table.rows, caption=panel.title or figure.title))
    rests = f'<p class="rests">{escaped(figure.footer)}</p>' if figure.footer else ""
    left = f'<p class="left-out">{escaped(figure.left_out)}</p>' if figure.left_out else ""
    wide = ' class="wide"' if len(figure.panels) > 1 else ""
    return (
        f'<figure id="{name}"{wide}>\n<figcaption><h3><a href="#{name}">{escaped(figure.title)}'
        f"</a></h3><p>{escaped(figure.text)}</p></figcaption>\n"
        f'<div class="panels">\n{svgs}</div>\n{left}{rests}\n'
        f"<details><summary>Numbers</summary>\n{''.join(tables)}</details>\n</figure>\n"
    )


def _tables(data: ReportData, extra: Sequence[tuple[str, RenderableType]]) -> str:
    items: list[tuple[str, RenderableType | None]] = []
    if data.results:
        items.append(("Results", results_table(data.results)))
        sources = {r.source for r in data.results}
        if {"measured", "predicted"} <= sources:
            errors = comparison_table(data.results, head=False)
            items.append(("Error of the predictions", errors))
    if data.quality:
        items.append(("Quality", quality_table(data.quality)))
    items += extra
    items.append(("", failed_points_table(data.failures)))
    items.append(("", failures_table(data.results)))
    return "".join(
        f'<div class="card">{f"<h3>{escaped(title)}</h3>" if title else ""}\n'
        f"{renderable_html(item)}</div>\n"
        for title, item in items
        if item is not None
    )


def _points(results: Sequence[PointResult]) -> str:
    if not results:
        return ""
    items = []
    for result in results:
        point = result.point
        title = (
            f"{result.source} {point.decode.policy}, batch {point.scheduler.batch_size}, "
            f"B {point.decode.block_length}, \u03b1 {point.decode.alpha:g}, {point.engine.model}, "
            f"{point.workload.dataset} on {result.hardware or 'unnamed hardware'}"
        )
        detail = renderable_html(point_detail(result))
        items.append(f"<details><summary>{escaped(title)}</summary>\n{detail}</details>\n")
    return f'<div class="card points">{"".join(items)}</div>\n'


def _absent(absent: Sequence[AbsentFigure]) -> str:
    items = "".join(f"<li>{escaped(a.title)}: {escaped(a.reason)}.</li>" for a in absent)
    return f'<div class="card"><ul class="plain">{items}</ul></div>\n' if items else ""


def _environment(data: ReportData) -> str:
    cards = []
    for name, manifest in data.manifests:
        facts = "".join(
            f"<dt>{escaped(fact)}</dt><dd>{escaped(value)}</dd>"
            for fact, value in environment(manifest)
        )
        cards.append(f'<div class="card"><h3>{escaped(name)}</h3>\n<dl>{facts}</dl></div>\n')
    return "".join(cards)
