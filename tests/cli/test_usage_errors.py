"""Bad input ends with code 2 and one line that names the flag, the value and what is allowed."""

from pathlib import Path

import pytest

from focus_bench.cli.main import main

TINY = ["--num-prompts", "2", "--max-new-tokens", "8", "--dataset", "synthetic"]


def error_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a usage error leaves on stderr."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert err.startswith("focus-bench: error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-new-tokens", "0"], ["--max-new-tokens", "0", ">= 1"]),
        (["--max-new-tokens", "-1"], ["--max-new-tokens", "-1", ">= 1"]),
        (["--max-new-tokens", "abc"], ["--max-new-tokens", "'abc'", "a whole number"]),
        (["--num-prompts", "0"], ["--num-prompts", "0", ">= 1"]),
        (["--num-prompts", "9" * 20], ["--num-prompts: 9999", ">= 1 and <= 100000"]),
        (
            ["--dataset", "random", "--model", "sdar-8b", "--random-input-len", "9" * 20],
            ["--random-input-len: 9999", "<= 32767"],
        ),
        (
            ["--dataset", "random", "--model", "sdar-8b", "--random-input-len", "32768"],
            ["--random-input-len: 32768", "<= 32767"],
        ),
        (["--batch-size", "0"], ["--batch-size", "0", ">= 1"]),
        (["--batch-size", "8,x"], ["--batch-size", "'x'", "whole numbers"]),
        (["--batch-size", "8,,16"], ["--batch-size", "''", "separated by commas"]),
        (["--block-length", "65"], ["--block-length", "65", "<= 64"]),
        (["--alpha", "0.5"], ["--alpha", "0.5", ">= 1"]),
        (["--alpha", "nan"], ["--alpha", "nan", ">= 1"]),
        (["--threshold", "0"], ["--threshold", "0", "> 0"]),
        (["--policy", "baseline,focsu"], ["--policy", "'focsu'", "baseline, delayed-cache"]),
        (
            ["--policy", "focus", "--model", "fast-dllm-v2-7b"],
            ["--policy", "'focus'", "baseline, fast-dllm-v2 with fast-dllm-v2-7b", "shifted"],
        ),
        (
            ["--policy", "baseline,focus", "--steps-per-round", "4"],
            ["--steps-per-round", "4", "--policy focus"],
        ),
        (["--policy", "baseline", "--steps-per-round", "0"], ["--steps-per-round", "0", ">= 1"]),
        (["--model", "sdar-9b"], ["--model", "'sdar-9b'", "dummy-tiny, sdar-8b"]),
        (["--dataset", "sharedgpt"], ["--dataset", "'sharedgpt'", "sharegpt, wildchat"]),
        (["--dataset", "gsm8k"], ["--dataset", "'gsm8k'", "--dataset-path"]),
        (["--acceptance", "synthetic:0.5"], ["--acceptance", "0.5", ">= 1"]),
        (["--acceptance", "luck"], ["--acceptance", "'luck'", "confidence"]),
        (["--importance", "luck"], ["--importance", "'luck'", "model"]),
        (["--importance", "synthetic:noise=inf"], ["--importance", "noise: inf", "<= 1e+06"]),
        (
            ["--importance", "synthetic:tau=1e308,noise=1e308"],
            ["--importance", "tau: 1e+308", ">= 1e-06 and <= 1e+06"],
        ),
        (["--unmasking-strategy", "best"], ["--unmasking-strategy", "'best'", "sequential"]),
        (["--scheduler", "fair"], ["--scheduler", "'fair'", "continuous, static"]),
        (["--goodput", "ttft"], ["--goodput", "'ttft'", "ttft:MS"]),
        (["--goodput", "ttft:inf"], ["--goodput ttft: inf", "> 0 and <= 1000000000"]),
        (["--metadata", "noted"], ["--metadata", "'noted'", "KEY=VALUE"]),
        (["--request-rate", "0"], ["--request-rate", "0", ">= 1e-06"]),
        (["--request-rate", "1e-310"], ["--request-rate: 1e-310", ">= 1e-06"]),
        (["--request-rate", "5", "--burstiness", "inf"], ["--burstiness: inf", "<= 1e+06"]),
        (["--request-rate", "5", "--burstiness", "1e-300"], ["--burstiness: 1e-300", ">= 0.001"]),
        (["--no-such-flag", "1"], ["--no-such-flag"]),
        (["--resume"], ["--resume", "--output-dir"]),
        (["--tokenizer", "tokens"], ["--tokenizer", "'tokens'", "byte"]),
        (["--dtype", "int3"], ["--dtype", "'int3'", "float32"]),
        (["--seed", "-1"], ["--seed", "-1", ">= 0"]),
        (["--mask-token-id", "99999999"], ["--mask-token-id: 99999999", "allowed: 0 to 2047"]),
        (
            ["--model", "sdar-8b", "--mask-token-id", "99999999"],
            ["--mask-token-id: 99999999", "allowed: 0 to 151935"],
        ),
        (
            ["--dataset", "sharegpt", "--dataset-path", "x" * 5000],
            ["--dataset-path: 'xxx", "...", "allowed: an existing file or folder"],
        ),
        (["--model", "x" * 5000], ["--model: 'xxx", "or an existing checkpoint folder"]),
        (["--tokenizer", "x" * 5000], ["--tokenizer: 'xxx", "allowed: "]),
    ],
)
def test_simulate_refuses(
    arguments: list[str],
    named: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    line = error_line(["simulate", "--gpu", "h200", *TINY, *arguments], capsys)
    for text in named:
        assert text in line
    assert list(tmp_path.iterdir()) == []  # nothing was begun


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "--policy", "ideal", *TINY], ["--policy", "'ideal'", "baseline"]),
        (["run", "--num-runs", "0", *TINY], ["--num-runs", "0", ">= 1"]),
        (["run", "--device", "tpu", *TINY], ["--device", "'tpu'", "auto, cpu, cuda"]),
        (["simulate", "--acceptance", "confidence", *TINY], ["--acceptance", "synthetic:MEAN"]),
        (["simulate", "--acceptance", "replay:none.npz", *TINY], ["replay", "none.npz"]),
        (["simulate", "--importance", "model", *TINY], ["--importance", "'model'", "synthetic"]),
        (["simulate", "--gpu", "", *TINY], ["--gpu", "''", "names"]),
        (["simulate", "--gpu", "h900", *TINY], ["--gpu", "'h900'", "h200"]),
        (["simulate", "--gpu", "x" * 5000, *TINY], ["--gpu: 'xxx", "h200", "file of a profile"]),
        (["generate", "--prompt", " "], ["prompt", "' '"]),
        (["generate", "--prompt", "x", "--max-new-tokens", "0"], ["--max-new-tokens", "0"]),
        (["generate", "--prompt", " "], ["prompt 0", "' '"]),
        (["report", "nowhere"], ["result folder", "'nowhere'", "run.json"]),
        (["compare", "nowhere"], ["result folder", "'nowhere'", "run.json"]),
        (["sing"], ["'sing'"]),
    ],
)
def test_other_commands_refuse(
    arguments: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_line(arguments, capsys)
    for text in named:
        assert text in line


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("run", "--output-dir"),
        ("run", "--decode-trace"),
        ("run", "--profile"),
        ("simulate", "--output-dir"),
        ("simulate", "--perfetto"),
        ("eval", "--output-dir"),
        ("paper fig6", "--output-dir"),
        ("paper fig6", "--measured"),
        ("train", "--output-dir"),
        ("train --output-dir out", "--compact-dir"),
        ("calibrate", "--output"),
        ("compare folder", "--csv"),
        ("report folder", "--figures"),
        ("report folder", "--against"),
        ("compare", "FOLDER"),
        ("report", "FOLDERS"),
    ],
)
def test_an_empty_path_is_no_current_folder(
    command: str,
    flag: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [flag] if flag.startswith("--") else []
    line = error_line([*command.split(), *given, ""], capsys)
    assert flag in line
    assert "'' is not usable; allowed: a path" in line
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_without_a_usable_row_is_told_with_the_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ['{"conversations": [{"from": "human", "value": " "}, {"from": "gpt", "value": "a"}]}']
    rows += ['{"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": ""}]}']
    data = tmp_path / "bad.jsonl"
    data.write_text("\n".join(rows * 6))
    arguments = ["--gpu", "h200", "--dataset-path", str(data), "--num-prompts", "10"]
    line = error_line(["simulate", *arguments], capsys)
    assert "12 rows read" in line
    assert "6 " in line
    assert str(data) in line


def test_more_prompts_than_exist_are_refused_or_repeated_if_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = '[{"from": "human", "value": "question"}, {"from": "gpt", "value": "answer"}]'
    data = tmp_path / "three.jsonl"
    data.write_text(f'{{"conversations": {turns}}}\n' * 3)
    arguments = ["simulate", "--gpu", "h200", "--policy", "focus", "--batch-size", "4"]
    arguments += ["--dataset-path", str(data), "--num-prompts", "5"]
    line = error_line(arguments, capsys)
    assert "--num-prompts: 5" in line
    assert "1 to 3" in line
    folder = tmp_path / "out"
    assert main([*arguments, "--repeat", "--output-dir", str(folder)]) == 0
    assert "5 prompts repeat the 3 usable rows" in capsys.readouterr().out


def test_help_names_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "--num-prompts",
        "[default: 64]",
        "--page-size",
        "baseline,delayed-cache-neighbor",
    ):
        assert text in shown


def test_a_fault_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("focus_bench.report.folder.load_folder", broken)
    with pytest.raises(ZeroDivisionError):
        main(["report", "folder"])
