"""Paths at the command level: what cannot be written is said before any work, and what is shown."""

import json
from pathlib import Path

import pytest

from focus_bench.cli.main import main

SIMULATE = ["simulate", "--gpu", "h200", "--num-prompts", "3", "--max-new-tokens", "8"]


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["compare", "{folder}", "--csv", "{file}/x.csv"], "--csv"),
        (["compare", "{folder}", "--csv", "{folder}"], "--csv"),
        (["calibrate", "--output", "{file}/x.json"], "--output"),
        (["run", "--decode-trace", "{file}/x"], "--decode-trace"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], flag: str
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    filled = [a.format(file=file, folder=tmp_path) for a in arguments]
    assert main(filled) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert f"{flag}: '{tmp_path}" in err
    assert "allowed: a" in err


def test_threads_and_frames_are_taken_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "a", "--frame-s", "-1"]) == 2
    assert "--frame-s: -1" in capsys.readouterr().err
    assert main(["generate", "--prompt", "a", "--threads", "0"]) == 2
    assert "--threads: 0" in capsys.readouterr().err


def test_report_shows_a_folder_of_eval_and_compare_refuses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "eval"
    size = ["--num-problems", "1", "--max-new-tokens", "32", "--device", "cpu"]
    assert main(["eval", "--policy", "focus", *size, "--output-dir", str(folder)]) == 0
    capsys.readouterr()
    assert main(["report", str(folder)]) == 0
    assert "interval" in capsys.readouterr().out
    trace = tmp_path / "trace.json"
    assert main(["report", str(folder), "--perfetto", str(trace)]) == 2
    assert "--perfetto" in capsys.readouterr().err
    assert not trace.exists()
    assert main(["compare", str(folder)]) == 2
    assert "of eval" in capsys.readouterr().err
    for command in (SIMULATE, ["run", "--dataset", "synthetic", "--no-predict"]):
        for flags in ([], ["--dry-run"]):
            assert main([*command, *flags, "--resume", "--output-dir", str(folder)]) == 2
            err = capsys.readouterr().err
            assert f"'{folder}, of eval' is not usable; allowed: " in err.splitlines()[-1]


def test_lengths_in_bytes_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "pairs.jsonl"
    turns = [{"from": "human", "value": "how many"}, {"from": "gpt", "value": "three"}]
    data.write_text(f"{json.dumps({'conversations': turns})}\n" * 3)
    arguments = [*SIMULATE, "--policy", "baseline"]
    of_text = [*arguments, "--dataset", "sharegpt", "--dataset-path", str(data)]
    folder = tmp_path / "large"
    assert main([*of_text, "--model", "sdar-8b", "--output-dir", str(folder)]) == 0
    assert "byte tokenizer (lengths are bytes: sdar-8b" in " ".join(capsys.readouterr().out.split())
    assert "byte tokenizer" in (folder / "summary.csv").read_text()
    assert main([*of_text, "--model", "dummy-tiny", "--output-dir", str(tmp_path / "tiny")]) == 0
    # Synthetic rows have the lengths that they are drawn with, in tokens.
    drawn = [*arguments, "--dataset", "synthetic", "--model", "sdar-8b"]
    assert main([*drawn, "--output-dir", str(tmp_path / "drawn")]) == 0
    assert "byte tokenizer" not in capsys.readouterr().out
