"""The points fixed for judging the simulator on a GPU are those that the script measures."""

import runpy
from pathlib import Path

import pytest

from focus_bench.cli.main import main
from focus_bench.report.folder import load_folder
from focus_bench.report.points_file import choose, read_points

HELD_OUT = Path(__file__).parents[2] / "docs" / "held-out"


@pytest.mark.parametrize(("model", "count"), [("sdar-8b", 28), ("llada2-mini", 8)])
def test_the_script_runs_every_fixed_point_and_no_other(
    model: str, count: int, tmp_path: Path
) -> None:
    script = runpy.run_path(str(HELD_OUT / "measure.py"))
    assert sorted(script["GROUPS"]) == sorted(file.stem for file in HELD_OUT.glob("*.json"))
    for group in script["GROUPS"][model]:
        command = f"simulate --model {model} --gpu h200 --no-interval --resume --quiet {group}"
        # One short reply of random text: the settings matter, not the figures.
        short = "--dataset random --random-input-len 8 --random-output-len 1 --num-prompts 1"
        assert main([*f"{command} {short}".split(), "--output-dir", str(tmp_path / "r")]) == 0
    measured = [result.point for result in load_folder(tmp_path / "r").results]
    fixed = read_points(HELD_OUT / f"{model}.json")
    chosen = choose(fixed, measured)
    assert chosen.absent == ()
    assert len(chosen.points) == len(measured) == len(fixed) == count
