"""Samples of measured steps survive their file; broken files are refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest

from focus_bench.core.calibration import (
    COUNT_NAMES,
    TIMED_PARTS,
    CalibrationSamples,
    StepCounts,
    dimensions_of,
    samples_of,
)
from focus_bench.core.costs import DecodeShape, PrefillShape, StepShape
from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import PRESETS


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


SHAPE = StepShape(
    prefill=PrefillShape(start=array(0, 16), length=array(16, 8), block_length=8),
    forwards=(
        DecodeShape(
            fed=array(8, 5, 6, 1),
            kept=array(4, 5, 3, 1),
            masked_fed=array(7, 0, 5, 0),
            first_keys=array(24, 8, 40, 8),
            later_keys=array(20, 8, 37, 8),
            head_rows=9,
        ),
    ),
    swapped_pages=2,
    page_size=8,
)


def make_samples() -> CalibrationSamples:
    seconds = {part: 0.001 * (i + 1) for i, part in enumerate(TIMED_PARTS)}
    counts, timed = samples_of([(StepCounts.of(SHAPE), seconds)] * 3)
    return CalibrationSamples(
        device="cpu",
        kind="cpu",
        date="2026-01-02",
        settings={"threads": "2"},
        model="dummy-tiny",
        dimensions=dimensions_of(PRESETS["dummy-tiny"]),
        counts=counts,
        seconds=timed,
    )


def test_a_step_is_summed_over_its_sequences() -> None:
    assert StepCounts.of(SHAPE) == StepCounts(
        prefill_tokens=24,
        prefill_chunks=2,
        prefill_blocks=3,
        prefill_pairs=8 * 8 + 8 * 16 + 8 * 24,
        prefill_keys=16 + 24,
        forwards=1,
        rows=4,
        fed=20,
        kept=13,
        first_pairs=8 * 24 + 5 * 8 + 6 * 40 + 8,
        first_keys=80,
        later_pairs=4 * 20 + 5 * 8 + 3 * 37 + 8,
        later_keys=73,
        head_rows=9,
        evicting_rows=2,
        importance_masked=12,
        importance_pairs=49 + 25,
        importance_groups=2,
        swapped_tokens=16,
    )


def test_samples_survive_their_file(tmp_path: Path) -> None:
    samples = make_samples()
    samples.save(tmp_path / "samples.json")
    loaded = CalibrationSamples.load(tmp_path / "samples.json")
    assert loaded.to_json() == samples.to_json()
    assert loaded.num_steps == 3
    for name in COUNT_NAMES:
        np.testing.assert_array_equal(loaded.counts[name], samples.counts[name])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda v: v.update(schema_version=99), "schema_version: 99"),
        (lambda v: v.pop("dimensions"), "samples.json"),
        (lambda v: v["counts"].pop("kept"), "samples.json"),
        (lambda v: v["seconds"]["host"].append(1.0), "samples.json"),
        (lambda v: v["counts"]["fed"].__setitem__(0, 10**30), "samples.json"),
        (lambda v: v["counts"]["fed"].__setitem__(0, 10**400), "samples.json"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    value = make_samples().to_json()
    damage(value)
    path = tmp_path / "samples.json"
    path.write_text(json.dumps(value))
    with pytest.raises(UsageError, match=message):
        CalibrationSamples.load(path)


def test_a_file_that_is_no_json_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "samples.json").write_text('{"schema_version": 1, ')
    with pytest.raises(UsageError, match=r"samples.json.*JSON"):
        CalibrationSamples.load(tmp_path / "samples.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"deep.json.*JSON.*recursion"):
        CalibrationSamples.load(tmp_path / "deep.json")
    with pytest.raises(UsageError, match=r"missing.json"):
        CalibrationSamples.load(tmp_path / "missing.json")
