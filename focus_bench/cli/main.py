"""The command line's entry: runs a command and turns errors into lines and exit codes.

0: fine; 1: some points or requests failed, or the output could not be written; 2: usage error, in
one line; 3: report --against found a regression; 130: interrupted. Imports little by itself, so
that Ctrl-C while the commands are being loaded is told like any other.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Sequence

from focus_bench.cli.interrupts import EXIT_CODE, Interrupted, say_interrupted
from focus_bench.core.errors import UsageError

USAGE_ERROR = 2
OUTPUT_LOST = 1
# What writing meets on a device that is full or broken; such an error carries no file's name.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Exceptions that nobody foresaw keep their traceback.

    `arguments` are those behind the program's name; None takes the process's.
    """
    # Under LC_ALL=C Python would write ASCII and stop at the first other character of a prompt.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_text(given)
        code = _run(given)
        sys.stdout.flush()  # what is left in the buffer can still meet a full device
        return code
    except UsageError as error:
        return _error(str(error))
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:  # the reader (head, less) has gone; nobody is left to tell
        _drop_output()
        return OUTPUT_LOST
    except OSError as error:
        if error.filename is None and error.errno not in _LOST:
            raise
        _drop_output()
        if error.filename is None:
            return _error(f"standard output or a file: {error.strerror}", code=OUTPUT_LOST)
        return _error(f"{_shortened(str(error.filename))}: {error.strerror}")


def _run(arguments: list[str]) -> int:
    """The exit code of a command; Ctrl-C where no sweep was running is a KeyboardInterrupt."""
    import typer

    from focus_bench.cli.app import app

    try:
        code = app(args=arguments, prog_name="focus-bench", standalone_mode=False)
    except typer.TyperException as error:  # a flag that does not exist, a word for a number
        return _error(error.format_message())
    except Interrupted as error:
        return _interrupted(str(error))
    except typer.Abort:
        return _interrupted()
    if code == EXIT_CODE:  # Typer makes Ctrl-C a code
        return _interrupted()
    return code if isinstance(code, int) else 0


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no UTF-8: results, which hold what was asked for, cannot hold them."""
    flag = "argument"
    for argument in arguments:
        name, equals, value = argument.partition("=")
        is_flag = argument.startswith("--")
        try:
            os.fsencode(argument).decode("utf-8")  # its bytes, also in a locale without UTF-8
        except UnicodeError:
            flag, text = (name, value) if is_flag and equals else (flag, argument)
            raise UsageError(flag.encode(errors="replace").decode(), text, "UTF-8 text") from None
        flag = argument if is_flag and not equals else "argument"


def _interrupted(what_is_kept: str = "") -> int:
    say_interrupted(what_is_kept)
    return EXIT_CODE


def _error(message: str, *, code: int = USAGE_ERROR) -> int:
    with contextlib.suppress(OSError):  # stderr may be on the full device, too
        print(f"focus-bench: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


def _drop_output() -> None:
    """Let what stdout still holds go nowhere, so that Python's end does not meet the error again.

    An output that takes it all is left as it is.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shortened(name: str, most: int = 200) -> str:
    return name if len(name) <= most else f"{name[:most]}..."
