"""--dry-run: predicted times and memory of every point, in seconds and without running anything."""

import dataclasses
import re
from pathlib import Path

import pytest

from focus_bench.api import load_workload, make_point, operations, simulate
from focus_bench.api.estimates import estimate_point, estimate_time, target_of_device
from focus_bench.api.prediction import find_target
from focus_bench.cli.main import main
from focus_bench.core.config import EngineConfig
from focus_bench.report.estimates import DOES_NOT_FIT, FEWER_PAGES, FITS

COMMAND = ["simulate", "--gpu", "h200", "--dataset", "synthetic", "--model", "sdar-8b"]
COMMAND += ["--num-prompts", "16", "--max-new-tokens", "64", "--policy", "focus"]
COMMAND += ["--batch-size", "8"]


def point_of(policy: str, **changes: object):  # type: ignore[no-untyped-def]
    return make_point(model="sdar-8b", dataset="synthetic", policy=policy, **changes)  # type: ignore[arg-type]


def test_a_whole_estimate_is_the_prediction() -> None:
    point = point_of("focus", num_prompts=8, batch_size=4, max_new_tokens=32)
    workload = load_workload(point)
    target = find_target("h200", point.engine)
    estimate = estimate_time(point, workload, target, max_steps=10_000)
    assert estimate is not None
    assert estimate.is_whole
    assert estimate.seconds == simulate(point, workload, hardware="h200").duration_s


@pytest.mark.parametrize("policy", ["baseline", "focus"])
@pytest.mark.parametrize("batch_size", [8, 32])
def test_an_estimate_from_the_first_steps_is_near_the_prediction(
    policy: str, batch_size: int
) -> None:
    point = point_of(policy, num_prompts=128, batch_size=batch_size, max_new_tokens=128)
    workload = load_workload(point)
    target = find_target("h200", point.engine)
    estimate = estimate_time(point, workload, target, max_steps=60)
    assert estimate is not None
    assert not estimate.is_whole
    whole = simulate(point, workload, hardware="h200").duration_s
    assert estimate.seconds == pytest.approx(whole, rel=0.25)


def test_a_slow_arrival_takes_as_long_as_it_takes() -> None:
    point = point_of("baseline", num_prompts=64, batch_size=8, max_new_tokens=64)
    slow = dataclasses.replace(
        point, workload=dataclasses.replace(point.workload, request_rate=0.5)
    )
    target = find_target("h200", point.engine)
    workload = load_workload(slow)
    estimate = estimate_time(slow, workload, target, max_steps=60)
    assert estimate is not None
    assert estimate.seconds >= max(request.arrival_s for request in workload.requests) > 60


