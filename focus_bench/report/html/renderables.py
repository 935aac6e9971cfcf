"""The terminal's tables and lines as HTML, so that page and terminal never differ.

Knows the renderables that this package makes: groups, texts and fitted tables.
"""

import html
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.report.layout import FittedTable


def escaped(text: object) -> str:
    """Text for HTML, between tags and inside quoted attributes."""
    return html.escape(str(text), quote=True)


def renderable_html(item: RenderableType | None) -> str:
    """HTML of a renderable. Yellow lines are labels, bold ones headings, red ones failures."""
    if item is None:
        return ""
    if isinstance(item, str):
        item = Text(item)
    if isinstance(item, Group):
        return "".join(renderable_html(part) for part in item.renderables)
    if isinstance(item, FittedTable):
        names = [column.is_name for column in item.columns]
        headings = [column.heading.replace("\n", " ") for column in item.columns]
        rows = list(zip(*(column.cells for column in item.columns), strict=True))
        return table_html(headings, rows, is_name=names)
    if isinstance(item, Text):
        return _line(item)
    raise TypeError(f"no HTML for a {type(item).__name__}")


def table_html(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    is_name: Sequence[bool] | None = None,
    caption: str = "",
) -> str:
    """A table in a box of its own that scrolls sideways; `is_name`: columns aligned to the left."""
    names = [i == 0 for i in range(len(headings))] if is_name is None else is_name
    kinds = ["name" if name else "number" for name in names]

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="{kind}">{escaped(text)}</{tag}>'
            for kind, text in zip(kinds, texts, strict=True)
        )

    title = f"<caption>{escaped(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    label = escaped(caption or "table")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>{title}'
        f"<thead><tr>{cells('th', headings)}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def _line(text: Text) -> str:
    if not text.plain.strip():
        return ""
    style = str(text.style)
    kind = next(
        (
            kind
            for word, kind in (("yellow", "label"), ("red", "bad"), ("bold", "lead"))
            if word in style
        ),
        "line",
    )
    return f'<p class="{kind}">{escaped(text.plain)}</p>\n'
