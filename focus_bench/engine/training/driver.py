"""Runs a whole training: check, choose, train within a wall-clock limit, save; writes the files.

A run's folder holds loss.csv, run.json, the full training state and, at the end, the checkpoint of
the averaged weights (checkpoint/). A second folder, if named, gets what is small enough to carry to
another machine: the compact state, loss.csv and run.json.
"""

import csv
import dataclasses
import json
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from focus_bench.core.errors import UsageError, check_range
from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.training.checkpoint import (
    TrainingState,
    load_state,
    new_state,
    save_compact,
    save_full,
)
from focus_bench.engine.training.documents import TokenDocuments
from focus_bench.engine.training.measure import GPU_EXECUTIONS, choose_forward
from focus_bench.engine.training.model import CPU_EXECUTION, Execution, export_checkpoint
from focus_bench.engine.training.optimizer import learning_rate
from focus_bench.engine.training.recipe import TrainingRecipe
from focus_bench.engine.training.trainer import Evaluation, Trainer

LOSS_FILE = "loss.csv"
RUN_FILE = "run.json"
CHECKPOINT_FOLDER = "checkpoint"
LOSS_COLUMNS = (
    "step",
    "trained_s",
    "learning_rate",
    "train_loss",
    "grad_norm",
    "held_out_loss",
    "held_out_accuracy",
)
# Of a wall-clock limit, for the last evaluation and for writing the files: at most, and as a share.
SAVING_RESERVE_S = 15.0
SAVING_SHARE = 0.1
# Of the time left, when the number of steps is fitted to it: steps vary, evaluations come on top.
FITTED_SHARE = 0.95
# Of a wall-clock limit, for choosing how steps are computed.
CHOOSING_SHARE = 0.15


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What a run may be told apart from its recipe; nothing here changes what a step computes.

    `wall_limit_s`: for the whole call; training stops in time to save. `fit_total_steps`: the
    schedule ends when the limit does (replaces ``recipe.total_steps``; run.json says the number).
    `resume_from`: folder with a full or compact state. `compact_folder`: gets the compact state.
    `executions`: the ways to try; None: the device's.
    """

    wall_limit_s: float = float("inf")
    fit_total_steps: bool = False
    resume_from: Path | None = None
    compact_folder: Path | None = None
    checkpoint_interval_s: float = 120.0
    executions: Sequence[Execution] | None = None

    def __post_init__(self) -> None:
        check_range("--wall-limit", self.wall_limit_s, low=0.0, low_open=True)
        check_range("--checkpoint-interval", self.checkpoint_interval_s, low=0.0, low_open=True)
        if self.fit_total_steps and self.wall_limit_s == float("inf"):
            raise UsageError("--wall-limit", self.wall_limit_s, "seconds, with fitted total steps")

    @property
    def training_limit_s(self) -> float:
        """Seconds of the limit after which no further step starts."""
        return self.wall_limit_s - min(SAVING_RESERVE_S, SAVING_SHARE * self.wall_limit_s)


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """`step` of `total_steps` done (`trained_s` of wall time); `evaluation` of the average."""

    step: int
    total_steps: int
    trained_s: float
    evaluation: Evaluation
    checkpoint: Path

    @property
    def is_finished(self) -> bool:
        """Whether the schedule came to its end."""
        return self.step >= self.total_steps


def run_training(
    recipe: TrainingRecipe,
    train: TokenDocuments,
    held_out: TokenDocuments,
    folder: Path,
    *,
    device: torch.device,
    options: TrainingOptions,
    log: Callable[[str], None] = print,
) -> TrainingResult:
    """Train `recipe` on `train`; all files go to `folder`.

    Raises UsageError for documents that do not fit the recipe, a state that cannot be resumed and a
    wall limit that leaves no time; FloatingPointError when the loss is no longer finite.
    """
    start = time.monotonic()
    deadline = start + options.training_limit_s
    spec = _spec_of(recipe, train, held_out)
    folder.mkdir(parents=True, exist_ok=True)
    if options.resume_from is None:
        state = new_state(recipe, spec, device)
    else:
        state = load_state(options.resume_from, recipe, spec, device)
        log(f"resumed at step {state.step}, after {state.trained_s:.0f} s of training")
    executions = options.executions or (
        GPU_EXECUTIONS if device.type == "cuda" else (CPU_EXECUTION,)
    )
    choosing_deadline = start + CHOOSING_SHARE * options.wall_limit_s
    forward, measured = choose_forward(
        recipe, train, device, executions, deadline_s=choosing_deadline, log=log
    )
    if options.fit_total_steps:
        steps = int(FITTED_SHARE * (deadline - time.monotonic()) / measured.step_s)
        if steps < 1:
            raise UsageError("--wall-limit", options.wall_limit_s, "more seconds (no step fits)")
        total = state.step + steps
        recipe = recipe.replace(total_steps=total, warmup_steps=min(recipe.warmup_steps, total))
        log(f"{steps} steps fit; the schedule ends at step {total}")
    if time.monotonic() >= deadline:
        raise UsageError("--wall-limit", options.wall_limit_s, "more seconds (none left to train)")
    trainer = Trainer(recipe, state, train, held_out, forward=forward)
    files = _RunFiles(folder, options)
    facts = {
        "recipe": dataclasses.asdict(recipe),
        "model": dataclasses.asdict(spec),
        "execution": forward.execution.label,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "train_documents": train.num_documents,
        "train_tokens": len(train.token_ids),
        "measured_step_s": measured.step_s,
    }
    evaluation = _train(trainer, files, deadline, facts, log)
    export_checkpoint(spec, state.average, folder / CHECKPOINT_FOLDER)
    log(
        f"step {state.step} of {recipe.total_steps}: held-out loss {evaluation.loss:.4f}, "
        f"accuracy {evaluation.accuracy:.4f}, {state.trained_s:.0f} s of training"
    )
    return TrainingResult(
        step=state.step,
        total_steps=recipe.total_steps,
        trained_s=state.trained_s,
        evaluation=evaluation,
        checkpoint=folder / CHECKPOINT_FOLDER,
    )


def export_state(
    state_folder: Path,
    checkpoint: Path,
    recipe: TrainingRecipe,
    *,
    mask_token_id: int,
    eos_token_id: int,
) -> int:
    """Write the averaged weights of a saved state, full or compact, as a checkpoint; its step."""
    spec = recipe.model_spec(mask_token_id=mask_token_id, eos_token_id=eos_token_id)
    state = load_state(state_folder, recipe, spec, torch.device("cpu"))
    export_checkpoint(spec, state.average, checkpoint)
    return state.step


def _spec_of(recipe: TrainingRecipe, train: TokenDocuments, held_out: TokenDocuments) -> ModelSpec:
    ids = (train.mask_token_id, train.eos_token_id)
    if (held_out.mask_token_id, held_out.eos_token_id) != ids:
        raise UsageError(
            "held-out special ids",
            f"{held_out.mask_token_id}, {held_out.eos_token_id}",
            f"the training documents' {ids[0]}, {ids[1]}",
        )
    return recipe.model_spec(mask_token_id=ids[0], eos_token_id=ids[1])


def _train(
    trainer: Trainer,
    files: "_RunFiles",
    deadline: float,
    facts: dict[str, object],
    log: Callable[[str], None],
) -> Evaluation:
    """Steps until the schedule or the time ends, with log lines and checkpoints on the way."""
    recipe, state = trainer.recipe, trainer.state
    trained_before_s, start = state.trained_s, time.monotonic()
    losses: list[torch.Tensor] = []
    evaluation: Evaluation | None = None
    while state.step < recipe.total_steps and time.monotonic() < deadline:
        result = trainer.step()
        losses.append(result.loss)
        evaluation = None
        if state.step % recipe.log_interval and state.step < recipe.total_steps:
            continue
        train_loss = float(torch.stack(losses).mean())
        losses.clear()
        state.trained_s = trained_before_s + time.monotonic() - start
        if train_loss != train_loss or abs(train_loss) == float("inf"):
            raise FloatingPointError(
                f"the training loss is {train_loss} at step {state.step}; the last saved state is "
                "from before"
            )
        if state.step % recipe.evaluation_interval == 0:
            evaluation = trainer.evaluate()
        files.add_loss(recipe, state, train_loss, float(result.grad_norm), evaluation)
        if evaluation is not None:
            log(
                f"step {state.step}: {state.trained_s:.0f} s, loss {train_loss:.4f}, "
                f"held-out {evaluation.loss:.4f}, accuracy {evaluation.accuracy:.4f}"
            )
        if files.is_checkpoint_due():
            files.save(state, facts)
    if evaluation is None:
        evaluation = trainer.evaluate()
    state.trained_s = trained_before_s + time.monotonic() - start
    files.save(
        state,
        {
            **facts,
            "held_out_loss": evaluation.loss,
            "held_out_accuracy": evaluation.accuracy,
        },
    )
    return evaluation


class _RunFiles:
    """The files of one run, written as it goes."""

    def __init__(self, folder: Path, options: TrainingOptions) -> None:
        self._folder = folder
        self._compact_folder = options.compact_folder
        self._interval_s = options.checkpoint_interval_s
        self._last_save = time.monotonic()
        self._loss_path = folder / LOSS_FILE
        before = options.resume_from
        if before is None or not (before / LOSS_FILE).exists():
            with self._loss_path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow(LOSS_COLUMNS)
        elif before.resolve() != folder.resolve():
            shutil.copyfile(before / LOSS_FILE, self._loss_path)

    def add_loss(
        self,
        recipe: TrainingRecipe,
        state: TrainingState,
        train_loss: float,
        grad_norm: float,
        evaluation: Evaluation | None,
    ) -> None:
        row = [
            state.step,
            f"{state.trained_s:.2f}",
            f"{learning_rate(recipe, state.step - 1):.6g}",
            f"{train_loss:.5f}",
            f"{grad_norm:.4f}",
            "" if evaluation is None else f"{evaluation.loss:.5f}",
            "" if evaluation is None else f"{evaluation.accuracy:.5f}",
        ]
        with self._loss_path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(row)

    def is_checkpoint_due(self) -> bool:
        return time.monotonic() - self._last_save >= self._interval_s

    def save(self, state: TrainingState, facts: dict[str, object]) -> None:
        text = json.dumps({**facts, "step": state.step, "trained_s": state.trained_s}, indent=2)
        (self._folder / RUN_FILE).write_text(text + "\n", encoding="utf-8")
        save_full(state, self._folder)
        if self._compact_folder is not None:
            save_compact(state, self._compact_folder)
            for name in (RUN_FILE, LOSS_FILE):
                shutil.copyfile(self._folder / name, self._compact_folder / name)
        self._last_save = time.monotonic()
