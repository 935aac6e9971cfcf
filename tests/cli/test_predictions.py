"""Predictions beside measurements: run, calibrate, compare, and simulate on what was calibrated."""

import csv
from pathlib import Path
from typing import NoReturn

import pytest

from focus_bench.api import compare
from focus_bench.api.engine import Engine
from focus_bench.cli.main import main
from focus_bench.core.calibration import CalibrationSamples
from focus_bench.core.intervals import intervals_in
from focus_bench.report.folder import load_folder
from focus_bench.sim.calibration import load_profile

REQUESTS = ["--dataset", "synthetic", "--num-prompts", "3", "--max-new-tokens", "8"]
REQUESTS += ["--model", "dummy-tiny"]
RUN = ["run", *REQUESTS, "--num-warmups", "0", "--batch-size", "2", "--device", "cpu"]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, samples: CalibrationSamples) -> list[float]:
    """Replaces the measuring of steps; lists the seconds that were asked for."""
    asked: list[float] = []

    def measure_steps(self: Engine, *, seconds: float) -> CalibrationSamples:
        asked.append(seconds)
        return samples

    monkeypatch.setattr(Engine, "measure_steps", measure_steps)
    return asked


def rows(folder: Path) -> list[dict[str, str]]:
    """summary.csv as dictionaries."""
    with (folder / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_run_calibrates_once_and_predicts_every_point(
    tmp_path: Path, cache: Path, measured: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = [*RUN, "--policy", "baseline,focus", "--output-dir", str(folder)]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "no cost profile of dummy-tiny on cpu yet" in err
    assert measured == [15.0]
    assert len(list((cache / "focus-bench" / "profiles").iterdir())) == 1
    assert "calibrated on cpu" in out
    sources = [(row["policy"], row["source"]) for row in rows(folder)]
    assert sources == [
        (policy, source) for policy in ("baseline", "focus") for source in ("measured", "predicted")
    ]
    for one, other in zip(rows(folder)[::2], rows(folder)[1::2], strict=True):
        assert one["point_hash"] == other["point_hash"]
        for name in ("processed_per_decoded", "tokens_per_step", "total_output_tokens"):
            assert one[name] == other[name]
    before = (folder / "summary.csv").read_text()
    assert main([*arguments, "--resume"]) == 0
    assert (folder / "summary.csv").read_text() == before
    # A kill between a measurement and its prediction: --resume predicts without measuring again.
    predicted = [f for f in (folder / "points").iterdir() if '"predicted"' in f.read_text()]
    predicted[0].unlink()
    assert main([*arguments, "--resume"]) == 0
    assert "finished before, predicted" in capsys.readouterr().err
    assert sorted((folder / "summary.csv").read_text().splitlines()) == sorted(before.splitlines())
    again = [*RUN, "--policy", "focus", "--output-dir", str(tmp_path / "again")]
    assert main(again) == 0
    assert "calibrating" not in capsys.readouterr().err
    assert measured == [15.0]


def test_a_run_in_which_the_model_decides_is_predicted_from_its_trace(
    tmp_path: Path, measured: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    model_decides = ["--acceptance", "confidence", "--importance", "model", "--threshold", "0.01"]
    arguments = [*RUN, *model_decides, "--policy", "focus", "--output-dir", str(folder)]
    assert main(arguments) == 0
    one, other = rows(folder)
    assert (one["source"], other["source"]) == ("measured", "predicted")
    for name in ("processed_per_decoded", "tokens_per_step", "retained_fraction"):
        assert one[name] == other[name]
    assert "replay" in other["notes"]
    capsys.readouterr()
    assert main(["compare", str(folder)]) == 0
    assert "not predicted" not in capsys.readouterr().out
    (trace,) = (folder / "traces").iterdir()
    trace.unlink()
    assert main(["compare", str(folder)]) == 2  # nothing is left to compare
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"result folder: '{folder}' is not usable" in err
    assert main([*arguments, "--alpha", "2", "--resume"]) == 0
    capsys.readouterr()
    assert main(["compare", str(folder)]) == 0
    assert capsys.readouterr().out.count(f"not predicted: point {one['point_hash']}") == 1


def test_a_point_that_cannot_be_predicted_keeps_its_measurement(
    tmp_path: Path, measured: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, traces = tmp_path / "out", tmp_path / "traces"
    base = [*RUN, "--policy", "focus", "--no-predict"]
    first = [*base, "--output-dir", str(folder), "--decode-trace", str(traces)]
    assert main([*first, "--quiet"]) == 0
    (file,) = traces.iterdir()
    # A trace of another alpha gives the counts only, so the model ranks, which is not simulated.
    other = [*RUN, "--policy", "focus", "--alpha", "1.25", "--importance", "model"]
    other += ["--acceptance", f"replay:{file}", "--output-dir", str(tmp_path / "other")]
    assert main(other) == 0
    assert "not predicted: --importance" in capsys.readouterr().err
    assert [row["source"] for row in rows(tmp_path / "other")] == ["measured"]


def test_a_prediction_that_breaks_is_named_and_not_its_measurement(
    tmp_path: Path,
    measured: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise MemoryError("no room")

    folder = tmp_path / "out"
    arguments = [*RUN, "--policy", "focus", "--output-dir", str(folder)]
    with monkeypatch.context() as patch:
        patch.setattr("focus_bench.api.prediction.Target.predict", broken)
        assert main(arguments) == 1
    out, err = capsys.readouterr()
    one, other = rows(folder)
    assert (one["source"], one["state"]) == ("measured", "finished")
    assert (other["source"], other["state"]) == ("predicted", "failed")
    assert other["failure"] == "out of memory: no room"
    assert "predicted focus, batch 2" in out.partition("failed points")[2]
    line = f"point {one['point_hash']} (predicted focus, batch 2, on {other['hardware']}): out of"
    assert f"focus-bench: failed: {line}" in err
    assert "(measured" not in err
    assert main([*arguments, "--resume"]) == 0
    assert [row["state"] for row in rows(folder)] == ["finished", "finished"]


def test_compare_names_the_side_whose_requests_failed(
    tmp_path: Path,
    measured: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, file = tmp_path / "out", tmp_path / "compared.csv"
    monkeypatch.setenv("COLUMNS", "120")
    assert main([*RUN, "--policy", "focus", "--output-dir", str(folder)]) == 0
    monkeypatch.setattr("focus_bench.api.prediction.pages_wanted", lambda *_: 1)
    capsys.readouterr()
    assert main(["compare", str(folder), "--csv", str(file)]) == 0
    out = capsys.readouterr().out
    assert "failed requests\npredicted focus, batch 2, B 32: " in out
    assert "measured focus" not in out
    with file.open(newline="") as text:
        failed = {
            (row["measured_failed_requests"], row["predicted_failed_requests"])
            for row in csv.DictReader(text)
        }
    assert failed == {("0", "1")}


def test_calibrate_writes_a_profile_that_simulate_and_compare_use(
    tmp_path: Path, measured: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.json"
    assert (
        main(
            [
                "calibrate",
                "--model",
                "dummy-tiny",
                "--device",
                "cpu",
                "--seconds",
                "3",
                "--output",
                str(file),
            ]
        )
        == 0
    )
    assert measured == [3.0]
    assert "error of the fit" in capsys.readouterr().out
    assert load_profile(file).name == "local-cpu"

    simulated = tmp_path / "simulated"
    point = ["--policy", "focus", "--batch-size", "2"]
    arguments = ["simulate", *REQUESTS, *point, "--output-dir", str(simulated)]
    assert main([*arguments, "--profile", str(file)]) == 0
    (row,) = rows(simulated)
    assert row["hardware"] == "local-cpu"
    assert "calibrated on cpu (local-cpu, 2026-01-01, dummy-tiny)" in row["notes"]
    assert main([*arguments, "--profile", str(file), "--gpu", "h200"]) == 2
    assert "--profile or --gpu, not both" in capsys.readouterr().err

    run = tmp_path / "run"
    assert main([*RUN, "--policy", "focus", "--profile", str(file), "--output-dir", str(run)]) == 0
    assert measured == [3.0]
    figures = tmp_path / "figures.csv"
    capsys.readouterr()
    assert main(["compare", str(run), "--gpu", str(file), "--csv", str(figures)]) == 0
    assert "error of the prediction in percent" in capsys.readouterr().out
    with figures.open(newline="") as stream:
        compared = {line["figure"]: line for line in csv.DictReader(stream)}
    stored = {r.source: r.metrics for r in load_folder(run).results}
    throughput = compared["output_throughput"]
    assert float(throughput["measured"]) == stored["measured"].output_throughput
    assert float(throughput["predicted"]) == stored["predicted"].output_throughput
    assert float(compared["tokens_per_step"]["error_percent"]) == 0.0


def test_simulate_takes_this_machines_profile_by_default(
    tmp_path: Path, measured: list[float]
) -> None:
    assert main(["calibrate", "--model", "dummy-tiny", "--device", "cpu"]) == 0
    folder = tmp_path / "out"
    arguments = ["simulate", *REQUESTS, "--policy", "focus", "--batch-size", "2", "--quiet"]
    assert main([*arguments, "--model", "dummy-tiny,sdar-1.7b", "--output-dir", str(folder)]) == 0
    own, foreign = rows(folder)
    assert "extrapolated" not in own["notes"]
    assert "extrapolated to sdar-1.7b" in foreign["notes"]


@pytest.mark.parametrize("text", ["", "{}", '{"schema_version": 0}'])
def test_a_broken_profile_is_named_or_made_anew(
    text: str,
    tmp_path: Path,
    cache: Path,
    measured: list[float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "broken.json"
    file.write_text(text)
    assert main([*RUN, "--policy", "focus", "--profile", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
    assert main(["calibrate", "--model", "dummy-tiny", "--device", "cpu"]) == 0
    (kept,) = (cache / "focus-bench" / "profiles").iterdir()
    kept.write_text(text)
    arguments = [*RUN, "--policy", "focus", "--output-dir", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert "calibrating" in capsys.readouterr().err
    assert load_profile(kept).name == "local-cpu"


def test_data_that_changed_since_are_not_compared(
    tmp_path: Path, measured: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    turns = '[{"from": "human", "value": "question"}, {"from": "gpt", "value": "answer"}]'
    data = tmp_path / "data.jsonl"
    data.write_text(f'{{"conversations": {turns}}}\n' * 3)
    folder = tmp_path / "out"
    arguments = [*RUN, "--policy", "focus", "--output-dir", str(folder), "--quiet"]
    arguments[arguments.index("synthetic")] = "sharegpt"
    assert main([*arguments, "--dataset-path", str(data)]) == 0
    data.write_text(f'{{"conversations": {turns}}}\n' * 4)
    assert main(["compare", str(folder)]) == 2
    assert "SHA-256" in capsys.readouterr().err


def test_compare_judges_fixed_points_and_names_causes(
    tmp_path: Path,
    cache: Path,
    measured: list[float],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "out"
    arguments = [*RUN, "--policy", "baseline,focus", "--output-dir", str(folder)]
    assert main([*arguments, "--num-runs", "2", "--predict"]) == 0
    capsys.readouterr()
    points, figures, plot = (tmp_path / name for name in ("p.json", "f.csv", "plot.svg"))
    points.write_text('{"points": [{"decode.policy": "focus", "scheduler.batch_size": 2}]}')
    flags = ["--points", str(points), "--csv", str(figures), "--plot", str(plot)]
    assert main(["compare", str(folder), *flags]) == 0
    out = capsys.readouterr().out
    assert "causes of the error of throughput" in out
    assert "1 points:" in out
    assert plot.read_text().startswith("<?xml")
    with figures.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert {line["policy"] for line in lines} == {"focus"}
    by_name = {line["figure"]: line for line in lines}
    throughput = by_name["output_throughput"]
    assert float(throughput["interval_low"]) < float(throughput["predicted"])
    assert float(throughput["predicted"]) < float(throughput["interval_high"])
    assert {"e2e_p90_s", "e2e_p99_s", "ttft_p99_s", "tpot_p90_s"} <= by_name.keys()
    # With the run's seed the simulator takes the very steps: most of the error is in their cost.
    rows_of_causes = out[out.index("causes of the error") :].splitlines()
    (row,) = (line.split() for line in rows_of_causes if line.startswith("focus"))
    cost, blocks, scheduling, total = (1.0 + float(cell) / 100.0 for cell in row[3:7])
    assert blocks == 1.0
    assert cost == pytest.approx(total, rel=0.2)
    assert cost * scheduling == pytest.approx(total, rel=0.01)
    points.write_text('{"points": [{"decode.policy": "ideal"}]}')
    assert main(["compare", str(folder), "--points", str(points)]) == 2
    assert "decode.policy ideal" in capsys.readouterr().err
    assert main(["compare", str(folder), "--plot", str(tmp_path / "plot.txt")]) == 2
    assert "NAME.svg" in capsys.readouterr().err


def figures(file: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Lines of compare --csv by (seed, figure)."""
    with file.open(newline="") as stream:
        return {(line["seed"], line["figure"]): line for line in csv.DictReader(stream)}


def test_compare_with_a_seed_predicts_a_point_once_for_all_its_measured_seeds(
    tmp_path: Path,
    measured: list[float],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder, own, other = tmp_path / "out", tmp_path / "own.csv", tmp_path / "other.csv"
    sizes = ["--num-prompts", "12", "--max-new-tokens", "24", "--request-rate", "2000"]
    point = ["--policy", "focus", "--threshold", "0.9"]
    arguments = [*RUN, *sizes, *point, "--no-predict", "--output-dir", str(folder), "--quiet"]
    for seed in ("1", "2"):
        assert main([*arguments, "--seed", seed, "--resume"]) == 0
    assert main(["calibrate", "--model", "dummy-tiny", "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main(["compare", str(folder), "--csv", str(own)]) == 0
    shown = capsys.readouterr().out
    assert "predicted with each run's own seed; intervals allow for costs\n" in shown
    assert main(["compare", str(folder), "--seed", "7", "--csv", str(other)]) == 0
    shown_other = capsys.readouterr().out
    assert "predicted with seed 7; intervals allow for costs and other seeds\n" in shown_other
    for text in (shown, shown_other):
        assert "error of the prediction in percent: 100 * (predicted - measured)" in text
        assert "points, mean over seeds" in text
    pairs = compare(folder, seed=7)
    assert [(p.measured.point.seed, p.predicted.point.seed) for p in pairs] == [(1, 7), (2, 7)]
    ours, theirs = figures(own), figures(other)
    assert ours.keys() == theirs.keys()
    assert {seed for seed, _ in ours} == {"1", "2"}
    simulated = tmp_path / "simulated"
    arguments = ["simulate", *REQUESTS, *sizes, *point, "--batch-size", "2", "--seed", "7"]
    assert main([*arguments, "--quiet", "--output-dir", str(simulated)]) == 0
    (result,) = load_folder(simulated).results
    intervals = intervals_in(result.settings)
    for (seed, name), line in theirs.items():
        same = ours[seed, name]
        assert line["measured"] == same["measured"]
        assert (line["predicted_seed"], same["predicted_seed"]) == ("7", seed)
        assert line["predicted"] == theirs["1", name]["predicted"]
        if name not in intervals:
            continue
        assert (line["interval_covers"], same["interval_covers"]) == (
            "costs and other seeds",
            "costs",
        )
        # What simulate says of this seed, whichever seed was measured.
        assert float(line["interval_low"]) == intervals[name].low
        assert float(line["interval_high"]) == intervals[name].high
    assert float(theirs["1", "output_throughput"]["predicted"]) == result.metrics.output_throughput
    # Of its own seed each run decodes what was predicted, of another one not.
    for seed in ("1", "2"):
        key = (seed, "processed_per_decoded")
        assert float(ours[key]["error_percent"]) == 0.0
        assert float(theirs[key]["error_percent"]) != 0.0
    assert ours["1", "e2e_p50_s"]["predicted"] != ours["2", "e2e_p50_s"]["predicted"]

    def spread(line: dict[str, str]) -> float:
        return float(line["interval_high"]) / float(line["interval_low"])

    assert spread(ours["1", "e2e_p50_s"]) < spread(theirs["1", "e2e_p50_s"])
    # Every measured run has its causes, against the one prediction.
    causes = shown_other[shown_other.index("causes of the error") :].splitlines()
    found = [line.split() for line in causes if line.startswith("focus")]
    assert len({row[2] for row in found}) == len(found) == 2


def test_compare_with_a_seed_knows_nothing_of_what_a_model_decided(
    tmp_path: Path, measured: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = [*RUN, "--policy", "focus", "--output-dir", str(folder), "--quiet", "--no-predict"]
    model_decides = ["--acceptance", "confidence", "--importance", "model", "--threshold", "0.01"]
    assert main([*arguments, *model_decides]) == 0
    assert main(["calibrate", "--model", "dummy-tiny", "--device", "cpu"]) == 0
    capsys.readouterr()
    assert main(["compare", str(folder), "--seed", "3"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "that can be predicted with --seed 3: one with synthetic" in err
    assert main([*arguments, "--resume"]) == 0
    capsys.readouterr()
    assert main(["compare", str(folder), "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert out.count("where the model decided and a decode trace is of its own seed only") == 1
    assert main(["compare", str(folder), "--seed", "-1"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--seed: -1 is not usable" in err


def test_a_trace_of_too_few_requests_is_one_line_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, out = tmp_path / "traces", tmp_path / "out"
    arguments = [*RUN, "--policy", "baseline", "--no-predict", "--output-dir", str(out), "--quiet"]
    assert main([*arguments, "--decode-trace", str(traces)]) == 0
    (trace,) = traces.iterdir()
    capsys.readouterr()
    arguments = ["simulate", *REQUESTS, "--policy", "baseline", "--batch-size", "2"]
    arguments += ["--acceptance", f"replay:{trace}", "--num-prompts", "9"]
    assert main([*arguments, "--output-dir", str(tmp_path / "other")]) == 2
    shown = capsys.readouterr()
    assert shown.err == (
        "focus-bench: error: --num-prompts: 9 is not usable; allowed: at most 3, the requests that "
        f"{trace} holds\n"
    )
    assert shown.out == ""
    assert not (tmp_path / "other").exists()
