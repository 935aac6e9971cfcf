"""Consoles: results to standard output, progress and messages to standard error.

Rich itself leaves out control codes where the output is no terminal and colours where NO_COLOR is
set; what is added here is text that no markup or locale can spoil.
"""

import io
import sys
from typing import TextIO

from rich.console import Console


def make_console(file: TextIO | None = None, *, quiet: bool = False) -> Console:
    """A console on `file` (default: standard output); `quiet` prints nothing.

    No markup, no highlighting and no emoji codes: data is shown as it is. Characters that the
    file's encoding lacks become "?" instead of an error.
    """
    target = sys.stdout if file is None else file
    if isinstance(target, io.TextIOWrapper) and not _is_unicode(target.encoding):
        target.reconfigure(errors="replace")
    return Console(
        file=target, quiet=quiet, markup=False, highlight=False, emoji=False, soft_wrap=False
    )


def is_live(console: Console) -> bool:
    """Whether lines may be redrawn: a real terminal that can, whatever FORCE_COLOR says."""
    file = console.file
    is_terminal = hasattr(file, "isatty") and file.isatty()
    return is_terminal and not console.is_dumb_terminal and not console.quiet


def _is_unicode(encoding: str) -> bool:
    return encoding.lower().replace("-", "").startswith("utf")
