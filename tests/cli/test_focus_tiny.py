"""The bundled model at the command level: the default, its domain, its replays and predictions."""

import csv
import json
from pathlib import Path

import pytest

from focus_bench.api import Engine, load_workload, make_point, simulate
from focus_bench.api.prediction import with_fitted_dynamics
from focus_bench.cli.main import main
from focus_bench.workloads.tasks.generate import SCORED_FAMILIES, check, generate_many

OUT_OF_DOMAIN = "out of domain (focus-tiny knows only the bundled tasks, not {})"
TASKS = ["--dataset", "focus-tasks-problems", "--num-prompts", "4", "--max-new-tokens", "192"]


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def rows(folder: Path, name: str = "summary.csv") -> list[dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_default_model_solves_a_bundled_problem(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", "--no-stream", "--max-new-tokens", "224", "--policy", "baseline"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    (task,) = generate_many("test", 0, 0, 1, mix=SCORED_FAMILIES[0])
    head = f"prompt: {task.prompt}\n"
    assert out.startswith(head)
    assert check(task, out.removeprefix(head).strip())
    assert "; stop; focus-tiny knows only the kinds of the bundled tasks)" in err
    assert "random" not in err


def test_eval_scores_it_by_its_confidences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = ["eval", "--num-problems", "4", "--policy", "focus", "--output-dir", str(folder)]
    assert main(arguments) == 0
    (row,) = rows(folder, "quality.csv")
    assert row["model"] == "focus-tiny"
    assert (row["acceptance"], row["importance"]) == ("confidence", "model")
    assert float(row["score"]) >= 0.75
    out = capsys.readouterr().out
    assert "dummy weights" not in out
    assert "out of domain" not in out


def test_a_recorded_run_is_replayed_by_the_simulator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, traces, replayed = (tmp_path / name for name in ("run", "traces", "replayed"))
    point = [*TASKS, "--policy", "focus", "--batch-size", "2"]
    arguments = ["run", *point, "--no-predict", "--num-warmups", "0", "--quiet"]
    assert main([*arguments, "--decode-trace", str(traces), "--output-dir", str(run)]) == 0
    (trace,) = traces.iterdir()
    arguments = ["simulate", *point, "--acceptance", f"replay:{trace}"]
    assert main([*arguments, "--output-dir", str(replayed)]) == 0
    assert "replayed acceptance" in capsys.readouterr().out
    ((measured,), (predicted,)) = rows(run), rows(replayed)
    assert (measured["source"], predicted["source"]) == ("measured", "predicted")
    for name in (
        "completed",
        "total_output_tokens",
        "tokens_per_step",
        "processed_per_decoded",
        "retained_fraction",
    ):
        assert measured[name] == predicted[name], name
    for one, other in zip(rows(run, "requests.csv"), rows(replayed, "requests.csv"), strict=True):
        for name in ("output_tokens", "decode_steps", "commit_passes", "decoded_tokens"):
            assert one[name] == other[name], name
    assert "approximate" not in predicted["notes"]
    assert "out of domain" not in measured["labels"] + predicted["labels"]


def test_other_data_are_out_of_its_domain_and_long_prompts_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["hello there", "word " * 2000, "what is the time", "more " * 2000]
    turns = [[{"from": "human", "value": t}, {"from": "gpt", "value": "an answer"}] for t in texts]
    data = tmp_path / "chats.jsonl"
    data.write_text("".join(json.dumps({"conversations": t}) + "\n" for t in turns))
    common = ["--dataset-path", str(data), "--num-prompts", "2", "--max-new-tokens", "4"]
    common += ["--policy", "focus", "--batch-size", "2"]
    for command in (["run", "--no-predict", "--num-warmups", "0"], ["simulate"]):
        folder = tmp_path / command[0]
        assert main([*command, *common, "--output-dir", str(folder)]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert OUT_OF_DOMAIN.format("sharegpt") in out
        assert "2 of 3 rows used" in out
        assert "left out: 1 " in out
        (row,) = rows(folder)
        assert OUT_OF_DOMAIN.format("sharegpt") in row["labels"]


def test_simulate_draws_from_what_was_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    point = [*TASKS, "--policy", "baseline,focus", "--batch-size", "2"]
    assert main(["simulate", *point, "--output-dir", str(folder)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "fitted on focus-tiny traces" in out
    for row in rows(folder):
        assert row["acceptance"].startswith("synthetic:focus-tiny,scatter=")
        assert row["importance"].endswith(",fitted")
    assert main(["simulate", *point, "--acceptance", "confidence"]) == 2
    assert "no model to be confident" in capsys.readouterr().err


def test_engine_and_simulator_draw_the_same_from_the_dynamics() -> None:
    point = make_point(
        dataset="focus-tasks",
        acceptance="synthetic:focus-tiny",
        importance="synthetic",
        num_prompts=3,
        max_new_tokens=40,
        batch_size=2,
        device="cpu",
    )
    workload = load_workload(point)
    measured = Engine.for_point(point).run(point, workload)
    predicted = simulate(point, workload, hardware="h200")
    for one, other in zip(measured.steps, predicted.steps, strict=True):
        assert (one.fed_tokens, one.kept_tokens, one.decoded_tokens) == (
            other.fed_tokens,
            other.kept_tokens,
            other.decoded_tokens,
        )


def test_predictions_of_a_default_point_take_the_fitted_dynamics() -> None:
    point = make_point(dataset="focus-tasks-problems", num_prompts=2, max_new_tokens=32)
    assert point.acceptance.kind == "confidence"
    fitted = with_fitted_dynamics(point)
    assert fitted.acceptance.dynamics == "focus-tiny"
    assert with_fitted_dynamics(fitted) == fitted
    dummy = make_point(model="dummy-tiny", acceptance="confidence")
    assert with_fitted_dynamics(dummy) == dummy
    assert "fitted on focus-tiny traces" in "; ".join(simulate(point, hardware="h200").notes)
