"""simulate on a GPU's measured operations: files, the user's cache, other GPUs, pages."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from focus_bench.api.prediction import find_target, target_of_file
from focus_bench.api.profiles import profiles_folder
from focus_bench.cli.main import main
from focus_bench.core.calibration import COUNT_NAMES, TIMED_PARTS, CalibrationSamples, dimensions_of
from focus_bench.core.config import (
    AcceptanceConfig,
    EngineConfig,
    ImportanceConfig,
    PointConfig,
    SchedulerConfig,
)
from focus_bench.core.curve_samples import Sample, curves_of
from focus_bench.core.expert_load import UNIFORM_LOAD, MeasuredLoad
from focus_bench.core.gpu_profile_file import load_gpu_calibration, save_gpu_calibration, to_json
from focus_bench.core.intervals import intervals_in
from focus_bench.core.model_spec import PRESETS, ModelSpec
from focus_bench.core.op_curves import (
    CURVES,
    STEP_MODES,
    GpuCalibration,
    MeasuredExperts,
    OpCurve,
    curves_of_model,
)
from focus_bench.core.workload import Provenance, RequestSpec, Workload
from focus_bench.report.folder import load_folder
from focus_bench.sim.calibration import bundled_profiles

SPEC = PRESETS["sdar-8b"]
H200 = bundled_profiles()["h200_sdar-8b"]
VALUES = {
    "rows": (1, 64, 512, 8192),
    "tokens": (64, 4096),
    "sequences": (1, 16, 256),
    "queries": (1, 8, 32),
    "context": (64, 512, 8192),
    "history": (0, 2048),
    "masked": (1, 32),
    "fed": (4, 32),
    "kept": (2, 32),
}


def curve(name: str) -> OpCurve:
    """Microseconds that grow with every coordinate."""
    axes = CURVES[name].axes
    values = VALUES | ({"queries": (32, 2048)} if name == "attention_prefill" else {})
    grid = np.meshgrid(*(np.array(values[a], dtype=np.float64) for a in axes), indexing="ij")
    points = np.stack([g.ravel() for g in grid], axis=1)
    seconds = 1e-6 * (5.0 + 0.05 * np.prod(np.maximum(points, 1.0), axis=1) ** 0.7)
    return OpCurve(
        name=name,
        axes=axes,
        points=points,
        seconds=seconds,
        spread=np.full(len(points), 0.01),
        held_out_p50=0.0,
        held_out_max=0.0,
    )


def calibration_of(spec: ModelSpec) -> GpuCalibration:
    """Of a model on an H200, without whole steps."""
    none = CalibrationSamples(
        device="NVIDIA H200",
        kind="gpu",
        date="2026-01-02",
        settings={},
        model=spec.name,
        dimensions=dimensions_of(spec),
        counts={name: np.zeros(0, dtype=np.int64) for name in COUNT_NAMES},
        seconds={part: np.zeros(0) for part in TIMED_PARTS},
    )
    return GpuCalibration(
        device="NVIDIA H200",
        date="2026-01-02",
        settings={"page_size": "64"},
        model=spec.name,
        dimensions=dimensions_of(spec),
        kernel_revision="0",
        duration_s=1.0,
        curves={name: curve(name) for name in curves_of_model(spec.experts)},
        ceilings={"copy_bytes_per_s": 4e12, "gemm_flops_per_s": 7e14},
        steps=dict.fromkeys(STEP_MODES, none),
        experts=experts_of(spec),
    )


def experts_of(spec: ModelSpec) -> MeasuredExperts | None:
    """Counted at the rows of the curves."""
    if spec.experts is None:
        return None
    rows = VALUES["rows"]
    touched = tuple(UNIFORM_LOAD.expected_touched(spec.experts, n) for n in rows)
    load = MeasuredLoad(rows=rows, touched=touched, largest_share=(0.1,) * len(rows))
    return MeasuredExperts(spec=spec.experts, dense_width=spec.intermediate_size, load=load)


@pytest.fixture
def calibration() -> GpuCalibration:
    """Of SDAR-8B."""
    return calibration_of(SPEC)


def make_point(**changes: object) -> PointConfig:
    values = {
        "acceptance": AcceptanceConfig(kind="synthetic", mean=2.0),
        "importance": ImportanceConfig(kind="synthetic", tau=2.0, noise=0.05),
        "scheduler": SchedulerConfig(batch_size=4),
        "engine": EngineConfig(model="sdar-8b", load_format="dummy"),
    }
    return PointConfig(**(values | changes))


def make_workload(count: int, prompt: int = 100) -> Workload:
    requests = tuple(
        RequestSpec(request_id=i, prompt_ids=np.ones(prompt, dtype=np.int32), max_new_tokens=40)
        for i in range(count)
    )
    provenance = Provenance(dataset="test", origin="synthetic", tokenizer="none")
    return Workload(requests=requests, provenance=provenance)


def test_simulate_takes_a_profile_of_operations(
    tmp_path: Path, calibration: GpuCalibration, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ours.json"
    save_gpu_calibration(calibration, file)
    flags = ["simulate", "--model", "sdar-8b", "--dataset", "synthetic", "--num-prompts", "6"]
    flags += ["--max-new-tokens", "16", "--batch-size", "4", "--policy", "baseline,focus"]
    assert main([*flags, "--profile", str(file), "--output-dir", str(tmp_path / "out")]) == 0
    assert "calibrated on NVIDIA H200 (2026-01-02, sdar-8b)" in capsys.readouterr().out
    results = load_folder(tmp_path / "out").results
    assert [r.hardware for r in results] == ["h200", "h200"]
    for result in results:
        assert result.settings["for device"] == "NVIDIA H200"
        assert result.settings["domain"] in ("calibrated", "interpolated")
        assert intervals_in(result.settings)["e2e_p99_s"].low > 0.0
    assert main([*flags, "--gpu", str(file), "--output-dir", str(tmp_path / "again")]) == 0
    again = load_folder(tmp_path / "again").results
    assert [r.metrics for r in again] == [r.metrics for r in results]


@pytest.mark.parametrize("name", ["llada2-mini", "sdar-30b-a3b"])
def test_simulate_takes_a_profile_of_a_model_with_experts(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = tmp_path / "ours.json"
    save_gpu_calibration(calibration_of(PRESETS[name]), file)
    flags = ["simulate", "--model", name, "--dataset", "synthetic", "--num-prompts", "6"]
    flags += ["--max-new-tokens", "16", "--batch-size", "4", "--policy", "baseline,focus"]
    assert main([*flags, "--profile", str(file), "--output-dir", str(tmp_path / "out")]) == 0
    assert f"calibrated on NVIDIA H200 (2026-01-02, {name})" in capsys.readouterr().out
    results = load_folder(tmp_path / "out").results
    assert [r.settings["domain"] for r in results] == ["interpolated"] * 2
    for result in results:
        assert intervals_in(result.settings)["e2e_p99_s"].low > 0.0
    # The same from the cache, which is no use for a dense model.
    profiles_folder().mkdir(parents=True)
    file.rename(profiles_folder() / "h200_operations.json")
    assert main([*flags, "--gpu", "h200", "--output-dir", str(tmp_path / "again")]) == 0
    again = load_folder(tmp_path / "again").results
    assert [r.metrics for r in again] == [r.metrics for r in results]
    dense = find_target("h200", make_point().engine).operations
    assert dense is not None
    assert dense.calibration.model == "sdar-8b"


def test_a_gpu_is_predicted_from_what_was_measured_there_else_from_another(
    cache: Path, calibration: GpuCalibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    point, workload = make_point(), make_workload(5)
    packaged = find_target("h200", point.engine)
    assert packaged.operations is not None
    assert packaged.operations.calibration.date == load_gpu_calibration(H200).date
    with monkeypatch.context() as patched:
        patched.setattr("focus_bench.sim.calibration.bundled_profiles", dict)
        assert find_target("h200", point.engine).operations is None
    profiles_folder().mkdir(parents=True)
    save_gpu_calibration(calibration, profiles_folder() / "h200_operations.json")
    own = find_target("h200", point.engine)
    assert own.operations is not None
    assert (own.name, own.label) == ("h200", "calibrated on NVIDIA H200 (2026-01-02, sdar-8b)")
    other = find_target("a100-sxm4-80g", point.engine)
    assert other.name == "a100-sxm4-80g"
    assert "efficiencies carried over to NVIDIA A100-SXM4-80GB" in other.label
    records = [target.predict(point, workload, interval=True) for target in (own, other)]
    assert records[1].duration_s > records[0].duration_s
    assert [r.settings["domain"] for r in records] == ["interpolated", "extrapolated"]
    widths = [
        interval.high / interval.low
        for r in records
        for name, interval in intervals_in(r.settings).items()
        if name == "output_throughput"
    ]
    assert widths[1] > widths[0]
    # No model with experts was measured: its roofline, and it says so.
    experts = make_point(engine=EngineConfig(model="llada2-mini", load_format="dummy"))
    notes = own.predict(experts, make_workload(2)).notes
    assert any("uncalibrated datasheet roofline" in note for note in notes)


def test_pages_are_as_many_as_the_engine_makes(tmp_path: Path, calibration: GpuCalibration) -> None:
    save_gpu_calibration(calibration, tmp_path / "ours.json")
    target = target_of_file(tmp_path / "ours.json")
    # Four of 140 tokens: 5 blocks of 32 each, 3 pages of 64.
    assert target.predict(make_point(), make_workload(9)).num_pages == 12
    few = make_point(scheduler=SchedulerConfig(batch_size=4, num_pages=7))
    record = target.predict(few, make_workload(9))
    assert record.num_pages == 7
    assert sum(r.preemptions or 0 for r in record.requests) > 0
    assert {r.finish_reason for r in record.requests} == {"length"}


def sample_of(row: dict[str, str]) -> Sample:
    return Sample(
        curve=row["curve"],
        point=tuple(int(value) for value in row["point"].split("x")),
        round=int(row["round"]),
        sample=int(row["sample"]),
        seconds=float(row["seconds"]),
    )


def test_the_packaged_profile_can_be_believed(capsys: pytest.CaptureFixture[str]) -> None:
    """Its samples give its curves again, and it is of what it says."""
    assert main(["calibrate", "--check", str(H200)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "NVIDIA H200" in shown
    assert "sdar-8b (bfloat16)" in shown
    with H200.with_name(f"{H200.stem}_samples.csv").open(newline="") as file:
        again = curves_of([sample_of(row) for row in csv.DictReader(file)])
    packaged = load_gpu_calibration(H200).curves
    assert again.keys() == packaged.keys()
    for name, curve in packaged.items():
        assert curve.seconds == pytest.approx(again[name].seconds, rel=1e-4)


@pytest.mark.parametrize("value", [float("nan"), None, -1e-5, 0, True, "1e-5"])
def test_a_damaged_profile_predicts_nothing(
    tmp_path: Path,
    cache: Path,
    calibration: GpuCalibration,
    capsys: pytest.CaptureFixture[str],
    value: object,
) -> None:
    """A file is refused; in the cache it is named and passed over."""
    file = tmp_path / "ours.json"
    damaged = json.loads(json.dumps(to_json(calibration)))
    damaged["curves"]["qkv"]["seconds"][2] = value
    file.write_text(json.dumps(damaged))
    flags = ["simulate", "--model", "sdar-8b", "--dataset", "synthetic", "--num-prompts", "2"]
    flags += ["--max-new-tokens", "8", "--batch-size", "2", "--policy", "baseline"]
    for flag in ("--profile", "--gpu"):
        assert main([*flags, flag, str(file), "--output-dir", str(tmp_path / "out")]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert f"{flag} profile {file} curves qkv seconds[2]: " in err
    profiles_folder().mkdir(parents=True)
    file = file.rename(profiles_folder() / "h200_operations.json")
    assert main([*flags, "--gpu", "h200", "--output-dir", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert err.count(f"ignored {file}: profile {file} curves qkv seconds[2]: ") == 1
    assert "(2026-01-02, sdar-8b)" not in out


def test_two_names_of_one_gpu_are_refused(
    tmp_path: Path, calibration: GpuCalibration, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results are kept by the GPU: the second would be taken for done."""
    file = tmp_path / "slow.json"
    save_gpu_calibration(calibration, file)
    flags = ["simulate", "--model", "sdar-8b", "--dataset", "synthetic", "--num-prompts", "2"]
    flags += ["--policy", "baseline", "--output-dir", str(tmp_path / "out")]
    for more in ([], ["--dry-run"], ["--what-if"]):
        assert main([*flags, *more, "--gpu", f"{file},b200,h200"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err == (
            f"focus-bench: error: --gpu: '{file} and h200' is not usable; allowed: one of them: "
            "both predict for h200\n"
        )
    assert not (tmp_path / "out").exists()


def test_resume_predicts_anew_from_a_profile_that_was_measured_anew(
    tmp_path: Path, calibration: GpuCalibration, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under another label, or the same with other figures; nothing else is predicted again."""
    file, folder = tmp_path / "ours.json", tmp_path / "out"
    flags = ["simulate", "--model", "sdar-8b", "--dataset", "synthetic", "--num-prompts", "3"]
    flags += ["--max-new-tokens", "8", "--batch-size", "2", "--policy", "baseline,focus"]
    flags += ["--profile", str(file), "--output-dir", str(folder)]

    def resumed() -> tuple[str, list[float]]:
        assert main([*flags, "--resume"]) == 0
        results = load_folder(folder).results
        assert len(results) == 2
        return capsys.readouterr().err, [r.metrics.output_throughput or 0.0 for r in results]

    save_gpu_calibration(calibration, file)
    assert main(flags) == 0
    capsys.readouterr()
    first = load_folder(folder).results
    again, before = resumed()
    assert again.count("finished before, skipped") == 2
    assert "anew" not in again
    assert load_folder(folder).results == first
    slower = {
        name: dataclasses.replace(curve, seconds=4.0 * curve.seconds)
        for name, curve in calibration.curves.items()
    }
    for date in ("2026-03-04", calibration.date):  # the second time only the figures are others
        save_gpu_calibration(dataclasses.replace(calibration, curves=slower, date=date), file)
        assert main([*flags, "--resume", "--dry-run"]) == 0
        assert "finished" not in capsys.readouterr().out
        shown, after = resumed()
        assert shown.count("2 of 2 points on h200 were predicted from other costs (") == 1
        assert f"; predicted anew: calibrated on NVIDIA H200 ({date}, sdar-8b)\n" in shown
        assert "skipped" not in shown
        assert all(new < old for new, old in zip(after, before, strict=True))
        save_gpu_calibration(calibration, file)
        assert resumed()[1] == before


def test_pages_of_another_size_than_measured_are_named(
    tmp_path: Path, calibration: GpuCalibration, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ours.json"
    save_gpu_calibration(calibration, file)
    flags = ["simulate", "--model", "sdar-8b", "--dataset", "synthetic", "--num-prompts", "2"]
    flags += ["--max-new-tokens", "8", "--batch-size", "2", "--policy", "baseline"]
    line = "measured with --page-size 64, not 16"
    for flag in ("--profile", "--gpu"):
        for size, is_named in (("16", True), ("64", False)):
            folder = tmp_path / f"{flag}-{size}"
            command = [*flags, flag, str(file), "--page-size", size, "--output-dir", str(folder)]
            assert main(command) == 0
            assert (line in " ".join(capsys.readouterr().out.split())) == is_named
            assert (line in load_folder(folder).results[0].notes) == is_named
    # A data sheet's roofline, for a model of another kind, was measured with none.
    target = target_of_file(file)
    few = SchedulerConfig(batch_size=4, page_size=16)
    experts = make_point(
        scheduler=few, engine=EngineConfig(model="llada2-mini", load_format="dummy")
    )
    assert line in target.predict(make_point(scheduler=few), make_workload(2)).notes
    assert line not in target.predict(experts, make_workload(2)).notes


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ([], "--gpu: 'not given, so cpu' is not usable; allowed: a data sheet (a100-sxm4-80g, "),
        (["--gpu", "h200,cpu"], "--gpu: 'cpu' is not usable; allowed: a data sheet (a100-"),
        (["--profile", str(bundled_profiles()["cpu"])], "cpu.json' is not usable; allowed: a data"),
        (["--dry-run"], "--gpu: 'not given, so cpu' is not usable; allowed: a data sheet (a100-"),
    ],
)
def test_a_cpu_that_tells_nothing_of_experts_is_said_once_before_anything_is_run(
    flag: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["simulate", "--model", "llada2-mini", *flag, "--output-dir", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert ", b200), or a profile measured on llada2-mini" in line
    assert not out.exists()
