"""Ctrl-C and SIGTERM: a sweep ends within a second with everything written, and goes on later."""

import csv
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from focus_bench.cli.main import main
from focus_bench.report.folder import load_folder

PROGRAM = Path(__file__).with_name("interrupted_sweep.py")
COMMAND = ["simulate", "--gpu", "h200", "--dataset", "synthetic", "--model", "dummy-tiny"]
COMMAND += ["--num-prompts", "4", "--max-new-tokens", "16", "--policy", "focus"]
COMMAND += ["--batch-size", "1,2,3"]


def interrupt(where: str, folder: Path, *signals: signal.Signals) -> tuple[int, str, float]:
    """Exit code, standard error behind the stop, and seconds from the first signal to the end."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), where, *COMMAND, "--output-dir", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while (line := process.stderr.readline()) != f"at {where}\n":
        assert line, "ended before it got there"
    sent = time.monotonic()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.02)
    _, err = process.communicate(timeout=60)
    return process.returncode, err, time.monotonic() - sent


def batches(folder: Path) -> list[int]:
    return [result.point.scheduler.batch_size for result in load_folder(folder).results]


def command_to_go_on(err: str) -> list[str]:
    """The flags that the last line tells to add."""
    (flags,) = re.findall(r"to go on, repeat the command with (.*)\n", err)
    return shlex.split(flags)


@pytest.mark.parametrize(
    ("where", "number"), [("running", signal.SIGTERM), ("library", signal.SIGINT)]
)
def test_a_signal_ends_a_sweep_within_a_second(
    tmp_path: Path, where: str, number: signal.Signals
) -> None:
    folder = tmp_path / "a folder"
    code, err, seconds = interrupt(where, folder, number)
    assert code == 130
    assert seconds < 1.0
    assert err.count("\n") == 1, err
    assert err.startswith("focus-bench: interrupted: 1 of 3 points are finished and written")
    assert batches(folder) == [1]
    with (folder / "summary.csv").open(newline="") as file:
        assert [row["batch_size"] for row in csv.DictReader(file)] == ["1"]
    assert command_to_go_on(err) == ["--resume", "--output-dir", str(folder)]
    assert main([*COMMAND, *command_to_go_on(err), "--quiet"]) == 0
    assert batches(folder) == [1, 2, 3]


@pytest.mark.parametrize("where", ["running", "library"])
def test_a_second_signal_changes_nothing(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "out"
    code, err, seconds = interrupt(where, folder, *[signal.SIGINT] * 3, signal.SIGTERM)
    assert code == 130
    assert seconds < 1.0
    assert err.count("\n") == 1, err
    assert batches(folder) == [1]


def test_a_point_that_is_being_written_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    code, err, seconds = interrupt("writing", folder, signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert 0.9 < seconds < 2.0  # a second of it is the writing
    assert "2 of 3 points are finished" in err
    assert batches(folder) == [1, 2]
    assert not list(folder.rglob("*.tmp"))


def test_ctrl_c_before_the_first_point_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("focus_bench.cli.points.points_from_flags", interrupted)
    assert main([*COMMAND, "--output-dir", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err.endswith("focus-bench: interrupted\n")
    assert not (tmp_path / "out").exists()
