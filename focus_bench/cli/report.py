"""focus-bench report: shows result folders again."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    folders: Annotated[list[Path], typer.Argument(help="Result folders.")],
    detail: Annotated[
        bool, typer.Option("--detail", help="Show everything known about each point.")
    ] = False,
) -> int:
    """Show the results of folders; two of one point, source and hardware: the last folder's."""
    from focus_bench.report.console import make_console
    from focus_bench.report.detail import point_detail
    from focus_bench.report.folder import load_folder
    from focus_bench.report.quality import quality_table
    from focus_bench.report.quality_folder import QUALITY_FILE, load_quality
    from focus_bench.report.tables import failures_table, results_table

    console = make_console()
    of_eval = [folder for folder in folders if (folder / QUALITY_FILE).is_file()]
    if of_eval:
        answers = [result for folder in of_eval for result in load_quality(folder)]
        console.print(quality_table(answers))
    others = [folder for folder in folders if folder not in of_eval]
    if not others:
        return 0
    results = [result for folder in others for result in load_folder(folder).results]
    console.print(results_table(results))
    failures = failures_table(results)
    if failures is not None:
        console.print(failures)
    if detail:
        for result in results:
            console.print(point_detail(result))
    return 0