def test_memory_is_weights_pages_and_what_a_step_makes() -> None:
    """By hand: SDAR-8B has 8.19e9 16-bit parameters and 36 layers of 8 KV heads of 128."""
    point = point_of("baseline", num_prompts=4, batch_size=2, max_new_tokens=32)
    workload = load_workload(point)
    target = find_target("h200", point.engine)
    estimate = estimate_point(point, workload, target, max_steps=1)
    assert estimate.weight_bytes == pytest.approx(2 * 8.19e9, rel=0.01)
    tokens = sorted(r.num_prompt_tokens + (r.reply_tokens or 32) for r in workload.requests)
    assert estimate.kv_pages is not None
    assert estimate.kv_bytes == estimate.kv_pages * 64 * 2 * 36 * 8 * 128 * 2
    # Two requests at once, in whole blocks of 32 and pages of 64.
    assert estimate.kv_pages <= sum(-(-(-(-t // 32) * 32) // 64) for t in tokens[-2:])
    fed = max(2 * 32, sum(r.num_prompt_tokens for r in workload.requests))
    layer = fed * 2 * (2 * 4096 + 2 * (4096 + 1024) + 3 * 12288)
    assert estimate.activation_bytes == layer + 4 * 2 * 32 * 151_936
    assert estimate.total_bytes == (
        estimate.weight_bytes + estimate.kv_bytes + estimate.activation_bytes
    )


def test_what_does_not_fit_is_said_before_it_runs() -> None:
    point = point_of("baseline", num_prompts=4, batch_size=2, max_new_tokens=32)
    workload = load_workload(point)
    target = find_target("h200", point.engine)

    def fits(budget_bytes: int) -> str:
        estimate = estimate_point(point, workload, target, max_steps=1, budget_bytes=budget_bytes)
        return estimate.fits

    estimate = estimate_point(point, workload, target, max_steps=1)
    assert estimate.weight_bytes is not None
    assert estimate.kv_bytes is not None
    assert estimate.kv_pages is not None
    page = estimate.kv_bytes // estimate.kv_pages
    assert estimate.fits == ""
    assert fits(estimate.weight_bytes + estimate.kv_bytes) == FITS
    assert fits(estimate.weight_bytes + estimate.kv_bytes - 1) == FEWER_PAGES
    assert fits(estimate.weight_bytes + page) == FEWER_PAGES
    assert fits(estimate.weight_bytes + page - 1) == DOES_NOT_FIT


def test_a_known_gpu_is_predicted_and_an_unknown_one_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = EngineConfig(model="sdar-8b", load_format="dummy")
    for model in ("sdar-8b", "llada2-mini"):
        known = target_of_device("NVIDIA H200", dataclasses.replace(engine, model=model))
        assert known is not None
        assert known.label.startswith("calibrated on NVIDIA H200")
        assert model in known.label
    monkeypatch.setattr(operations, "operations_for", lambda *_: None)  # no profile of its kind
    roofline = target_of_device("NVIDIA H200", engine)
    assert roofline is not None
    assert roofline.label == "uncalibrated datasheet roofline (NVIDIA H200 SXM)"
    assert target_of_device("NVIDIA GeForce RTX 4090", engine) is None
    point = point_of("baseline", num_prompts=4, batch_size=2)
    estimate = estimate_point(point, load_workload(point), None, max_steps=9)
    assert estimate.seconds is None
    assert estimate.total_bytes is not None


def test_dry_run_shows_predicted_time_and_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert main([*COMMAND, "--dry-run", "--output-dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert not folder.exists()
    assert re.search(r"focus +8 +32 +\d+ ms +1\d\.\d+ GB +yes +16\.38 GB", out), out
    assert "predicted by: calibrated on NVIDIA H200" in out
    assert re.search(r"predicted time in all: \d+ ms\n", out)
    assert "~" not in out


def test_dry_run_of_run_predicts_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--model", "dummy-tiny", "--dataset", "synthetic", "--num-prompts", "2"]
    arguments += ["--device", "cpu", "--policy", "baseline", "--batch-size", "2", "--dry-run"]
    times = []
    for runs in ("1", "3"):
        assert main([*arguments, "--num-runs", runs]) == 0
        out = capsys.readouterr().out
        assert "predicted by: calibrated on cpu" in out
        ((value, unit),) = re.findall(r"predicted time in all: ([\d.]+) (\w+)", out)
        times.append(float(value) * {"s": 1.0, "ms": 1e-3}[unit])
    assert times[1] == pytest.approx(3 * times[0], rel=0.02)


def test_a_trained_model_that_nothing_was_fitted_on_has_no_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its own confidences decide how many steps there are."""
    arguments = ["run", "--model", "dummy-tiny", "--dataset", "synthetic", "--num-prompts", "2"]
    arguments += ["--device", "cpu", "--policy", "baseline", "--batch-size", "2", "--dry-run"]
    assert main([*arguments, "--acceptance", "confidence"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"baseline +2 +32 +- +\d", out), out
    assert "predicted time in all" not in out
    assert "predicted by" not in out


@pytest.mark.parametrize("predict", ["--predict", "--no-predict"])
def test_what_predicted_the_times_is_said_only_where_there_are_times(
    predict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--model", "dummy-tiny", "--dataset", "synthetic", "--num-prompts", "2"]
    arguments += ["--device", "cpu", "--policy", "baseline", "--batch-size", "2", "--dry-run"]
    assert main([*arguments, predict]) == 0
    out = capsys.readouterr().out
    assert out.count("predicted time in all") == out.count("predicted by: calibrated on cpu") == 1
    monkeypatch.setattr("focus_bench.engine.memory.memory_budget_bytes", lambda *_: 1000)
    assert main([*arguments, predict]) == 0
    out = capsys.readouterr().out
    assert re.search(r"baseline +2 +32 +- .* no ", out), out
    assert "predicted by" not in out


def test_data_that_are_not_here_leave_time_unknown_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*COMMAND, "--dataset-path", str(tmp_path / "nothing.json"), "--dry-run"]
    arguments[arguments.index("synthetic")] = "jsonl"
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert re.search(r"focus +8 +32 +- +- +16\.38 GB", out), out
    assert "time and KV memory unknown: " in out
    assert "nothing.json" in out


def test_resuming_a_folder_that_was_killed_before_its_first_file_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "points").mkdir()
    assert main([*COMMAND, "--dry-run", "--resume", "--output-dir", str(tmp_path)]) == 0
    assert "to do" in capsys.readouterr().out


def test_a_folder_of_another_schema_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text('{"schema_version": 1}')
    for arguments in (
        [*COMMAND, "--resume", "--output-dir", str(tmp_path)],
        [*COMMAND, "--resume", "--dry-run", "--output-dir", str(tmp_path)],
        ["report", str(tmp_path)],
    ):
        assert main(arguments) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "run.json schema_version: 1 is not usable; allowed: 2" in err
        assert "a new --output-dir" in err
