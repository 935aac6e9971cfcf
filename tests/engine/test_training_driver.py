"""The driver end to end on a CPU: the loss falls, the files are there, limits and resumes hold."""

import csv
import json
from pathlib import Path

import pytest
import torch
from training_cases import EOS, MASK, TINY, documents

from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import read_model_folder
from focus_bench.engine.training import driver, trainer
from focus_bench.engine.training.driver import TrainingOptions, TrainingResult, run_training
from focus_bench.engine.training.measure import choose_forward, measure_step_time
from focus_bench.engine.training.model import CPU_EXECUTION, Execution
from focus_bench.engine.training.recipe import TrainingRecipe
from focus_bench.engine.weights import load_checkpoint

CPU = torch.device("cpu")
TRAIN, HELD_OUT = documents(), documents(40, seed=1)


def train(
    folder: Path,
    recipe: TrainingRecipe = TINY,
    options: TrainingOptions | None = None,
    log: list[str] | None = None,
) -> TrainingResult:
    lines: list[str] = [] if log is None else log
    return run_training(
        recipe,
        TRAIN,
        HELD_OUT,
        folder,
        device=CPU,
        options=options or TrainingOptions(),
        log=lines.append,
    )


def loss_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / driver.LOSS_FILE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_twenty_steps_lower_the_loss_and_leave_a_checkpoint(tmp_path: Path) -> None:
    log: list[str] = []
    options = TrainingOptions(compact_folder=tmp_path / "compact")
    result = train(tmp_path / "run", options=options, log=log)
    assert result.is_finished
    assert result.step == 20
    rows = loss_rows(tmp_path / "run")
    assert [row["step"] for row in rows] == ["5", "10", "15", "20"]
    assert [bool(row["held_out_loss"]) for row in rows] == [False, True, False, True]
    assert float(rows[-1]["train_loss"]) < 0.8 * float(rows[0]["train_loss"])
    assert float(rows[3]["held_out_loss"]) < float(rows[1]["held_out_loss"]) < 4.2  # ln 64 = 4.16
    assert float(rows[-1]["held_out_loss"]) == pytest.approx(result.evaluation.loss, abs=1e-4)
    assert float(rows[-1]["held_out_accuracy"]) == pytest.approx(
        result.evaluation.accuracy, abs=1e-4
    )
    facts = json.loads((tmp_path / "run" / driver.RUN_FILE).read_text(encoding="utf-8"))
    assert facts["step"] == 20
    assert facts["recipe"]["peak_lr"] == TINY.peak_lr
    assert facts["held_out_loss"] == result.evaluation.loss
    model = load_checkpoint(result.checkpoint, read_model_folder(result.checkpoint), device=CPU)
    assert model.spec.mask_token_id == MASK
    names = {path.name for path in (tmp_path / "compact").iterdir()}
    assert names == {"compact-1-of-1.safetensors", driver.LOSS_FILE, driver.RUN_FILE}
    assert any("difference to the engine" in line for line in log)


def test_two_runs_and_a_resumed_one_give_the_same_weights(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    short = TINY.replace(total_steps=10)
    # The schedule of the whole run from the start: only the number of steps is cut.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "learning_rate", lambda _, step: driver.learning_rate(TINY, step))
        train(tmp_path / "first", recipe=short)
    train(tmp_path / "second", options=TrainingOptions(resume_from=tmp_path / "first"))
    whole, second = (
        load_checkpoint(folder, read_model_folder(folder), device=CPU).embedding
        for folder in (tmp_path / n / driver.CHECKPOINT_FOLDER for n in ("whole", "second"))
    )
    assert torch.equal(whole, second)
    assert [row["step"] for row in loss_rows(tmp_path / "second")] == ["5", "10", "15", "20"]


def test_a_compact_state_is_exported_as_the_run_did(tmp_path: Path) -> None:
    result = train(tmp_path / "run", options=TrainingOptions(compact_folder=tmp_path / "compact"))
    step = driver.export_state(
        tmp_path / "compact", tmp_path / "again", TINY, mask_token_id=MASK, eos_token_id=EOS
    )
    assert step == 20
    first, second = (
        load_checkpoint(folder, read_model_folder(folder), device=CPU)
        for folder in (result.checkpoint, tmp_path / "again")
    )
    # float16, then bfloat16: at most one rounding apart from bfloat16 alone.
    torch.testing.assert_close(first.embedding, second.embedding, rtol=2**-7, atol=1e-7)


def test_the_wall_limit_ends_training_and_the_state_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10_000))
    monkeypatch.setattr(driver.time, "monotonic", lambda: float(next(seconds)))
    endless = TINY.replace(total_steps=1000)
    result = train(tmp_path, recipe=endless, options=TrainingOptions(wall_limit_s=60.0))
    assert not result.is_finished
    assert 10 <= result.step < 60
    resumed = train(
        tmp_path,
        recipe=endless.replace(total_steps=result.step + 2),
        options=TrainingOptions(resume_from=tmp_path),
    )
    assert resumed.step == result.step + 2
    assert resumed.is_finished
    with pytest.raises(UsageError, match=r"^--wall-limit: 1\.0 .*\(none left to train"):
        train(tmp_path / "none", options=TrainingOptions(wall_limit_s=1.0))


