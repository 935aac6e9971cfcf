"""The JSON files that the program writes are as docs/schemas says, and nothing else passes."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from record_schemas import SCHEMAS, all_schemas, schema_path, schema_text

from focus_bench.core.calibration import dimensions_of
from focus_bench.core.gpu_profile_file import is_gpu_calibration, save_gpu_calibration
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.op_curves import CEILINGS, CURVES, STEP_MODES, GpuCalibration, OpCurve
from focus_bench.sim.calibration import bundled_profiles, get_profile

NAMES = tuple(all_schemas())


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def errors(name: str, value: Any) -> list[str]:
    """What a schema of docs/schemas finds wrong with a value."""
    validator = Draft202012Validator(read(schema_path(name)))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_those_of_the_records(name: str) -> None:
    text = schema_path(name).read_text(encoding="utf-8")
    assert text == schema_text(all_schemas()[name]), (
        "records or docs/files.md changed: run python tests/docs/record_schemas.py"
    )
    Draft202012Validator.check_schema(json.loads(text))


def test_no_schema_is_left_over() -> None:
    assert sorted(file.name for file in SCHEMAS.iterdir()) == sorted(
        schema_path(name).name for name in NAMES
    )


def test_files_of_simulate(predicted: Path) -> None:
    folder = predicted / "out"
    files = {
        "run": [folder / "run.json"],
        "results": [folder / "results.json"],
        "point": sorted((folder / "points").glob("*.json")),
        "failed": sorted((folder / "failed").glob("*.json")),
        "trace": [predicted / "trace.json"],
    }
    assert {name: len(found) for name, found in files.items()} == dict.fromkeys(files, 1)
    for name, found in files.items():
        assert errors(name, read(found[0])) == []
    assert read(folder / "results.json")["failed_points"]


def test_files_of_run(measured: Path) -> None:
    assert errors("run", read(measured / "run.json")) == []
    results = read(measured / "results.json")
    assert errors("results", results) == []
    assert [len(point["runs"]) for point in results["points"]] == [2]
    (point,) = (measured / "points").glob("*.json")
    assert errors("point", read(point)) == []


def test_files_of_eval(evaluated: Path) -> None:
    assert errors("run", read(evaluated / "run.json")) == []
    assert errors("quality", read(evaluated / "quality.json")) == []
    points = sorted((evaluated / "points").glob("*.json"))
    assert len(points) == 2
    for point in points:
        assert errors("quality-point", read(point)) == []
    for file in (evaluated / "points").glob("*.answers.jsonl"):
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(lines) == 2
        assert [errors("answer", json.loads(line)) for line in lines] == [[], []]


@pytest.mark.parametrize("name", bundled_profiles())
def test_packaged_profiles(name: str) -> None:
    profile = read(bundled_profiles()[name])
    assert errors("gpu-profile" if is_gpu_calibration(profile) else "profile", profile) == []


def test_profiles_as_they_are_written_now(tmp_path: Path) -> None:
    steps = get_profile("cpu")
    steps.save(tmp_path / "steps.json")
    assert errors("profile", read(tmp_path / "steps.json")) == []
    operations = GpuCalibration(
        device="NVIDIA H200",
        date="2026-01-01",
        settings={"torch": "2.11.0"},
        model="sdar-8b",
        dimensions=dimensions_of(PRESETS["sdar-8b"]),
        kernel_revision="0123",
        duration_s=60.0,
        curves={
            name: OpCurve(
                name=name,
                axes=kind.axes,
                points=np.array([[8.0] * len(kind.axes), [16.0] * len(kind.axes)]),
                seconds=np.array([1e-5, 1.5e-5]),
                spread=np.array([0.01, 0.0]),
                held_out_p50=None,
                held_out_max=None,
            )
            for name, kind in CURVES.items()
        },
        ceilings=dict.fromkeys(CEILINGS, 1e12),
        steps={mode: steps.samples for mode in STEP_MODES},
    )
    save_gpu_calibration(operations, tmp_path / "operations.json")
    written = read(tmp_path / "operations.json")
    assert errors("gpu-profile", written) == []
    assert errors("profile", written)
    written["curves"]["attention_decode"]["points"][1].pop()
    (found,) = errors("gpu-profile", written)
    assert found.startswith("$.curves.attention_decode.points[1]: ")


def test_what_is_not_such_a_file_does_not_pass(measured: Path) -> None:
    point = read(next((measured / "points").glob("*.json")))

    def changed(*path: str, value: object) -> Any:
        copied = copy.deepcopy(point)
        place = copied
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return copied

    bad = {
        "$.schema_version": changed("schema_version", value=1),
        "$.point_hash": changed("point_hash", value="7F"),
        "$.result": changed("result", "extra", value=1),
        "$.result.source": changed("result", "source", value="guessed"),
        "$.result.point.seed": changed("result", "point", "seed", value=1.5),
        "$.result.point.decode.policy": changed("result", "point", "decode", "policy", value="x"),
        "$.result.metrics.duration_s": changed("result", "metrics", "duration_s", value="4"),
        "$.result.metrics.ttft_s.p99": changed("result", "metrics", "ttft_s", "p99", value=True),
    }
    for place, value in bad.items():
        (found,) = errors("point", value)
        assert found.startswith(f"{place}: ")
    for key in point["result"]:
        less = copy.deepcopy(point)
        del less["result"][key]
        (found,) = errors("point", less)
        assert repr(key) in found
