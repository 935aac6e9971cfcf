"""fast-dllm-v2 at the command level: on its own family, on SDAR labelled, elsewhere refused."""

import csv
import json
import re
from pathlib import Path

import pytest

from focus_bench.cli.main import main

WORKLOAD = ["--dataset", "synthetic", "--num-prompts", "3", "--max-new-tokens", "40"]
RUN = ["run", *WORKLOAD, "--num-warmups", "0", "--no-predict", "--quiet", "--batch-size", "2"]


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def own_model(tmp_path: Path) -> list[str]:
    """A folder with the config of a small model of the family, run with dummy weights."""
    folder = tmp_path / "small-fast-dllm"
    folder.mkdir()
    config = {
        "model_type": "Fast_dLLM_Qwen",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 320,
        "mask_token_id": 256,
        "eos_token_id": 257,
        "bd_size": 16,
        "max_position_embeddings": 2048,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return ["--model", str(folder), "--load-format", "dummy"]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_its_own_family_runs_and_is_simulated(tmp_path: Path, own_model: list[str]) -> None:
    policies = ["--policy", "baseline,fast-dllm-v2"]
    assert main([*RUN, *own_model, *policies, "--output-dir", str(tmp_path / "run")]) == 0
    measured = rows(tmp_path / "run")
    simulate = ["simulate", "--gpu", "h200", *WORKLOAD, "--batch-size", "2", "--quiet"]
    assert main([*simulate, *own_model, *policies, "--output-dir", str(tmp_path / "sim")]) == 0
    predicted = rows(tmp_path / "sim")
    for ours, theirs in zip(measured, predicted, strict=True):
        assert ours["block_length"] == "16"
        assert ours["completed"] == "3"
        assert "unshifted" not in ours["labels"] + theirs["labels"]
        assert "sdar/sharegpt" in ours["acceptance"]
        for name in ("policy", "acceptance", "tokens_per_step", "processed_per_decoded"):
            assert ours[name] == theirs[name]


@pytest.mark.parametrize("command", ["run", "simulate", "generate"])
def test_other_policies_are_refused_on_shifted_models(
    command: str, own_model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *own_model, "--policy", "delayed-cache"]) == 2
    err = capsys.readouterr().err
    assert "--policy: 'delayed-cache'" in err
    assert "baseline, fast-dllm-v2 with small-fast-dllm, whose logits are shifted" in err


def test_on_sdar_every_output_says_that_the_shift_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = [*RUN, "--model", "dummy-tiny", "--policy", "fast-dllm-v2"]
    assert main([*arguments, "--scheduler", "static", "--output-dir", str(folder)]) == 0
    capsys.readouterr()
    (row,) = rows(folder)
    own = "our model of Fast-dLLM v2's own engine (static batches, no paging)"
    assert {"unshifted (SDAR)", own} <= set(row["labels"].split("; "))
    assert main(["report", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "unshifted (SDAR)" in shown
    assert own in shown
    results = json.loads((folder / "results.json").read_text())
    assert "unshifted (SDAR)" in json.dumps(results)


def test_generate_shows_carried_tokens_as_known(
    own_model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["generate", *own_model, "--prompt", "Hello", "--raw", "--max-new-tokens", "40"]
    assert main([*arguments, "--policy", "fast-dllm-v2"]) == 0
    out, err = capsys.readouterr()
    frames = re.findall(r"^block (\d+)-(\d+), step (\d+): (\d+) new, (\d+) masked", out, re.M)
    masked = {"0": 16 - 5, "16": 15, "32": 15}
    for start, _, _, new, left in frames:
        masked[start] -= int(new)
        assert int(left) == masked[start]
    assert masked["0"] == masked["16"] == 0
    assert "unshifted" not in out + err

    sdar = ["generate", "--model", "dummy-tiny", "--prompt", "Hello", "--max-new-tokens", "8"]
    assert main([*sdar, "--policy", "fast-dllm-v2"]) == 0
    assert "unshifted (SDAR)" in capsys.readouterr().err
