"""simulate --what-if and several GPUs at the command level."""

import csv
from pathlib import Path

import pytest

from focus_bench.cli.main import main

SIMULATE = ["simulate", "--dataset", "synthetic", "--max-new-tokens", "32"]


def test_what_if_marks_a_sweep_and_draws_its_roofline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = ["--what-if", "--gpu", "a100-sxm4-80g,h200", "--model", "sdar-8b"]
    arguments += ["--batch-size", "1,4,16", "--output-dir", str(folder)]
    assert main([*SIMULATE, *arguments]) == 0
    out, err = capsys.readouterr()
    assert "[18/18]" in err
    words = " ".join(out.split())
    assert "predictions side by side" in words
    for label in ("synthetic acceptance", "synthetic importance", "synthetic data", "carried over"):
        assert label in words
    # At 32 positions a sequence the ridge of 153 FLOP/B lies between batch 4 and 16.
    assert (
        "baseline is compute-bound from batch 16 on (at or beyond the data sheet's ridge" in words
    )
    assert "focus pays from batch 16 on" in words
    with (folder / "what-if.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 18
    assert {row["baseline_compute_bound_from_batch"] for row in rows} == {"16"}
    ideal = {r["batch_size"]: float(r["speedup"]) for r in rows[:9] if r["policy"] == "ideal"}
    focus = {r["batch_size"]: float(r["speedup"]) for r in rows[:9] if r["policy"] == "focus"}
    assert all(ideal[batch] > focus[batch] for batch in ("1", "4", "16"))
    with (folder / "summary.csv").open() as file:
        asked = {(r["batch_size"], r["num_prompts"]) for r in csv.DictReader(file)}
    assert asked == {("1", "8"), ("4", "32"), ("16", "128")}
    drawn = sorted(path.name for path in (folder / "what-if").iterdir())
    assert len(drawn) == 8
    text = (folder / "what-if" / "roofline-2.svg").read_text()
    assert "batch 16: compute-bound" in text
    assert "batch 16: pays" in text


def test_the_default_sweep_and_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = ["--what-if", "--gpu", "h200", "--dry-run", "--output-dir", str(folder)]
    assert main([*SIMULATE, *arguments]) == 0
    assert "27 points" in capsys.readouterr().out  # 3 policies at batch 1, 2, 4, ... 256
    assert main([*SIMULATE, *arguments, "--policy", "focus,ideal"]) == 2
    assert "--policy: 'focus,ideal'" in capsys.readouterr().err


def test_several_gpus_stand_side_by_side_below_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SIMULATE, "--policy", "baseline", "--batch-size", "2", "--num-prompts", "2"]
    gpus = "a100-sxm4-80g,h100-pcie,h200,b200"
    assert main([*arguments, "--gpu", gpus, "--output-dir", str(tmp_path / "four")]) == 0
    _, results, beside = capsys.readouterr().out.partition("results: ")
    assert results
    (row,) = (line.split() for line in beside.splitlines() if line.startswith("baseline"))
    assert row[4::2] == ["1.00x"] * 4  # all in one table of 80 columns
    assert main([*arguments, "--gpu", "h200", "--output-dir", str(tmp_path / "one")]) == 0
    assert "side by side" not in capsys.readouterr().out
