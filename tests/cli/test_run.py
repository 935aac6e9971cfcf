"""focus-bench run at the command level: what is measured, the same each time, on the CPU."""

import csv
import json
import math
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from focus_bench.cli.main import main
from focus_bench.core.config import POLICY_NAMES, UNMASKING_STRATEGIES
from focus_bench.core.cpu_waits import CpuWaits
from focus_bench.decoding.policies import POLICIES
from focus_bench.decoding.trace import DecodeTrace
from focus_bench.engine.device import BUSY_NOTE, busy_cores

BASE = ["run", "--dataset", "synthetic", "--num-prompts", "3", "--max-new-tokens", "8"]
BASE += ["--num-warmups", "0", "--no-predict", "--model", "dummy-tiny"]


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def rows(folder: Path) -> list[dict[str, str]]:
    """summary.csv as dictionaries."""
    with (folder / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_same_command_twice_gives_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = []
    for name, seed in (("first", "0"), ("second", "0"), ("third", "1")):
        folder = tmp_path / name
        arguments = [*BASE, "--batch-size", "2", "--seed", seed, "--output-dir", str(folder)]
        assert main(arguments) == 0
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err
        assert "\r" not in out + err
        assert "measured on cpu" in out
        assert "no GPU that PyTorch sees: on the CPU" in err
        assert "dummy weights" in out
        digests.append([row["output_digest"] for row in rows(folder)])
        manifest = json.loads((folder / "run.json").read_text())
        assert manifest["machine"]["device"] == "cpu"
        assert manifest["versions"]["torch"][0].isdigit()
    assert digests[0] == digests[1]
    assert all(digests[0])
    assert digests[0] != digests[2]


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_cuda_graphs_need_a_gpu_and_errors_come_before_notices(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    on = ["--cuda-graphs", "on", "--device", device]
    evaluation = ["eval", "--policy", "focus", "--num-problems", "1"]
    for command in (
        [*BASE, "--output-dir", str(folder)],
        evaluation,
        ["generate", "--prompt", "a"],
    ):
        assert main([*command, *on]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "--cuda-graphs: 'on' is not usable; allowed: auto, off on a CPU (" in line
    assert not folder.exists()
    (tmp_path / "file").write_text("")
    for wrong in (["--goodput", "x"], ["--output-dir", str(tmp_path)], ["--resume"]):
        assert main([*BASE, "--cuda-graphs", "off", "--device", device, *wrong]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"focus-bench: error: {wrong[0]}")


def test_throughput_counts_output_tokens_only(tmp_path: Path) -> None:
    """A prompt of 1,000 tokens and 10 tokens out: 10 count, and so do 32 of one step."""
    folder = tmp_path / "out"
    common = ["run", "--dataset", "random", "--random-input-len", "1000", "--num-prompts", "1"]
    common += ["--num-warmups", "0", "--no-predict", "--policy", "focus", "--batch-size", "1"]
    common += ["--model", "dummy-tiny", "--quiet", "--output-dir", str(folder)]
    assert main([*common, "--max-new-tokens", "10"]) == 0
    everything_at_once = ["--max-new-tokens", "32", "--acceptance", "synthetic:64", "--resume"]
    assert main([*common, *everything_at_once, "--policy", "baseline"]) == 0
    ten, whole = rows(folder)
    for row, tokens in ((ten, 10), (whole, 32)):
        assert row["total_output_tokens"] == str(tokens)
        assert row["total_input_tokens"] == "1000"
        throughput = float(row["output_throughput"])
        assert math.isclose(throughput, tokens / float(row["duration_s"]), rel_tol=1e-9)
    assert float(ten["tpot_count"]) == 1
    # 1,000 prompt tokens leave 24 masks in the first block of 32.
    assert float(whole["tokens_per_step"]) > 20


def test_one_output_token_has_no_time_per_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = [*BASE, "--policy", "focus", "--batch-size", "1", "--output-dir", str(folder)]
    arguments[arguments.index("8")] = "1"
    assert main(arguments) == 0
    (row,) = rows(folder)
    assert row["total_output_tokens"] == "3"
    assert row["tpot_p50_ms"] == ""
    assert " - " in capsys.readouterr().out


def test_repeated_runs_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = [*BASE, "--policy", "baseline", "--batch-size", "4", "--num-runs", "3", "--quiet"]
    assert main([*arguments, "--output-dir", str(folder)]) == 0
    (row,) = rows(folder)
    assert row["num_runs"] == "3"
    low, mean, high = (
        float(row[f"output_throughput_{name}"]) for name in ("ci95_low", "mean", "ci95_high")
    )
    assert low < mean < high


def test_points_kept_with_fewer_runs_than_asked_for_are_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    common = [*BASE, "--policy", "baseline,focus", "--batch-size", "2", "--resume"]
    common += ["--output-dir", str(folder)]
    assert main([*common, "--num-runs", "2", "--policy", "focus"]) == 0
    assert main(common) == 0  # the baseline once; focus was run more often than asked for
    assert "kept with" not in capsys.readouterr().err
    focus, baseline = (row["point_hash"] for row in rows(folder))
    before = (folder / "summary.csv").read_bytes()
    assert main([*common, "--num-runs", "3"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "kept with" in line]
    assert lines == [
        f"kept with 1 run: baseline batch 2 ({baseline}); kept with 2 runs: focus batch 2 ({focus})"
        f"; delete {folder}/points/HASH* or use another --output-dir to measure 3"
    ]
    assert (folder / "summary.csv").read_bytes() == before
    for file in (folder / "points").glob(f"{baseline}*"):
        file.unlink()
    assert main([*common, "--num-runs", "3", "--policy", "baseline"]) == 0
    assert "kept with" not in capsys.readouterr().err
    assert [row["num_runs"] for row in rows(folder)] == ["2", "3"]


@pytest.mark.parametrize(("load", "is_busy"), [(4.0, False), (4.1, True), (None, False)])
def test_a_busy_cpu_is_said_once_and_noted_at_every_point(
    load: float | None,
    is_busy: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loads() -> tuple[float, float, float]:
        if load is None:
            raise OSError
        return (load, 9.0, 9.0)

    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", loads)
    assert busy_cores("NVIDIA H200") == ""
    folder = tmp_path / "out"
    arguments = [*BASE, "--policy", "baseline,focus", "--batch-size", "2"]
    assert main([*arguments, "--output-dir", str(folder)]) == 0
    line = "other programs are using the cores (load 4.1 on 4): measurements are slower and "
    line += "predictions too fast"
    assert capsys.readouterr().err.splitlines().count(line) == is_busy
    assert [BUSY_NOTE in row["notes"] for row in rows(folder)] == [is_busy, is_busy]


@pytest.mark.parametrize(("waited", "load", "is_marked"), [(0.06, 0.0, True), (0.04, 99.0, False)])
def test_points_are_marked_by_what_happened_while_they_ran(
    waited: float,
    load: float,
    is_marked: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))  # of the minute before
    monkeypatch.setattr(CpuWaits, "longest_share_since", lambda self: waited)
    folder = tmp_path / "out"
    arguments = [*BASE, "--policy", "focus", "--batch-size", "2", "--quiet"]
    assert main([*arguments, "--output-dir", str(folder)]) == 0
    (row,) = rows(folder)
    assert (BUSY_NOTE in row["notes"]) == is_marked


def test_a_rate_that_the_driver_cannot_keep_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = [*BASE, "--policy", "focus", "--batch-size", "2", "--quiet"]
    assert main([*arguments, "--request-rate", "100000", "--output-dir", str(folder)]) == 0
    (row,) = rows(folder)
    assert float(row["requested_request_rate"]) == 1e5
    assert 0 < float(row["reached_request_rate"]) < 1e5


def test_every_pair_of_strategy_and_policy_runs_or_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runnable = [name for name in POLICY_NAMES if POLICIES[name].in_engine_run]
    folder = tmp_path / "out"
    arguments = [*BASE, "--batch-size", "2", "--quiet", "--acceptance", "confidence"]
    arguments += ["--policy", ",".join(runnable)]
    arguments += ["--unmasking-strategy", ",".join(UNMASKING_STRATEGIES), "--steps", "8"]
    assert main([*arguments, "--output-dir", str(folder)]) == 0
    ran = {(row["policy"], row["unmasking_strategy"]) for row in rows(folder)}
    assert ran == set(product(runnable, UNMASKING_STRATEGIES))
    assert {row["completed"] for row in rows(folder)} == {"3"}
    refused = [name for name in POLICY_NAMES if name not in runnable]
    assert refused == ["ideal"]
    for policy, strategy in product(refused, UNMASKING_STRATEGIES):
        pair = ["--policy", policy, "--unmasking-strategy", strategy]
        assert main([*BASE, "--acceptance", "confidence", *pair]) == 2
        assert f"--policy: '{policy}'" in capsys.readouterr().err
    assert main([*BASE, "--unmasking-strategy", "sequential"]) == 2
    assert "--acceptance synthetic, which replaces it" in capsys.readouterr().err


def test_a_decode_trace_is_written_and_replayed(tmp_path: Path) -> None:
    folder, traces = tmp_path / "out", tmp_path / "traces"
    common = [*BASE, "--policy", "focus", "--batch-size", "2", "--quiet"]
    first = [*common, "--output-dir", str(folder), "--decode-trace", str(traces)]
    assert main(first) == 0
    (row,) = rows(folder)
    (file,) = traces.iterdir()
    assert file.name == f"{row['point_hash']}.npz"
    trace = DecodeTrace.load(file)
    assert np.array_equal(trace.ended_request, [0, 1, 2])
    replayed = tmp_path / "replayed"
    second = [*common, "--acceptance", f"replay:{file}", "--output-dir", str(replayed)]
    assert main(second) == 0
    (again,) = rows(replayed)
    for name in ("processed_per_decoded", "tokens_per_step", "total_output_tokens"):
        assert again[name] == row[name]
    assert "replay" in again["labels"]
