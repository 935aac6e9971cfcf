"""simulate --what-if: its points, and what is shown and written of them beside every result."""

import dataclasses
from typing import TYPE_CHECKING

from focus_bench.core.errors import UsageError

if TYPE_CHECKING:
    from focus_bench.cli.sweep_options import SimulateFlags
    from focus_bench.core.config import PointConfig
    from focus_bench.report.folder import ResultFolder

POLICIES = ("baseline", "focus", "ideal")
BATCH_SIZES = tuple(1 << power for power in range(9))
FILLS = 8  # times that the requests fill a batch, so that its ragged end weighs the same in all
TABLE_FILE, FIGURES_FOLDER = "what-if.csv", "what-if"


def with_default_sweep(flags: "SimulateFlags") -> "SimulateFlags":
    """The flags with the policies and batch sizes of a sweep where none are given."""
    from focus_bench.cli.points import comma_list

    policies = flags.policy or ",".join(POLICIES)
    if POLICIES[0] not in comma_list("--policy", policies, str, "names"):
        raise UsageError("--policy", policies, f"{POLICIES[0]} among them with --what-if")
    batches = flags.batch_size or ",".join(map(str, BATCH_SIZES))
    return dataclasses.replace(flags, policy=policies, batch_size=batches)


def with_full_batches(points: "tuple[PointConfig, ...]") -> "tuple[PointConfig, ...]":
    """The points with as many requests as fill their batch FILLS times."""
    return tuple(
        dataclasses.replace(
            point,
            workload=dataclasses.replace(
                point.workload, num_prompts=FILLS * point.scheduler.batch_size
            ),
        )
        for point in points
    )


def show_what_if(folder: "ResultFolder", *, quiet: bool) -> None:
    """What the predictions rest on, hardware side by side, the marks of every sweep, also as CSV,
    and the roofline as PNG and SVG.
    """
    from focus_bench.report.atomic import write_atomic
    from focus_bench.report.console import make_console
    from focus_bench.report.figures.catalogue import rests_on
    from focus_bench.report.figures.groups import plotted
    from focus_bench.report.figures.panels import Figure
    from focus_bench.report.figures.records import read_records
    from focus_bench.report.figures.roofline import places, roofline
    from focus_bench.report.figures.svg import write_figure
    from focus_bench.report.what_if import (
        basis,
        batch_sweeps,
        hardware_table,
        what_if_csv,
        what_if_table,
    )

    console = make_console(quiet=quiet)
    points = plotted(folder.results)
    steps = read_records([folder.path]).steps
    sweeps = batch_sweeps(points, places(points, steps))
    console.print(basis(folder.results))
    beside = hardware_table(folder.results)
    if beside is not None:
        console.print(beside)
    for sweep in sweeps:
        console.print(what_if_table(sweep))
    write_atomic(folder.path / TABLE_FILE, what_if_csv(sweeps))
    marks = {key: words for sweep in sweeps for key, words in sweep.marks.items()}
    figure = roofline(points, steps, marks=marks)
    if isinstance(figure, Figure):
        figures = folder.path / FIGURES_FOLDER
        figures.mkdir(exist_ok=True)
        named = dataclasses.replace(figure, footer=rests_on(folder.results))
        files = write_figure(named, figures)
        console.print(f"roofline: {len(files)} files in {figures}", soft_wrap=True)
