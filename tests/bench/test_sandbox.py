"""Untrusted programs: each kind of misbehaviour ends, with its own verdict, and harms nothing."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from focus_bench.bench import sandbox_child
from focus_bench.bench.sandbox import (
    Execution,
    SandboxLimits,
    Verdict,
    run_program,
    run_programs,
)
from focus_bench.core.errors import UsageError

LIMITS = SandboxLimits(seconds=1.0, memory_mb=256, file_mb=1)


def verdict(program: str) -> Verdict:
    return run_program(program, limits=LIMITS).verdict


def test_a_program_that_ends_passes() -> None:
    program = "import math, re, heapq, itertools\nassert math.gcd(4, 6) == 2"
    assert run_program(program, limits=LIMITS) == Execution(verdict=Verdict.PASSED)


def test_exceptions_fail_with_their_text() -> None:
    assert run_program("assert 1 == 2, 'no'") == Execution(
        verdict=Verdict.FAILED, detail="AssertionError: no"
    )
    assert run_program("def f(:").detail.startswith("SyntaxError")
    assert run_program("def f(): f()\nf()").detail.startswith("RecursionError")
    assert run_program("input()").detail.startswith("EOFError")


def test_an_endless_loop_runs_out_of_time() -> None:
    start = time.monotonic()
    assert verdict("while True:\n    try:\n        pass\n    except BaseException: pass") == "time"
    assert time.monotonic() - start < 5


def test_a_memory_hog_hits_its_limit() -> None:
    assert verdict("x = []\nwhile True: x.append(bytearray(10**7))") is Verdict.MEMORY
    assert verdict("'a' * 10**12") is Verdict.MEMORY


def test_files_outside_the_folder_cannot_be_made_or_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("x")
    new = tmp_path / "new"
    for program in (
        f"open({str(new)!r}, 'w')",
        f"import os; os.open({str(new)!r}, os.O_CREAT | os.O_WRONLY)",
        f"import os; os.remove({str(kept)!r})",
        f"import os; os.rename({str(kept)!r}, 'mine')",
        f"import os; os.symlink({str(kept)!r}, 'link')",
        f"import shutil; shutil.rmtree({str(tmp_path)!r})",
        f"import pathlib; pathlib.Path({str(new)!r}).mkdir()",
        f"import sqlite3; sqlite3.connect({str(new)!r})",
        "import os; open('../above', 'w')",
        f"try:\n    open({str(new)!r}, 'w')\nexcept BaseException:\n    pass",
    ):
        assert verdict(program) is Verdict.FILE_OUTSIDE, program
    assert kept.read_text() == "x"
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_files_inside_the_folder_are_free_up_to_their_size() -> None:
    inside = """
import os
open('a.txt', 'w').write('x'); os.mkdir('d'); os.rename('a.txt', 'd/b.txt')
assert open('d/b.txt').read() == 'x'
os.remove('d/b.txt'); os.rmdir('d'); open(os.devnull, 'w').write('x')
"""
    assert verdict(inside) is Verdict.PASSED
    assert verdict("open('big', 'wb').write(b'x' * (3 << 20))") is Verdict.FILE_SIZE


def test_the_folder_is_fresh_and_the_environment_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET_KEY", "1")
    program = "import os\nassert os.listdir() == []\nassert 'MY_SECRET_KEY' not in os.environ"
    assert verdict(program) is Verdict.PASSED


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.socket()",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
        "import socket\nwhile True:\n    try: socket.socket()\n    except BaseException: pass",
    ],
)
def test_the_network_is_refused(program: str) -> None:
    assert verdict(program) is Verdict.NETWORK


@pytest.mark.parametrize(
    "program",
    [
        "import os\nwhile True: os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.kill(1, 9)",
        "import multiprocessing; multiprocessing.Process(target=print).start()",
    ],
)
def test_no_process_is_started_or_signalled(program: str) -> None:
    assert verdict(program) is Verdict.PROCESS


def test_threads_start_but_their_number_ends() -> None:
    one = "import threading; t = threading.Thread(target=print); t.start(); t.join()"
    assert verdict(one) is Verdict.PASSED
    many = (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()"
    )
    assert verdict(many) in (Verdict.FAILED, Verdict.TIME, Verdict.MEMORY)


def test_c_libraries_are_out_of_reach() -> None:
    assert verdict("import ctypes; ctypes.CDLL(None).fork()") is Verdict.NATIVE
    assert verdict("import ctypes; ctypes.CDLL('libc.so.6')") is Verdict.NATIVE


def test_leaving_early_is_not_passing() -> None:
    assert verdict("import os; os._exit(0)") is Verdict.EXITED
    assert verdict("raise SystemExit(0)") is Verdict.EXITED
    assert verdict("import faulthandler; faulthandler._sigsegv()") is Verdict.CRASHED


def test_a_forged_verdict_is_not_believed() -> None:
    forged = """
import json, os
for descriptor in range(3, 64):
    try: os.write(descriptor, json.dumps(['guess', 'passed', '']).encode())
    except OSError: pass
os._exit(0)
"""
    assert verdict(forged) is Verdict.EXITED


def test_many_programs_keep_their_order() -> None:
    programs = [f"assert {number} % 3" for number in range(7)]
    passed = [execution.passed for execution in run_programs(programs, workers=2)]
    assert passed == [bool(number % 3) for number in range(7)]


def test_limits_are_checked() -> None:
    with pytest.raises(UsageError, match="--code-timeout"):
        SandboxLimits(seconds=0)


def walled(setup: str, program: str) -> str:
    """Output of a process with one wall of the kernel and no audit hook."""
    folder = Path(sandbox_child.__file__).parent
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import sandbox_child as s\n"
        f"print(s.{setup})\n{program}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    if done.stdout.startswith("False"):
        pytest.skip(f"this kernel does not offer {setup}")
    return done.stdout + done.stderr


def test_the_kernel_refuses_sockets_and_processes_without_the_hook() -> None:
    program = """
import ctypes, os, socket, subprocess, threading
for attempt in (socket.socket, os.fork, lambda: subprocess.run(['true'])):
    try: attempt(); print('reached')
    except PermissionError: print('refused')
t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()
print(ctypes.CDLL(None).fork())
"""
    said = walled("refuse_network_and_processes()", program).split()
    assert said == ["True", "refused", "refused", "refused", "thread", "-1"]


def test_the_kernel_refuses_writes_outside_without_the_hook(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.write_text("kept")
    program = f"""
import os
open({str(inside / "a")!r}, 'w').write('x'); os.remove({str(inside / "a")!r})
for attempt in (
    lambda: open({str(outside)!r}, 'w'),
    lambda: os.remove({str(outside)!r}),
    lambda: open({str(tmp_path / "new")!r}, 'w'),
):
    try: attempt(); print('reached')
    except PermissionError: print('refused')
"""
    said = walled(f"refuse_writes_outside({str(inside)!r})", program).split()
    assert said == ["True", "refused", "refused", "refused"]
    assert outside.read_text() == "kept"
