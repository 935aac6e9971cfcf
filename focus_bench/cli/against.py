"""The part of focus-bench report that sets folders against an older one, with its exit code."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from focus_bench.report.against import Against, Side

REGRESSION = 3


def show_against(report: "Against", old: Path, *, csv: Path | None, console: Console) -> int:
    """Show what changed since `old`; returns 3 with every regression on stderr, else 0."""
    from focus_bench.report.against import against_csv
    from focus_bench.report.against_table import against_table, regression_lines
    from focus_bench.report.atomic import write_atomic

    console.print(f"against {old}", soft_wrap=True)
    console.print(against_table(report))
    if csv is not None:
        write_atomic(csv, against_csv(report))
    for line in regression_lines(report):
        print(f"focus-bench: regression: {line}", file=sys.stderr)
    return REGRESSION if report.has_regression else 0


def compared(folders: Sequence[Path], old: Path, *, tolerance_percent: float | None) -> "Against":
    """The changes since `old`. Raises UsageError, naming it, if no point is in both."""
    from focus_bench.core.errors import UsageError
    from focus_bench.report.against import compare_against

    try:
        return compare_against(_side(folders), _side([old]), tolerance_percent=tolerance_percent)
    except UsageError as error:
        if error.field != "--against":
            raise
        raise UsageError("--against", f"{old}, {error.value}", error.allowed) from None


def _side(folders: Sequence[Path]) -> "Side":
    from focus_bench.report.against import Side
    from focus_bench.report.folder import load_folder

    loaded = [load_folder(folder) for folder in folders]
    return Side(
        results=tuple(result for folder in loaded for result in folder.results),
        failures=tuple(failure for folder in loaded for failure in folder.failures),
        manifests=tuple(folder.manifest for folder in loaded),
    )
