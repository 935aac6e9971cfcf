"""Fits that a profile's file keeps: they survive it, and go with what they were fitted to alone."""

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_calibration_cases import make_calibration

from focus_bench.core.errors import UsageError
from focus_bench.core.gpu_profile_file import from_json, load_gpu_calibration, save_gpu_calibration
from focus_bench.core.step_fits import StepsFit, _digest, is_alike

FIT = StepsFit(
    row_tile=64,
    distinct_per_block=math.inf,
    scale={"prefill": 1.0 / 3.0, "suffix": 1.0},
    constant_s={"prefill": 0.0},
    per_sequence_s={},
    runs=np.array([[0.1, math.nan, -0.2, 0.0, 1e-9, 0.3, 0.7]]),
    step_spread=np.full(7, 0.1),
    part_spread=np.linspace(0.0, 0.6, 7),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "profile.json"
    other = dataclasses.replace(FIT, distinct_per_block=3.0, runs=np.zeros((0, 7)))
    save_gpu_calibration(make_calibration(fits={"graph": FIT, "eager": other}), file)
    return file


def test_fits_survive_their_file(path: Path) -> None:
    fits = load_gpu_calibration(path).fits
    assert fits.keys() == {"graph", "eager"}
    for field in dataclasses.fields(StepsFit):
        found, kept = getattr(fits["graph"], field.name), getattr(FIT, field.name)
        assert (
            np.array_equal(found, kept, equal_nan=True)
            if field.name == "runs"
            else np.all(found == kept)
        )
    assert fits["eager"].distinct_per_block == 3.0
    assert fits["eager"].runs.shape == (0, 7)


def test_fits_to_other_figures_or_of_another_revision_are_left_alone(path: Path) -> None:
    value = json.loads(path.read_text())
    assert from_json(value, source="it").fits
    slower = copy.deepcopy(value)
    slower["steps"]["graph"]["seconds"]["suffix"][0] *= 2.0
    assert from_json(slower, source="it").fits == {}
    wrong = copy.deepcopy(value)
    graph(wrong)["scale"]["suffix"] *= 1.2
    assert from_json(wrong, source="it").fits == {}
    value["fits"]["revision"] += 1
    assert from_json(value, source="it").fits == {}
    del value["fits"]
    assert from_json(value, source="it").fits == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.update(fits=[]), "fits: 'list'"),
        (lambda v: v["fits"].update(modes=None), "fits: 'dict'"),
        (lambda v: v["fits"]["modes"].update(graph=1), "fits graph: 'unreadable'"),
        (lambda v: graph(v).pop("runs"), "fits graph: 'unreadable'"),
        (lambda v: graph(v).update(row_tile=0), "row_tile: 0"),
        (lambda v: graph(v).update(row_tile=True), "row_tile: True"),
        (lambda v: graph(v).update(distinct_per_block=0.0), "distinct_per_block: 0.0"),
        (lambda v: graph(v).update(scale=[1.0]), "graph scale: "),
        (lambda v: graph(v)["scale"].update(tail=1.0), "graph scale: "),
        (lambda v: graph(v)["scale"].update(head=-1.0), "graph scale head: -1.0"),
        (lambda v: graph(v)["constant_s"].update(head=math.inf), "graph constant_s head: inf"),
        (lambda v: graph(v)["per_sequence_s"].update(head="1"), "graph per_sequence_s head: '1'"),
        (lambda v: graph(v)["step_spread"].pop(), "graph step_spread: "),
        (lambda v: graph(v).update(part_spread=[-1.0] * 7), "graph part_spread: -1.0"),
        (lambda v: graph(v).update(runs=1), "graph runs: 'int'"),
        (lambda v: graph(v).update(runs=[[1.0]]), "graph runs: "),
        (lambda v: graph(v).update(runs=[[math.nan] * 7]), "graph runs: nan"),
        (lambda v: graph(v).update(runs=[[10**400] * 7]), "graph runs: 1000"),
    ],
)
def test_what_is_no_fit_is_said_by_name(
    path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    value = json.loads(path.read_text())
    change(value)
    modes = value["fits"]["modes"] if isinstance(value["fits"], dict) else None
    if isinstance(modes, dict):  # signed as if calibrate had written it
        value["fits"]["of"] = _digest(value, modes)
    with pytest.raises(UsageError) as error:
        from_json(value, source="profile x.json")
    assert str(error.value).startswith("profile x.json fits")
    assert said in str(error.value)


def graph(value: dict[str, Any]) -> dict[str, Any]:
    fit: dict[str, Any] = value["fits"]["modes"]["graph"]
    return fit


@pytest.mark.parametrize(
    "changes",
    [
        {"row_tile": 128},
        {"distinct_per_block": 8.0},
        {"scale": {"prefill": 1.0 / 3.0}},
        {"scale": {"prefill": 1.0 / 3.0, "suffix": 1.0001}},
        {"runs": np.zeros((0, 7))},
        {"runs": np.zeros((1, 7))},
        {"step_spread": np.full(7, 0.1001)},
    ],
)
def test_fits_that_differ(changes: dict[str, Any]) -> None:
    assert is_alike(FIT, dataclasses.replace(FIT, step_spread=np.full(7, 0.1 + 1e-9)))
    assert not is_alike(FIT, dataclasses.replace(FIT, **changes))