def test_the_schedule_can_be_fitted_to_the_wall_limit(tmp_path: Path) -> None:
    options = TrainingOptions(wall_limit_s=4.0, fit_total_steps=True)
    result = train(tmp_path, recipe=TINY.replace(warmup_steps=20), options=options)
    facts = json.loads((tmp_path / driver.RUN_FILE).read_text(encoding="utf-8"))
    assert facts["recipe"]["total_steps"] == result.total_steps
    assert result.total_steps != TINY.total_steps
    with pytest.raises(UsageError, match=r"--wall-limit: inf"):
        TrainingOptions(fit_total_steps=True)


def test_a_loss_that_is_no_number_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = trainer.diffusion_loss
    monkeypatch.setattr(trainer, "diffusion_loss", lambda *a: loss(*a) * float("nan"))
    with pytest.raises(FloatingPointError, match="nan at step 5"):
        train(tmp_path)
    assert not (tmp_path / driver.CHECKPOINT_FOLDER).exists()


def test_an_execution_that_fails_is_left_out_and_none_at_all_is_an_error() -> None:
    broken = Execution(attention="flex", is_compiled=False, dtype="float32")  # no CPU backward
    log: list[str] = []
    row = TINY.replace(row_length=256)
    forward, measured = choose_forward(row, TRAIN, CPU, (broken, CPU_EXECUTION), log=log.append)
    assert forward.execution == measured.execution == CPU_EXECUTION
    assert "failed" in log[0]
    with pytest.raises(UsageError, match="training execution"):
        choose_forward(row, TRAIN, CPU, (broken,), log=log.append)


def test_step_times_count_tokens() -> None:
    measured = measure_step_time(TINY, CPU, documents=TRAIN)
    assert measured.tokens_per_s * measured.step_s == pytest.approx(TINY.tokens_per_step)
    assert 0 < measured.reply_tokens_per_s < measured.tokens_per_s


def test_documents_and_special_ids_must_fit(tmp_path: Path) -> None:
    other = documents(4)
    other = type(other)(
        token_ids=other.token_ids,
        offsets=other.offsets,
        prompt_lengths=other.prompt_lengths,
        mask_token_id=63,
        eos_token_id=EOS,
    )
    with pytest.raises(UsageError, match=r"held-out special ids: '63, 0' .* 1, 0"):
        run_training(TINY, TRAIN, other, tmp_path, device=CPU, options=TrainingOptions(), log=print)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("row_length", 120, "recipe row_length: 120 .* >= 128"),
        ("context_length", 100, "recipe context_length: 100 .* multiples of 8"),
        ("min_noise", 0.0, "recipe min_noise"),
        ("warmup_steps", 21, "recipe warmup_steps: 21 .* <= 20"),
        ("export_dtype", "float8", "recipe export_dtype"),
        ("rows_per_step", 0, "recipe rows_per_step: 0 .* >= 1"),
    ],
)
def test_recipes_that_do_not_add_up_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TINY.replace(**{field: value})
