"""What a table's figures rest on, said above the table; numbered where it is not true of all rows.

Knows comparisons and their notes, no layout.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from focus_bench.core.workload import Provenance
from focus_bench.report.compare import Comparison


@dataclass(frozen=True, kw_only=True)
class Captions:
    """`lines` to show; `marks[row]`: the numbers of the lines that hold for that row only."""

    lines: tuple[str, ...]
    marks: tuple[str, ...]


def captions(pairs: Sequence[Comparison]) -> Captions:
    """Every label and note of the results, each once.

    A note of all rows stands as it is, one of all rows of one source is led by the source, and any
    other is numbered, its rows carrying the number; notes of the same rows share a number.
    """
    places = {(row, r.source) for row, pair in enumerate(pairs) for r in pair.results}
    touched: dict[str, set[tuple[int, str]]] = {}
    for row, pair in enumerate(pairs):
        for result in pair.results:
            for note in result.all_notes:
                touched.setdefault(note, set()).add((row, result.source))
    lines: list[str] = []
    marks: list[list[str]] = [[] for _ in pairs]
    numbers: dict[frozenset[tuple[int, str]], int] = {}
    for note, where in touched.items():
        sources = sorted({source for _, source in where})
        of_sources = {place for place in places if place[1] in sources}
        prefix = "" if sources == sorted({source for _, source in places}) else f"{sources[0]}: "
        if where == of_sources:
            lines.append(f"{prefix}{note}")
            continue
        place = frozenset(where)
        is_new = place not in numbers
        number = numbers.setdefault(place, len(numbers) + 1)
        lines.append(f"[{number}] {prefix}{note}")
        for row in sorted({row for row, _ in where}) if is_new else ():
            marks[row].append(str(number))
    return Captions(lines=tuple(lines), marks=tuple(",".join(m) for m in marks))


def plain_lines(pairs: Sequence[Comparison]) -> tuple[str, ...]:
    """The lines without their numbers, each once: for outputs whose rows carry none."""
    return tuple(dict.fromkeys(re.sub(r"^\[\d+\] ", "", line) for line in captions(pairs).lines))


def data_line(provenance: Provenance) -> str:
    """Where a workload's text came from and what was left out, in one line."""
    parts = [f"data: {provenance.dataset}, {provenance.origin}"]
    if provenance.path:
        parts.append(provenance.path)
    if provenance.rows_read:
        parts.append(f"{provenance.rows_kept} of {provenance.rows_read} rows used")
    dropped = [f"{count} {reason}" for reason, count in provenance.dropped.items() if count]
    if dropped:
        parts.append(f"left out: {', '.join(dropped)}")
    if provenance.truncated:
        parts.append("the file ends inside a row")
    return "; ".join(parts)
