"""focus-bench paper on a tiny random model: its files, what is shared, what is kept."""

import csv
from pathlib import Path

import pytest

from focus_bench.cli.main import main
from focus_bench.core.decodability import DecodabilityRecords

COMMON = [
    "--num-problems",
    "2",
    "--max-new-tokens",
    "4",
    "--device",
    "cpu",
    "--model",
    "dummy-tiny",
]


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


def test_parts_are_written_and_a_second_call_reruns_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "paper"
    arguments = ["--output-dir", str(folder), "--no-plots", *COMMON]
    assert main(["paper", "fig3", "table6", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "2 parts from 7 runs of 2 problems on cpu, 0 finished before" in err
    assert "dummy weights" in out
    assert "published" in out
    rows = rows_of(folder / "table6.csv")
    assert [row["method"] for row in rows] == ["Baseline", "DC", "DC+", "FOCUS", "FOCUS", "ideal"]
    assert {row["num_problems"] for row in rows} == {"2"}
    assert {row["source"] for row in rows} == {"measured"}
    layers = rows_of(folder / "fig3.csv")
    (file,) = folder.glob("observed-*.npz")
    records = DecodabilityRecords.load(file)
    assert len(layers) == records.num_layers
    assert records.alphas == (1.2, 1.5, 1.8, 2.1)
    assert len(rows_of(folder / "results" / "quality.csv")) == 6
    stamp = file.stat().st_mtime_ns
    assert main(["paper", "fig14", "table6", "--resume", *arguments]) == 0
    assert "6 finished before" in capsys.readouterr().err
    assert file.stat().st_mtime_ns == stamp
    assert (folder / "fig14.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table9"], "part: 'table9'"),
        (["table3", "--task", "gsm8k"], "--task: 'gsm8k'"),
        (["table3", "--num-problems", "0"], "--num-problems: 0"),
        (["table3", "--resume"], "--resume: 'no --output-dir'"),
    ],
)
def test_usage_errors_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paper", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1


def test_dry_run_lists_every_point_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "all-quality", "--dry-run"]) == 0
    assert "44 points" in capsys.readouterr().out
