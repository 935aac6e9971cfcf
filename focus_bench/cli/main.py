"""The command line's entry: registers the commands and turns errors into lines and exit codes.

0: fine; 1: some points or requests failed; 2: usage error, in one line; 3: report --against found a
regression; 130: interrupted.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from focus_bench import __version__
from focus_bench.cli import (
    calibrate,
    compare,
    doctor,
    eval,
    generate,
    interrupts,
    paper,
    report,
    run,
    simulate,
    train,
)
from focus_bench.cli.interrupts import Interrupted, say_interrupted
from focus_bench.core.errors import UsageError

USAGE_ERROR = 2

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Exceptions that nobody foresaw keep their traceback.

    `arguments` are those behind the program's name; None takes the process's.
    """
    # Under LC_ALL=C Python would write ASCII and stop at the first other character of a prompt.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = app(
            args=None if arguments is None else list(arguments),
            prog_name="focus-bench",
            standalone_mode=False,
        )
    except UsageError as error:
        return _usage_error(str(error))
    except typer.TyperException as error:  # a flag that does not exist, a word for a number
        return _usage_error(error.format_message())
    except Interrupted as error:
        say_interrupted(str(error))
        return interrupts.EXIT_CODE
    except (typer.Abort, KeyboardInterrupt):
        code = interrupts.EXIT_CODE
    except BrokenPipeError:  # the reader (head, less) has gone; nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if code == interrupts.EXIT_CODE:  # Ctrl-C where no sweep was running; Typer makes it a code
        say_interrupted()
    return code if isinstance(code, int) else 0


def _usage_error(message: str) -> int:
    print(f"focus-bench: error: {' '.join(message.split())}", file=sys.stderr)
    return USAGE_ERROR
