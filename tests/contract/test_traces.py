"""Traces of a real engine's run and of its simulation: whole, consistent and of one structure."""

import dataclasses
import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from trace_checks import (
    COUNTERS,
    check_async,
    check_slices,
    check_steps,
    names_of,
    read_events,
    shape_of,
)

from focus_bench.api import Engine, load_workload, make_point
from focus_bench.cli.main import main
from focus_bench.core.config import PointConfig
from focus_bench.core.hardware import HARDWARE
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.records import EnvironmentSample, RunRecord
from focus_bench.report.folder import ResultFolder, load_folder
from focus_bench.report.manifest import new_manifest
from focus_bench.report.perfetto import TracedRun, trace_json
from focus_bench.report.results import result_of
from focus_bench.report.stored_records import load_records
from focus_bench.sim.roofline import RooflineModel
from focus_bench.sim.simulate import simulate_point

MODEL = "dummy-tiny"
STEP_PARTS = {"prefix", "eviction", "suffix", "head", "host"}


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def point() -> PointConfig:
    return make_point(
        model=MODEL, dataset="synthetic", num_prompts=5, batch_size=2, max_new_tokens=24
    )


@pytest.fixture(scope="module")
def measured(point: PointConfig) -> Iterator[RunRecord]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield Engine.for_point(point).run(point, load_workload(point))


@pytest.fixture(scope="module")
def predicted(point: PointConfig) -> RunRecord:
    model = RooflineModel(spec=PRESETS[MODEL], hardware=HARDWARE["h200"])
    workload = load_workload(point)
    return simulate_point(point, workload, PRESETS[MODEL], cost_model=model, num_pages=1000)


def test_both_runs_are_whole_and_consistent(measured: RunRecord, predicted: RunRecord):
    for run in (measured, predicted):
        assert len(run.steps) > 10
        events = read_events(trace_json([TracedRun.of(run)]))
        check_slices(events)
        check_async(events)
        check_steps(events, 1, run.steps)
        begun = [e["name"] for e in events if e["ph"] == "b"]
        for name in ("queued", "to first token", "streaming"):
            assert 0 < begun.count(name) <= len(run.requests)
        assert {f"request {r.request_id}" for r in run.requests} <= set(begun)
        assert "synthetic data (synthetic)" in {e["name"] for e in events if e["ph"] == "X"}
        (labels,) = {
            e["args"]["labels"]
            for e in events
            if e["name"] == "process_labels"  # of both processes
        }
        assert labels == "; ".join(run.notes)
    assert "dummy weights" in measured.notes


def test_measured_and_predicted_traces_have_one_structure(
    measured: RunRecord, predicted: RunRecord
):
    events = read_events(trace_json([TracedRun.of(measured), TracedRun.of(predicted)]))
    check_slices(events)
    check_async(events)
    check_steps(events, 1, measured.steps)
    check_steps(events, 3, predicted.steps)
    assert shape_of(events, 1) == shape_of(events, 3)
    assert shape_of(events, 1)["threads"] == ["rests on", "steps"]
    assert set(shape_of(events, 1)["counters"]) == COUNTERS.keys()
    for process in (1, 3):
        names = {e["name"] for e in events if e["pid"] == process and e.get("cat") == "phase"}
        assert {*STEP_PARTS, "prefill"} >= names >= STEP_PARTS
    assert list(names_of(events).values()) == [
        "measured on cpu",
        "requests, measured on cpu",
        f"predicted on {predicted.settings['device']}",
        f"requests, predicted on {predicted.settings['device']}",
    ]


def test_records_come_back_from_a_folder_as_they_were(
    point: PointConfig, measured: RunRecord, tmp_path: Path
):
    samples = tuple(
        EnvironmentSample(
            time_s=0.1 * i,
            sm_clock_mhz=1755,
            memory_clock_mhz=None,
            power_w=1 / 3,
            temperature_c=40 + i,
            energy_j=None,
            clock_reasons=reasons,
        )
        for i, reasons in enumerate([None, (), ("gpu_idle", "sw_power_cap")])
    )
    run = dataclasses.replace(measured, environment=samples)
    result = result_of(point, run, provenance=load_workload(point).provenance, hardware="cpu")
    with ResultFolder.create(tmp_path / "out", new_manifest((), command="run", seed=0)) as folder:
        folder.add_point(result, run)
    stored = load_records(tmp_path / "out", result)
    assert (stored.steps, stored.requests) == (run.steps, run.requests)
    assert stored.environment == samples


COMMON = ["--model", MODEL, "--dataset", "synthetic", "--num-prompts", "3"]
COMMON += ["--max-new-tokens", "8", "--batch-size", "2"]


def test_run_and_report_write_the_same_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file, again = tmp_path / "out", tmp_path / "t.json.gz", tmp_path / "b.json"
    arguments = ["run", *COMMON, "--policy", "focus", "--num-warmups", "0", "--no-predict"]
    arguments += ["--output-dir", str(folder), "--perfetto", str(file)]
    assert main(arguments) == 0
    assert f"trace: {file}" in capsys.readouterr().out.splitlines()
    assert main(["report", str(folder), "--perfetto", str(again)]) == 0
    text = gzip.decompress(file.read_bytes()).decode()
    assert text == again.read_text()
    events = read_events(text)
    (result,) = load_folder(folder).results
    check_steps(events, 1, load_records(folder, result).steps)
    assert names_of(events)[1, 0] == "measured on cpu: focus, batch 2, B 32"
    assert {"dummy weights", "synthetic data (synthetic)"} <= {
        e["name"] for e in events if e.get("cat") == "note"
    }


def test_several_points_get_a_file_each_and_one_point_holds_all_its_runs(tmp_path: Path) -> None:
    folder, file = tmp_path / "out", tmp_path / "t.json"
    arguments = ["simulate", *COMMON, "--gpu", "h200,b200", "--policy", "baseline,focus"]
    assert main([*arguments, "--output-dir", str(folder), "--perfetto", str(file), "--quiet"]) == 0
    results = load_folder(folder).results
    hashes = {result.point_hash for result in results}
    assert len(results) == 2 * len(hashes) == 4
    assert {path.name for path in tmp_path.glob("*.json")} == {f"t-{h}.json" for h in hashes}
    for point_hash in hashes:
        events = read_events((tmp_path / f"t-{point_hash}.json").read_text())
        check_async(events)
        titles = [name for (_, thread), name in names_of(events).items() if thread == 0]
        policy = next(r.point.decode.policy for r in results if r.point_hash == point_hash)
        for gpu in ("h200", "b200"):
            assert f"predicted on {gpu}: {policy}, batch 2, B 32" in titles


def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = ["simulate", *COMMON, "--gpu", "h200", "--output-dir", str(folder)]
    assert main([*arguments, "--perfetto", str(tmp_path)]) == 2
    assert "--perfetto" in capsys.readouterr().err
    assert not folder.exists()
