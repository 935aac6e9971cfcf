"""focus-bench compare: predicts measured points of a result folder anew and shows the errors."""

from pathlib import Path
from typing import Annotated

import typer

from focus_bench.cli.flags import PATH, existing_or_new


def command(
    folder: Annotated[
        Path, typer.Argument(help="Result folder of run.", parser=existing_or_new, metavar="FOLDER")
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Hardware to predict for: a data sheet's name, cpu or a profile's file.",
            show_default="the device that measured",
        ),
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of the points that count, written before anything was calibrated.",
            show_default="all",
            **PATH,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Predict every point with this seed, as if what its runs drew were not known; "
            "intervals then allow for other seeds, too.",
            show_default="each run's own",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Also write every figure to this CSV file.", show_default="none", **PATH),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Also draw predicted against measured throughput (.png, .svg or .pdf).",
            show_default="none",
            **PATH,
        ),
    ] = None,
) -> int:
    """Predict the measured points of FOLDER from their configurations, and show the errors."""
    from focus_bench.api.comparison import compare_folder
    from focus_bench.cli.paths import check_writable
    from focus_bench.report.atomic import write_atomic
    from focus_bench.report.comparison_csv import comparison_csv
    from focus_bench.report.console import make_console
    from focus_bench.report.figures.predicted import check_plot_name, write_predicted_plot
    from focus_bench.report.judgement import causes_table, errors_by_policy_table, seeds_table
    from focus_bench.report.tables import comparison_table, failures_table

    sources = [folder, points, None if gpu is None else Path(gpu)]
    check_writable("--csv", csv, inputs=sources)
    check_writable("--plot", plot, inputs=sources if csv is None else [*sources, csv])
    if plot is not None:
        check_plot_name(plot)
    compared = compare_folder(folder, hardware=gpu, points=points, seed=seed)
    pairs = compared.pairs
    console = make_console()
    results = [result for pair in pairs for result in pair.results]
    console.print(comparison_table(results, any_seed=seed is not None))
    for table in (
        seeds_table(pairs),
        errors_by_policy_table(pairs),
        causes_table(compared.causes),
        failures_table(list({result.key: result for result in results}.values())),
    ):
        if table is not None:
            console.print(table)
    for pair in pairs:
        if pair.measured is not None and pair.predicted is None:
            reason = (
                "no decode trace was kept"
                if seed is None
                else "a decode trace is of its own seed only"
            )
            console.print(
                f"not predicted: point {pair.point.hash()}, where the model decided and {reason}",
                soft_wrap=True,
            )
    if csv is not None:
        write_atomic(csv, comparison_csv(pairs))
    if plot is not None:
        console.print(f"{write_predicted_plot(pairs, plot)} points: {plot}", soft_wrap=True)
    return 0
