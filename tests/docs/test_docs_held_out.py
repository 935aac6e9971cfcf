"""The points fixed for judging the simulator on a GPU are those that the script measures."""

import runpy
from pathlib import Path

from focus_bench.cli.main import main
from focus_bench.report.folder import load_folder
from focus_bench.report.points_file import choose, read_points

HELD_OUT = Path(__file__).parents[2] / "docs" / "held-out"


def test_the_script_runs_every_fixed_point_and_no_other(tmp_path: Path) -> None:
    script = runpy.run_path(str(HELD_OUT / "measure.py"))
    for group in script["GROUPS"]:
        command = f"simulate --model sdar-8b --gpu h200 --no-interval --resume --quiet {group}"
        # One short reply of random text: the settings matter, not the figures.
        short = "--dataset random --random-input-len 8 --random-output-len 1 --num-prompts 1"
        assert main([*f"{command} {short}".split(), "--output-dir", str(tmp_path / "r")]) == 0
    measured = [result.point for result in load_folder(tmp_path / "r").results]
    fixed = read_points(HELD_OUT / "sdar-8b.json")
    chosen = choose(fixed, measured)
    assert chosen.absent == ()
    assert len(chosen.points) == len(measured) == len(fixed) == 28
