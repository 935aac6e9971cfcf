"""report --against by command: exit codes, what stands on stderr, and the CSV file."""

import csv
import shutil
from pathlib import Path

import pytest

from focus_bench.cli.main import main

REQUESTS = ["--dataset", "synthetic", "--num-prompts", "3", "--max-new-tokens", "8", "--quiet"]
SIMULATE = ["simulate", *REQUESTS, "--model", "sdar-8b", "--batch-size", "2"]


def simulated(folder: Path, gpu: str, policy: str = "baseline,focus") -> str:
    assert main([*SIMULATE, "--gpu", gpu, "--policy", policy, "--output-dir", str(folder)]) == 0
    return str(folder)


def test_predictions_for_slower_hardware_are_a_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = simulated(tmp_path / "a100", "a100-sxm4-80g"), simulated(tmp_path / "b200", "b200")
    file = tmp_path / "changes.csv"
    assert main(["report", slow, "--against", fast, "--csv", str(file)]) == 3
    out, err = capsys.readouterr()
    assert "hardware differs: a100-sxm4-80g against b200 (at 2 of 2 points)" in out
    assert "one run each: no test" in out
    assert "focus-bench: regression: predicted baseline, batch 2, B 32" in err
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    throughput = [row for row in rows if row["figure"] == "output_throughput"]
    assert [(row["policy"], row["verdict"]) for row in throughput] == [
        ("baseline", "worse"),
        ("focus", "worse"),
    ]
    assert main(["report", slow, "--against", fast, "--tolerance", "100000"]) == 0
    assert main(["report", fast, "--against", slow]) == 0
    assert main(["report", slow, "--against", slow, "--tolerance", "0"]) == 0
    assert "regression:" not in capsys.readouterr().err


def test_points_of_one_folder_only_are_listed_and_nothing_in_common_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = simulated(tmp_path / "both", "h200")
    focus = simulated(tmp_path / "focus", "h200", "focus")
    baseline = simulated(tmp_path / "baseline", "h200", "baseline")
    assert main(["report", focus, "--against", both]) == 0
    assert "only in --against: predicted baseline" in capsys.readouterr().out
    assert main(["report", both, "--against", focus]) == 0
    assert "only here: predicted baseline" in capsys.readouterr().out
    assert main(["report", focus, "--against", baseline]) == 2
    assert f"--against: '{baseline}, 1 results of other points'" in capsys.readouterr().err
    for flag in (["--tolerance", "3"], ["--csv", str(tmp_path / "x.csv")]):
        assert main(["report", both, *flag]) == 2
        assert f"{flag[0]} together with --against" in capsys.readouterr().err


def test_repeated_measurements_are_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "out")
    run = ["run", *REQUESTS, "--model", "dummy-tiny", "--batch-size", "2", "--policy", "baseline"]
    run += ["--num-runs", "2", "--num-warmups", "0", "--device", "cpu", "--no-predict"]
    assert main([*run, "--output-dir", folder]) == 0
    again = str(tmp_path / "again")
    assert main([*run, "--output-dir", again]) == 0
    capsys.readouterr()
    assert main(["report", again, "--against", folder]) in (0, 3)
    assert "are identical" not in capsys.readouterr().out
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert main(["report", folder, "--against", folder]) == 0
    itself = capsys.readouterr().out
    assert main(["report", str(copy), "--against", folder, "--csv", str(tmp_path / "c.csv")]) == 0
    assert " ".join(itself.split()).count("in --against are identical") == 1
    out = capsys.readouterr().out
    assert " ".join(out.split()).count("in --against are identical") == 1
    with (tmp_path / "c.csv").open(newline="") as text:
        assert {row["verdict"] for row in csv.DictReader(text)} == {"same"}
    assert "adjusted by Holm for 4 tests" in out
    assert "no test" not in out
    assert " 2/2 " in out


def test_compare_names_other_hardware(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "out")
    run = ["run", *REQUESTS, "--model", "dummy-tiny", "--batch-size", "2", "--policy", "baseline"]
    run += ["--num-warmups", "0", "--device", "cpu", "--no-predict"]
    assert main([*run, "--output-dir", folder]) == 0
    assert main(["compare", folder, "--gpu", "h200"]) == 0
    line = "hardware differs: measured with device cpu, predicted for device NVIDIA H200"
    assert line in capsys.readouterr().out
