"""How many threads a process may ask a CPU for; sets none."""

import os
import re

from focus_bench.core.errors import UsageError, check_range

VARIABLE = "OMP_NUM_THREADS"
# OpenMP's own form: one number, or one for each level of nesting.
_NUMBERS = re.compile(r"\s*0*[1-9]\d*\s*(,\s*0*[1-9]\d*\s*)*")


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """Threads of a run that asks for no number: OMP_NUM_THREADS, else one fewer than the cores."""
    given = os.environ.get(VARIABLE, "")
    if _NUMBERS.fullmatch(given):
        return int(given.split(",")[0])
    return max(1, usable_cores() - 1)


def check_threads(threads: int | None) -> None:
    """Raise UsageError for more threads than there are cores; for None (OMP_NUM_THREADS decides
    where it is set), where that variable holds no numbers above 0, which OpenMP would pass over.
    """
    if threads is not None:
        check_range("--threads", threads, low=1, high=usable_cores())
        return
    given = os.environ.get(VARIABLE)
    if given and not _NUMBERS.fullmatch(given):
        raise UsageError(VARIABLE, given, "a whole number above 0, or the variable not set")
