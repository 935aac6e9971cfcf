"""focus-bench report: shows result folders again."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from focus_bench.cli.flags import PATH, existing_or_new

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from focus_bench.report.against import Against
    from focus_bench.report.folder import LoadedFolder


def command(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Result folders; of several, those that are none are named and left out.",
            parser=existing_or_new,
            metavar="FOLDERS",
        ),
    ],
    detail: Annotated[
        bool, typer.Option("--detail", help="Show everything known about each point.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            help="File for one self-contained HTML page with figures, tables and environment.",
            show_default="none",
            **PATH,
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            help="Folder for the page's figures as PNG and SVG, light and dark.",
            show_default="none",
            **PATH,
        ),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            "--perfetto",
            help="File for a trace of each point's steps and requests, for ui.perfetto.dev "
            "(name.json or name.json.gz; with several points name-HASH.json).",
            **PATH,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            help="Older result folder: show what changed since, and exit with 3 if a point got "
            "worse or failed (a significant change by Welch's t-test where both ran at least "
            "twice, else one beyond --tolerance).",
            show_default="none",
            **PATH,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            help="With --against: changes in percent that are passed over.",
            show_default="5 without a test, 0 with one",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            help="With --against: also write every figure to this CSV file.",
            show_default="none",
            **PATH,
        ),
    ] = None,
) -> int:
    """Show the results of folders; two of one point, source and hardware: the last folder's."""
    from focus_bench.cli.against import compared, show_against
    from focus_bench.cli.paths import check_writable
    from focus_bench.core.errors import UsageError
    from focus_bench.report.console import make_console
    from focus_bench.report.detail import point_detail
    from focus_bench.report.failures import failed_points_table
    from focus_bench.report.folder import load_folder
    from focus_bench.report.quality import quality_table
    from focus_bench.report.quality_folder import QUALITY_FILE, load_quality
    from focus_bench.report.tables import failures_table, results_table

    # All that can be refused is refused before anything is shown or written.
    sources = [*folders, against]
    check_writable("--html", html, inputs=sources)
    check_writable("--figures", figures, is_folder=True, inputs=sources)
    check_writable("--csv", csv, inputs=sources)
    check_writable("--perfetto", perfetto, inputs=sources)
    folders, left_out = _with_results(folders)
    of_eval = [folder for folder in folders if (folder / QUALITY_FILE).is_file()]
    others = [folder for folder in folders if folder not in of_eval]
    changes = None
    if against is None:
        for flag, value in (("--tolerance", tolerance), ("--csv", csv)):
            if value is not None:
                raise UsageError(flag, str(value), f"{flag} together with --against FOLDER")
    elif not others:
        raise UsageError("--against", str(against), "folders of run or simulate on both sides")
    else:
        changes = compared(others, against, tolerance_percent=tolerance)
    answers = [result for folder in of_eval for result in load_quality(folder)]
    loaded = [load_folder(folder) for folder in others]
    results = [result for folder in loaded for result in folder.results]
    traces = _write_traces(folders, loaded, perfetto)

    console = make_console()
    if left_out:
        line = f"left out, no result folders: {', '.join(left_out)}"
        make_console(sys.stderr).print(line, soft_wrap=True)
    if of_eval:
        console.print(quality_table(answers))
    if html is not None or figures is not None:
        _write_page(
            folders, html=html, figures=figures, changes=changes, against=against, console=console
        )
    if not others:
        return 0
    console.print(results_table(results))
    finished = {result.key for result in results}
    failed = [f for folder in loaded for f in folder.failures if f.key not in finished]
    for failures in (failures_table(results), failed_points_table(failed)):
        if failures is not None:
            console.print(failures)
    for folder in loaded:
        if folder.num_missing:
            console.print(
                f"{folder.path}: {folder.num_missing} of {len(folder.manifest.points)} points of "
                "run.json are missing: not run yet, or their files in points/ are gone",
                soft_wrap=True,
            )
    if detail:
        for result in results:
            console.print(point_detail(result))
    for file in traces:
        console.print(f"trace: {file}", soft_wrap=True)
    if perfetto is not None:
        for path in of_eval:
            console.print(f"no trace of {path}: eval keeps no steps", soft_wrap=True)
    if changes is None or against is None:
        return 0
    return show_against(changes, against, csv=csv, console=console)


def _with_results(folders: list[Path]) -> tuple[list[Path], list[str]]:
    """The result folders, and what the others are; without any result folder, all of them."""
    from focus_bench.report.locked_folder import what_is_no_result_folder
    from focus_bench.report.quality_folder import QUALITY_FILE

    others = {
        folder: what
        for folder in folders
        if not (folder / QUALITY_FILE).is_file() and (what := what_is_no_result_folder(folder))
    }
    kept = [folder for folder in folders if folder not in others]
    return (kept, list(others.values())) if kept else (folders, [])


def _write_traces(
    folders: list[Path], loaded: "list[LoadedFolder]", file: Path | None
) -> tuple[Path, ...]:
    """The traces of the points of run and simulate; UsageError where there is no point."""
    from focus_bench.core.errors import UsageError
    from focus_bench.report.trace_files import write_traces

    if file is None:
        return ()
    last = {result.key: (folder.path, result) for folder in loaded for result in folder.results}
    if not last:
        names = ", ".join(map(str, folders))
        allowed = f"a folder of run or simulate with a finished point, which {names} is not"
        raise UsageError("--perfetto", str(file), allowed)
    return write_traces(tuple(last.values()), file)


def _write_page(
    folders: list[Path],
    *,
    html: Path | None,
    figures: Path | None,
    changes: "Against | None",
    against: Path | None,
    console: "Console",
) -> None:
    from focus_bench.report.against_table import against_table
    from focus_bench.report.figures.data import load_report
    from focus_bench.report.html.files import write_figures, write_html

    data = load_report(folders)
    if html is not None:
        extra: list[tuple[str, RenderableType]] = []
        if changes is not None and against is not None:
            extra.append((f"Changes since {against.name}", against_table(changes)))
        write_html(data, html, extra=extra)
        console.print(f"page: {html}", soft_wrap=True)
    if figures is not None:
        files = write_figures(data, figures)
        names = ", ".join(map(str, folders))
        written = f"{len(files)} files in {figures}" if files else f"none to draw from {names}"
        console.print(f"figures: {written}", soft_wrap=True)
