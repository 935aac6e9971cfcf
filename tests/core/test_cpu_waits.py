"""How long threads waited for a core: shares of a run from files such as Linux has."""

import time
from pathlib import Path

import pytest

from focus_bench.core import cpu_waits
from focus_bench.core.cpu_waits import CpuWaits

# What tests/conftest.py replaces for every test.
SHARE_SINCE = CpuWaits.longest_share_since


@pytest.fixture
def threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /proc/self/task, and a clock that stands at 10 s."""
    folder = tmp_path / "task"
    monkeypatch.setattr(cpu_waits, "_THREADS", folder)
    monkeypatch.setattr(time, "perf_counter", lambda: 10.0)
    return folder


def write(threads: Path, waited_ns: dict[str, int], *, ran_ns: int = 7) -> None:
    for name, ns in waited_ns.items():
        (threads / name).mkdir(parents=True, exist_ok=True)
        (threads / name / "schedstat").write_text(f"{ran_ns} {ns} 3\n")


def test_the_thread_that_waited_most_counts(threads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(threads, {"11": 4_000_000_000, "12": 0})
    before = CpuWaits.now()
    monkeypatch.setattr(time, "perf_counter", lambda: 12.0)
    write(threads, {"11": 4_100_000_000, "12": 500_000_000, "13": 300_000_000})
    assert SHARE_SINCE(before) == pytest.approx(0.25)  # 0.5 s of 2 s
    write(threads, {"13": 1_000_000_000})  # one that began meanwhile
    assert SHARE_SINCE(before) == pytest.approx(0.5)


def test_nobody_waited(threads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(threads, {"11": 4_000_000_000})
    before = CpuWaits.now()
    monkeypatch.setattr(time, "perf_counter", lambda: 12.0)
    assert SHARE_SINCE(before) == 0


@pytest.mark.parametrize("content", ["", "0 0 0\n", "none of it\n", "1 2\n"])
def test_a_system_that_does_not_say(threads: Path, content: str) -> None:
    if content:
        write(threads, {"11": 0})
        (threads / "11" / "schedstat").write_text(content)
    before = CpuWaits.now()
    assert before.waited_ns is None
    write(threads, {"11": 5})
    assert SHARE_SINCE(before) is None
