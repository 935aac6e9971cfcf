"""Tables that fit the width they get: columns that find no room continue in a table below.

Knows columns and rows of text, not what they mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_GAPS = (2, 1)  # blanks between columns: the first with which all fit, else the last
_WIDEST_NAME = 24  # longer names of rows are folded


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its heading (may have two lines) and the text of each row, top to bottom.

    `is_name`: names the row, so it is left-aligned and repeated when the table is continued.
    """

    heading: str
    cells: tuple[str, ...]
    is_name: bool = False

    @property
    def width(self) -> int:
        """Terminal cells that it needs."""
        lines = (*self.heading.split("\n"), *self.cells)
        needed = max(cell_len(line) for line in lines)
        return min(needed, _WIDEST_NAME) if self.is_name else needed


@dataclass(frozen=True, kw_only=True)
class FittedTable:
    """A table that is cut into as few stacked tables as its width needs, in column order."""

    columns: tuple[Column, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part, gap in split_columns(self.columns, options.max_width):
            yield _table(part, gap)
            yield Text()


def column(
    heading: str, rows: Sequence[object], cell: Callable[..., str], *, is_name: bool = False
) -> Column:
    """A column with `cell(row)` for each row."""
    return Column(heading=heading, cells=tuple(cell(row) for row in rows), is_name=is_name)


def split_columns(columns: Sequence[Column], width: int) -> list[tuple[tuple[Column, ...], int]]:
    """Groups of columns that each fit `width`, with the gap between them; all names lead each.

    A group has at least one column that is no name, so a very small width is exceeded rather than
    nothing shown (rich then folds the cells).
    """
    for gap in _GAPS:
        groups = _groups(columns, width, gap)
        if len(groups) == 1:
            break
    return [(group, gap) for group in groups]


def _groups(columns: Sequence[Column], width: int, gap: int) -> list[tuple[Column, ...]]:
    names = [c for c in columns if c.is_name]
    figures = [c for c in columns if not c.is_name]
    taken = sum(c.width + gap for c in names)
    groups: list[list[Column]] = [[]]
    used = taken
    for figure in figures:
        if groups[-1] and used + figure.width > width:
            groups.append([])
            used = taken
        groups[-1].append(figure)
        used += figure.width + gap
    return [(*names, *group) for group in groups]


def _table(columns: Sequence[Column], gap: int) -> Table:
    # The box itself puts one blank between columns.
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for item in columns:
        is_text = item.is_name and not all(_is_number(cell) for cell in item.cells)
        table.add_column(
            Text(item.heading),
            justify="left" if is_text else "right",
            vertical="top",
            overflow="fold",
            no_wrap=not item.is_name,
            max_width=_WIDEST_NAME if item.is_name else None,
        )
    for cells in zip(*(item.cells for item in columns), strict=True):
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _is_number(cell: str) -> bool:
    return cell.replace(".", "").isdigit() or cell in ("", "-", "inf")
