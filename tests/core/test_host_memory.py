"""The most memory that a process held, whoever started it."""

import subprocess
import sys
from pathlib import Path

import pytest

from focus_bench.core.host_memory import peak_memory_bytes

SCRIPT = """
from focus_bench.core.host_memory import peak_memory_bytes
before = peak_memory_bytes()
block = b"x" * 150_000_000
print(before, peak_memory_bytes())
"""


def test_memory_given_back_still_counts() -> None:
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, after = (int(value) for value in out.stdout.split())
    assert 4e6 < before < 150e6
    assert 150e6 <= after - before + 5e6 < 200e6


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_large_parent_is_not_counted() -> None:
    held = b"x" * 600_000_000
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert peak_memory_bytes() > len(held)
    assert int(out.stdout.split()[0]) < 150e6
