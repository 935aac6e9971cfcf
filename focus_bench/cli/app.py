"""The commands of the command line, as one Typer application."""

from typing import Annotated

import typer

from focus_bench import __version__
from focus_bench.cli import (
    calibrate,
    compare,
    doctor,
    eval,
    generate,
    paper,
    report,
    run,
    simulate,
    train,
)

app = typer.Typer(
    name="focus-bench",
    help="Measure and predict the decoding of block-diffusion language models, side by side.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.command)
app.command("simulate")(simulate.command)
app.command("calibrate")(calibrate.command)
app.command("compare")(compare.command)
app.command("report")(report.command)
app.command("eval")(eval.command)
app.command("paper")(paper.command)
app.command("generate")(generate.command)
app.command("train")(train.command)
app.command("doctor")(doctor.command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"focus-bench {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    pass
