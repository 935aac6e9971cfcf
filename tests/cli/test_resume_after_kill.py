"""kill -9 at any moment of a sweep: no finished point is lost, none is run again.

FOCUS_BENCH_KILLS sets how many kills at random moments there are (50 on request, fewer otherwise).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("killed_sweeps.py")


def kill(*arguments: object) -> dict[str, object]:
    """Run the killing program; its figures. Its own checks are what is tested."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures: dict[str, object] = json.loads(done.stdout)
    return figures


def num_kills(usual: int) -> int:
    return int(os.environ.get("FOCUS_BENCH_KILLS", usual))


@pytest.mark.slow
def test_simulated_sweeps_killed_at_random_moments(tmp_path: Path) -> None:
    figures = kill("random", tmp_path, num_kills(8), 20260)
    print(figures)
    assert figures["kills"] == num_kills(8)
    assert figures["points_of_a_sweep"] == 32


@pytest.mark.slow
def test_a_measured_sweep_killed_at_random_moments(tmp_path: Path) -> None:
    """Points are measured, then predicted: what lacks only its prediction is not measured again."""
    figures = kill("measured", tmp_path, num_kills(2), 20261)
    print(figures)
    assert figures["kills"] == num_kills(2)
    assert figures["points_of_a_sweep"] == 8


@pytest.mark.slow
def test_sweeps_killed_between_writing_a_file_and_renaming_it(tmp_path: Path) -> None:
    stride = 1 if "FOCUS_BENCH_KILLS" in os.environ else 10
    figures = kill("writes", tmp_path, 1, stride)
    print(figures)
    # run.json and tables at the start, then for each of three points its files and the tables.
    assert figures["last_moment"] > 30
