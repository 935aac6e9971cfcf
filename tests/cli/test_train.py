"""focus-bench train at the command level: from the generator to a checkpoint that decodes."""

from pathlib import Path

import pytest

from focus_bench.cli.main import main
from focus_bench.workloads.tokenizers import load_tokenizer


def test_smoke_training_makes_a_checkpoint_that_generates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert main(["train", "--smoke", "--num-tasks", "300", "--output-dir", str(folder)]) == 0
    assert "step 20 of 20" in capsys.readouterr().out
    lines = (folder / "loss.csv").read_text().splitlines()
    first, last = (float(line.split(",")[3]) for line in (lines[1], lines[-1]))
    assert last < first
    checkpoint = folder / "checkpoint"
    assert load_tokenizer(str(checkpoint)).mask_token_id == 1
    arguments = ["--model", str(checkpoint), "--prompt", "2 + 3", "--max-new-tokens", "8"]
    assert main(["generate", "--no-stream", *arguments]) == 0
    assert "tokens on cpu" in capsys.readouterr().err
