"""focus-bench compare: predicts measured points of a result folder anew and shows the errors."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(help="Result folder of run.")],
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Hardware to predict for, where the measuring device's name does not say it.",
            show_default="that of the measurement",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Also write every figure to this CSV file.", show_default="none"),
    ] = None,
) -> int:
    """Predict the measured points of FOLDER from their configurations, and show the errors."""
    from focus_bench import api
    from focus_bench.report.atomic import write_atomic
    from focus_bench.report.compare import comparison_csv
    from focus_bench.report.console import make_console
    from focus_bench.report.tables import comparison_table

    pairs = api.compare(folder, hardware=gpu)
    make_console().print(comparison_table([result for pair in pairs for result in pair.results]))
    if csv is not None:
        write_atomic(csv, comparison_csv(pairs))
    return 0
