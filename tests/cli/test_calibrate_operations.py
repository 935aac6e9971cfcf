"""calibrate --check, and where the operations of a GPU are kept; measuring is not tested here."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_calibration_cases import MINI, make_calibration, with_curve

from focus_bench.api.engine import Engine
from focus_bench.api.profiles import (
    calibrate_operations,
    gpu_profile_of,
    operations_path,
    samples_path,
)
from focus_bench.cli.main import main
from focus_bench.core.calibration import CalibrationSamples
from focus_bench.core.curve_samples import Sample
from focus_bench.core.errors import UsageError
from focus_bench.core.gpu_profile_file import load_gpu_calibration, save_gpu_calibration, to_json
from focus_bench.core.op_curves import STEP_MODES, GpuCalibration
from focus_bench.sim.calibration import bundled_profiles, fit_profile
from focus_bench.sim.gpu_profile import fit_differences, with_fits


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "h200.json"
    save_gpu_calibration(make_calibration(), path)
    return path


def check(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, list[str]]:
    code = main(["calibrate", "--check", str(path)])
    out, err = capsys.readouterr()
    return code, out, err.splitlines()


def test_a_good_profile_is_summed_up(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(profile, capsys)
    assert (code, err) == (0, [])
    assert "NVIDIA H200, driver 580.159.04: sdar-8b (bfloat16), 2026-01-02" in out
    assert "kernels 0123456789ab" in out
    assert "copy 4.24TB/s, products 745TFLOP/s; steps: 2 eager, 2 graph" in out
    line = next(line for line in out.splitlines() if line.startswith("attention_prefill"))
    assert line.split()[1:5] == ["sequences,", "queries,", "history", "27"]


def test_a_good_profile_of_a_model_with_experts(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration = make_calibration(spec=MINI)
    save_gpu_calibration(calibration, profile)
    code, out, err = check(profile, capsys)
    assert (code, err) == (0, [])
    assert "experts: 8 of 256 a token; touched 8 by 1 rows (the busiest has 12.5 %)" in out
    assert {"route", "experts", "dense_finish"} <= {
        line.split()[0] for line in out.split("\n") if line
    }
    save_gpu_calibration(with_curve(calibration, "experts", held_out_p50=0.5), profile)
    code, _, err = check(profile, capsys)
    assert (code, len(err)) == (2, 1)
    assert "experts held_out_p50: 0.5; its own points say" in err[0]


@pytest.mark.parametrize("name", ["h200_sdar-8b", "h200_llada2-mini"])
def test_a_packaged_profile_keeps_what_its_own_steps_give(name: str) -> None:
    packaged = load_gpu_calibration(bundled_profiles()[name])
    assert list(packaged.fits) == list(STEP_MODES)
    assert fit_differences(packaged) == []


def test_a_fit_of_other_steps_is_said(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibration = with_fits(load_gpu_calibration(profile))
    save_gpu_calibration(calibration, profile)
    assert check(profile, capsys)[0] == 0
    wrong = dataclasses.replace(calibration.fits["graph"], row_tile=32)
    save_gpu_calibration(
        dataclasses.replace(calibration, fits={**calibration.fits, "graph": wrong}), profile
    )
    code, out, err = check(profile, capsys)
    assert (code, out) == (2, "")
    assert err == [
        f"focus-bench: --check {profile}: fits graph: not those of its own steps (calibrate again)"
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fits: fits["modes"]["graph"]["scale"].update(suffix=1.2), "altered; they are not"),
        (lambda fits: fits.update(of="0" * 16), "altered; they are not used"),
        (lambda fits: fits.pop("of"), "fits of: missing; needed: the digest"),
        (lambda fits: fits.update(revision=None), "fits revision: null; allowed: a whole number"),
        (lambda fits: fits.update(revision="x"), 'fits revision: "x"; allowed'),
        (lambda fits: fits.update(revision=math.nan), "fits revision: NaN; allowed"),
    ],
)
def test_altered_fits_are_said_and_not_used(
    change: Callable[[dict[str, Any]], object],
    said: str,
    profile: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_gpu_calibration(with_fits(load_gpu_calibration(profile)), profile)
    assert check(profile, capsys)[1].splitlines()[-1].startswith("ok: ")
    value = json.loads(profile.read_text())
    change(value["fits"])
    profile.write_text(json.dumps(value))
    code, out, err = check(profile, capsys)
    assert (code, out, len(err)) == (2, "", 1)
    assert said in err[0]
    assert load_gpu_calibration(profile).fits == {}


def test_every_problem_is_a_line_and_the_code_is_2(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration = make_calibration(kernel_revision="main")
    slow = np.full(5, 11.0)
    save_gpu_calibration(with_curve(calibration, "down", seconds=slow), profile)
    code, out, err = check(profile, capsys)
    assert (code, out) == (2, "")
    assert err == [
        f"focus-bench: --check {profile}: kernel_revision: 'main'; allowed: 12 hexadecimal digits",
        f"focus-bench: --check {profile}: down at rows 1: seconds 11; allowed: above 0 and below "
        "10 (the worst of 5)",
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", ["JSON"]),
        ("[]", ["'not a profile'"]),
        ('{"schema_version": 1, "points": []}', ["'not a profile'"]),
        ('{"schema_version": 1, "samples": {}}', ["'unreadable'"]),
        ('{"schema_version": 3, "samples": {}}', ["schema_version", "3"]),
        ('{"kind": "gpu-operations", "schema_version": 1}', ["schema_version", "1", "2"]),
        ('{"kind": "gpu-operations", "schema_version": 2}', ["curves", "'NoneType'"]),
    ],
)
def test_what_is_no_profile_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, named: list[str]
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    code, out, err = check(path, capsys)
    assert (code, out, len(err)) == (2, "", 1)
    assert err[0].startswith("focus-bench: error: --check ")
    assert str(path) in err[0]
    for part in named:
        assert part in err[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda v: v.update(model="sdar-4b"),
            [
                "steps eager: of sdar-8b, the curves of sdar-4b",
                "steps graph: of sdar-8b, the curves of sdar-4b",
                "model: 'sdar-4b', but hidden_size 4096 (of that model 2560), intermediate_size "
                "12288 (of that model 9728); allowed: the name of the model that was measured",
            ],
        ),
        (
            lambda v: v["curves"].update(route=v["curves"]["qkv"], speed=3),
            ["curves route, speed: not known; allowed: those of sdar-8b: qkv, o, "],
        ),
        (
            lambda v: v["steps"].update(lazy=v["steps"]["eager"]),
            ["steps lazy: not known; allowed: eager, graph"],
        ),
        (
            lambda v: v["settings"].update(page_size="abc"),
            ["settings page_size: 'abc'; allowed: a whole number from 1 to 9999"],
        ),
        (lambda v: v["settings"].update(page_size=16), []),
    ],
)
def test_what_a_profile_says_of_itself_is_checked(
    profile: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], object],
    said: list[str],
) -> None:
    value = json.loads(profile.read_text())
    change(value)
    profile.write_text(json.dumps(value))
    code, _, err = check(profile, capsys)
    assert code == (2 if said else 0)
    assert len(err) == len(said)
    for line, part in zip(err, said, strict=True):
        assert line.startswith(f"focus-bench: --check {profile}: {part}")


def test_other_versions_and_keys_that_come_twice_are_named(
    profile: Path, capsys: pytest.CaptureFixture[str], samples: CalibrationSamples
) -> None:
    text = profile.read_text()
    profile.write_text(text.replace('"schema_version": 2,', '"schema_version": 2.0,', 1))
    code, _, err = check(profile, capsys)
    assert (code, len(err)) == (2, 1)
    assert "schema_version: 2.0 is not usable; allowed: 2 " in err[0]
    profile.write_text(text.replace('"model":', '"model": "other", "model":', 1))
    line = f"focus-bench: --check {profile}: key 'model': 2 times in one object; allowed: once"
    assert check(profile, capsys) == (2, "", [line])
    fit_profile(samples, name="mine").save(profile)
    twice = profile.read_text().replace('"name":', '"name": "other", "name":', 1)
    profile.write_text(twice)
    assert line.replace("'model'", "'name'") in check(profile, capsys)[2]


def test_profiles_of_a_cpu_are_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], samples: CalibrationSamples
) -> None:
    code, out, err = check(bundled_profiles()["cpu"], capsys)
    assert (code, err) == (0, [])
    assert out.startswith("calibrated on cpu")
    assert "ok: errors of the fit are at most 15% at p50, 50% at p90 and 10% in all" in " ".join(
        out.split()
    )
    profile = fit_profile(samples, name="mine")
    coefficients = {**profile.coefficients, "host_row": -1e-6, "swap_byte": np.inf}
    path = tmp_path / "mine.json"
    dataclasses.replace(profile, coefficients=coefficients).save(path)
    code, out, err = check(path, capsys)
    assert (code, out) == (2, "")
    assert [line.split(": ")[2] for line in err] == [
        "coefficient host_row",
        "coefficient swap_byte",
    ]


# -- measured operations ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("dummy-tiny", device="cpu")


def test_a_cpus_operations_are_not_measured_one_by_one(engine: Engine) -> None:
    with pytest.raises(UsageError, match=r"--device: 'cpu' .*cuda"):
        engine.measure_operations(seconds=1.0)


def test_operations_are_kept_with_their_samples(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[float] = []

    def measured(self: Engine, *, seconds: float) -> tuple[GpuCalibration, list[Sample]]:
        asked.append(seconds)
        return make_calibration(), [
            Sample(curve="qkv", point=(64,), round=0, sample=i, seconds=1e-5) for i in range(3)
        ]

    monkeypatch.setattr(Engine, "measure_operations", measured)
    calibrate_operations(engine, seconds=7.0)
    for path in (operations_path(engine), tmp_path / "folder" / "mine.json"):
        if path != operations_path(engine):
            calibrate_operations(engine, path=path)
        kept = load_gpu_calibration(path)
        assert to_json(kept) == to_json(make_calibration())
        assert list(kept.fits) == list(STEP_MODES)
        csv = samples_path(path).read_text().splitlines()
        assert len(csv) == 4
        assert {p.suffix for p in path.parent.iterdir()} == {".json", ".csv"}
    assert asked == [7.0, 180.0]
    # The cache's fitted profiles are found as before: this file is not taken for one.
    assert gpu_profile_of(engine.hardware, engine.spec) is None


class FakeGpu:
    """An engine on a GPU that measures nothing; what is asked of it."""

    hardware = "NVIDIA H200"

    def __init__(self, engine: Engine, samples: CalibrationSamples) -> None:
        self.spec, self.settings = engine.spec, engine.settings
        self._samples = samples
        self.log: list[tuple[str, float]] = []
        self.refusal: UsageError | None = None

    def measure_operations(self, *, seconds: float) -> tuple[GpuCalibration, list[Sample]]:
        self.log.append(("operations", seconds))
        if self.refusal is not None:
            raise self.refusal
        return make_calibration(), []

    def measure_steps(self, *, seconds: float) -> CalibrationSamples:
        self.log.append(("steps", seconds))
        return self._samples


@pytest.fixture
def gpu(engine: Engine, samples: CalibrationSamples, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """What commands load."""
    fake = FakeGpu(engine, samples)

    def make(*_: Any, **__: Any) -> FakeGpu:
        return fake

    monkeypatch.setattr("focus_bench.api.engine.Engine", make)
    return fake


def test_on_a_gpu_operations_are_measured_and_nothing_else(
    gpu: FakeGpu, capsys: pytest.CaptureFixture[str], tmp_path: Path, cache: Path
) -> None:
    output = tmp_path / "mine.json"
    assert main(["calibrate", "--seconds", "30", "--output", str(output)]) == 0
    assert gpu.log == [("operations", 30.0)]
    out = capsys.readouterr().out
    assert f"profile of operations: {output}\n" in out
    assert f"samples: {tmp_path / 'mine_samples.csv'}\n" in out
    assert json.loads(output.read_text())["schema_version"] == 2
    assert not (cache / "focus-bench" / "profiles").exists()


def test_a_model_whose_operations_cannot_be_measured_has_its_steps_fitted(
    gpu: FakeGpu, capsys: pytest.CaptureFixture[str], tmp_path: Path, cache: Path
) -> None:
    gpu.refusal = UsageError("--model", "other", "an SDAR model")
    assert main(["calibrate"]) == 0
    assert "operations are not measured: --model: 'other'" in capsys.readouterr().out
    assert len(list((cache / "focus-bench" / "profiles").iterdir())) == 1
    output = tmp_path / "mine.json"
    assert main(["calibrate", "--output", str(output)]) == 2
    assert "--model: 'other'" in capsys.readouterr().err
    assert not output.exists()
    assert gpu.log == [("operations", 180.0), ("steps", 15.0), ("operations", 180.0)]


def test_an_operations_profile_worse_than_the_one_before_says_so(
    gpu: FakeGpu, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["calibrate"]) == 0
    assert main(["calibrate"]) == 0
    assert "worse than" not in capsys.readouterr().out
    errors = iter([0.02, 0.08])
    monkeypatch.setattr("focus_bench.api.profiles.held_out_error", lambda _: next(errors))
    assert main(["calibrate"]) == 0
    assert "error of held-out points 8.0 %, not 2.0 %" in capsys.readouterr().out
