"""Threads of a CPU: from 1 to the cores, and an environment variable that is a number."""

import pytest

from focus_bench.core import cpu_threads
from focus_bench.core.cpu_threads import check_threads
from focus_bench.core.errors import UsageError


def test_no_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_threads, "usable_cores", lambda: 3)
    check_threads(1)
    check_threads(3)
    for threads in (0, 4):
        with pytest.raises(UsageError, match=f"--threads: {threads} .*: >= 1 and <= 3$"):
            check_threads(threads)


@pytest.mark.parametrize("value", ["foo", "0", "-1", "2.5", "0,2", "2,", " "])
def test_a_variable_that_is_no_number_is_refused_by_name(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with pytest.raises(UsageError, match=r"^OMP_NUM_THREADS: .*a whole number above 0"):
        check_threads(None)
    check_threads(1)  # the flag says otherwise


@pytest.mark.parametrize("value", [None, "", "1", " 2 ", "4,2"])
def test_numbers_and_nothing_are_taken(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if value is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    check_threads(None)
