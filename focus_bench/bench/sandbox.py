"""Runs programs that a model wrote, each in a process of its own behind limits and walls.

Knows no benchmark: a program goes in, a verdict comes out. What holds it is in sandbox_child.py.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from focus_bench.core.errors import check_range

_CHILD = Path(__file__).with_name("sandbox_child.py")
# The child's own timer ends it; this is for one that has turned the timer off, and leaves the
# interpreter time to start on a busy machine.
_START_S = 10.0
_MAX_MESSAGE_BYTES = 1 << 16


class Verdict(StrEnum):
    """How a program ended. Only PASSED is a success."""

    PASSED = "passed"
    FAILED = "failed"  # an exception, a failed assertion included
    TIME = "time"
    MEMORY = "memory"
    FILE_SIZE = "file size"
    FILE_OUTSIDE = "file outside"  # tried to change a file outside its folder
    NETWORK = "network"
    PROCESS = "process"  # tried to start or signal a process
    NATIVE = "native code"  # tried to call into C libraries
    EXITED = "exited"  # left before its end
    CRASHED = "crashed"  # ended by a signal


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What one program may take: seconds, memory and size of one file in MiB."""

    seconds: float = 3.0
    memory_mb: int = 1024
    file_mb: int = 16

    def __post_init__(self) -> None:
        check_range("--code-timeout", self.seconds, low=0.0, high=3600.0, low_open=True)
        check_range("sandbox memory in MiB", self.memory_mb, low=64)
        check_range("sandbox file size in MiB", self.file_mb, low=1)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The verdict on one program and a line about it (the exception, what it tried)."""

    verdict: Verdict
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the program ran to its end."""
        return self.verdict is Verdict.PASSED


DEFAULT_LIMITS = SandboxLimits()


def run_programs(
    programs: Sequence[str], *, limits: SandboxLimits = DEFAULT_LIMITS, workers: int | None = None
) -> list[Execution]:
    """Run every program, in their order, `workers` at a time (None: one for each core)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ThreadPoolExecutor(max_workers=workers or cores or 1) as pool:
        return list(pool.map(lambda program: run_program(program, limits=limits), programs))


def run_program(program: str, *, limits: SandboxLimits = DEFAULT_LIMITS) -> Execution:
    """Run one program in a fresh folder, which is removed afterwards."""
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="focus-bench-", ignore_cleanup_errors=True) as folder:
        read_end, write_end = os.pipe()
        order = {
            "program": program,
            "token": token,
            "descriptor": write_end,
            "seconds": limits.seconds,
            "memory_mb": limits.memory_mb,
            "file_mb": limits.file_mb,
        }
        try:
            child = subprocess.Popen(
                [sys.executable, "-I", "-B", str(_CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=_environment(folder),
                pass_fds=(write_end,),
                start_new_session=True,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        with os.fdopen(read_end, "rb") as messages:
            timed_out = _wait(child, json.dumps(order).encode(), limits.seconds)
            message = messages.read(_MAX_MESSAGE_BYTES)
    return _judge(message, token, child.returncode, timed_out)


def _environment(folder: str) -> dict[str, str]:
    """Nothing of the caller's: no keys or proxies to find, and one thread for numeric libraries."""
    return {"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LC_ALL": "C.UTF-8"} | {
        name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    }


def _wait(child: "subprocess.Popen[bytes]", order: bytes, seconds: float) -> bool:
    """Hand over the order and wait; True where the time ran out and the process was killed."""
    try:
        child.communicate(order, timeout=seconds + _START_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return True
    return False


def _judge(message: bytes, token: str, returncode: int, timed_out: bool) -> Execution:
    try:
        said, verdict, detail = json.loads(message)
        if said == token:
            return Execution(verdict=Verdict(verdict), detail=str(detail))
    except ValueError:
        pass  # nothing, or something that the program itself wrote
    if timed_out or returncode in (-signal.SIGALRM, -signal.SIGXCPU, -signal.SIGKILL):
        return Execution(verdict=Verdict.TIME)
    if returncode < 0:
        return Execution(verdict=Verdict.CRASHED, detail=signal.Signals(-returncode).name)
    return Execution(verdict=Verdict.EXITED, detail=f"exit code {returncode}")
