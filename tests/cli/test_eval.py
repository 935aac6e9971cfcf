"""focus-bench eval at the command level, on the CPU with random weights."""

import csv
import json
from pathlib import Path

import pytest

from focus_bench.cli import eval as eval_command
from focus_bench.cli.main import main
from focus_bench.core.errors import UsageError

BASE = ["eval", "--num-problems", "2", "--max-new-tokens", "8", "--batch-size", "2"]
BASE += ["--model", "dummy-tiny"]


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "quality.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_policy_that_runs_is_scored_ideal_included(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = "baseline,delayed-cache,delayed-cache-neighbor,focus,focus-fixed,adaptive,ideal"
    folder = tmp_path / "out"
    arguments = [*BASE, "--policy", policies, "--alpha", "1.2,1.5", "--retain", "2,4"]
    assert main([*arguments, "--output-dir", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "dummy weights" in out
    assert "100.0 %" not in out
    seen = [(row["policy"], row["alpha"], row["retain"]) for row in rows(folder)]
    assert seen == [
        ("baseline", "", ""),
        ("delayed-cache", "", ""),
        ("delayed-cache-neighbor", "", ""),
        ("focus", "1.2", ""),
        ("focus-fixed", "", "2"),
        ("focus-fixed", "", "4"),
        ("adaptive", "1.2", ""),
        ("ideal", "", ""),
        ("focus", "1.5", ""),
        ("adaptive", "1.5", ""),
    ]
    assert all(row["score"] == "0.0" and row["num_problems"] == "2" for row in rows(folder))
    assert len(list((folder / "points").glob("*.answers.jsonl"))) == 10


def test_resume_runs_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    where = ["--output-dir", str(folder)]
    assert main([*BASE, "--policy", "baseline", *where]) == 0
    before = {file: file.read_bytes() for file in (folder / "points").iterdir()}
    both = [*BASE, "--policy", "baseline,focus", *where]
    assert main(both) == 2  # results are there
    assert main([*both, "--resume", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.count("finished") == 1
    assert out.count("to do") == 1
    assert main([*both, "--resume"]) == 0
    assert "finished before, skipped" in capsys.readouterr().err
    assert [row["policy"] for row in rows(folder)] == ["baseline", "focus"]
    assert all(file.read_bytes() == data for file, data in before.items())
    manifest = json.loads((folder / "run.json").read_text())
    assert len(manifest["points"]) == 2
    assert manifest["data"][0]["origin"] == "bundled tasks"
    capsys.readouterr()
    assert main([*BASE, "--policy", "focus", *where, "--resume"]) == 0
    line = f"1 of 2 points in {folder} is not of this command: kept"
    assert capsys.readouterr().err.splitlines().count(line) == 1


def test_a_point_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    few_pages = ["--num-pages", "1", "--policy", "baseline", "--output-dir", str(folder)]
    assert main([*BASE, *few_pages]) == 1  # no problem fits one page
    assert "2 requests failed and count as wrong" in capsys.readouterr().err
    assert rows(folder)[0]["failed"] == "2"
    assert rows(folder)[0]["score"] == "0.0"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--tasks", "nonsense"], "nonsense"),
        (["--tasks", "focus-tasks-grammar"], "focus-tasks-grammar"),  # nothing to check there
        (["--num-problems", "0"], "--num-problems"),
        (["--dataset-path", "x.jsonl"], "no path with bundled tasks"),
        (["--select", "best"], "--select"),
        (["--retain", "two"], "--retain"),
        (["--num-runs", "0"], "--num-runs"),
        (["--code-timeout", "0"], "--code-timeout"),
        (["--policy", "focus", "--model", "fast-dllm-v2-7b"], "baseline, fast-dllm-v2 with"),
        (["--apply-chat-template", "--model", "dummy-tiny"], "--apply-chat-template"),  # bytes
        (["--resume"], "--output-dir"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *arguments]) == 2
    err = capsys.readouterr().err
    assert named in err
    assert err.count("\n") == 1


def test_paths_belong_to_benchmarks() -> None:
    assert eval_command._paths(["a.jsonl"], ("gsm8k",)) == {"gsm8k": "a.jsonl"}
    both = ("gsm8k", "mbpp")
    assert eval_command._paths(["mbpp=b", "gsm8k=a=1"], both) == {"gsm8k": "a=1", "mbpp": "b"}
    with pytest.raises(UsageError, match="gsm8k=PATH or mbpp=PATH"):
        eval_command._paths(["a.jsonl"], both)
