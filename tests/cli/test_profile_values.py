"""Profiles whose numbers can predict nothing are refused by name, wherever a file is given."""

import json
from pathlib import Path
from typing import Any

import pytest

from focus_bench.cli.main import main
from focus_bench.sim.calibration import bundled_profiles

WORK = "--model dummy-tiny --dataset synthetic --num-prompts 2 --max-new-tokens 4 --quiet"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layer_call": -0.001}, "coefficient layer_call: '-0.001' is not usable; allowed: 0 or"),
        ({"layer_call": float("inf")}, "coefficient layer_call: 'inf' is not usable; allowed: 0"),
        ({}, "knots: '[]' is not usable; allowed: one or more numbers above 0, ascending"),
    ],
)
def test_one_line_names_what_is_wrong(
    change: dict[str, Any], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = json.loads(next(iter(bundled_profiles().values())).read_text())
    if change:
        value["coefficients"] |= change
    else:
        value["knots"] = []
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(value))
    output = f"--output-dir {tmp_path / 'r'}"
    assert main(f"simulate {WORK} --profile {file} {output}".split()) == 2
    line = capsys.readouterr().err
    assert named in line
    assert str(file) in line
    assert "Traceback" not in line


@pytest.mark.parametrize("command", ["calibrate --check", f"simulate {WORK} --profile"])
@pytest.mark.parametrize("damage", ["deep", "coefficients", "knots", "schema_version", "fed"])
def test_deep_files_and_huge_numbers_end_in_one_line(
    command: str, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = json.loads(bundled_profiles()["cpu"].read_text())
    if damage == "coefficients":
        value["coefficients"]["layer_call"] = 10**400
    elif damage == "knots":
        value["knots"][-1] = 10**400
    elif damage == "schema_version":
        value["schema_version"] = 10**400
    elif damage == "fed":
        value["samples"]["counts"]["fed"][0] = 10**400
    file = tmp_path / "profile.json"
    file.write_text("[" * 100_000 if damage == "deep" else json.dumps(value))
    assert main([*command.split(), str(file)]) == 2
    err = capsys.readouterr().err
    assert str(file) in err
    assert "Traceback" not in err
    assert all(line.startswith("focus-bench: ") for line in err.splitlines())
