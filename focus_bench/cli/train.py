"""focus-bench train: makes the bundled model again, from its data generator to its checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Annotated as A

import typer

from focus_bench.cli.flags import PATH, takes

if TYPE_CHECKING:
    from focus_bench.engine.training.documents import TokenDocuments

HELD_OUT_TASKS = 4000
SMOKE_TASKS = 2000


def _option(text: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(help=text)
    return info


def _path(text: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(help=text, **PATH)
    return info


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """What a training run may be told; the rest is the recipe (engine/training/recipe.py)."""

    output_dir: A[Path, _path("Folder for checkpoint/, the training state, loss.csv, run.json.")]
    resume: A[Path | None, _path("Folder of an earlier run to go on from.")] = None
    num_tasks: A[int, _option("Generated training tasks.")] = 1_500_000
    wall_limit: A[float | None, _option("Stop in time to be done after so many seconds.")] = None
    fit: A[bool, typer.Option("--fit", help="Let the schedule end when --wall-limit does.")] = False
    compact_dir: A[
        Path | None, _path("Also keep a state here that is small enough to carry about.")
    ] = None
    smoke: A[
        bool, typer.Option("--smoke", help="Twenty steps of a two-layer model, for a look.")
    ] = False
    workers: A[int, _option("Processes that generate tasks.")] = 1
    device: A[str, _option("auto, cpu or cuda.")] = "auto"
    seed: A[int, _option("Seed of data, weights, noise and order.")] = 0


@takes(TrainFlags)
def command(flags: TrainFlags) -> int:
    """Train a small block-diffusion model on generated tasks (the recipe of the bundled model)."""
    import dataclasses
    import os
    import shutil
    import time

    from focus_bench.cli.paths import check_writable
    from focus_bench.core.errors import UsageError
    from focus_bench.engine.device import resolve_device
    from focus_bench.engine.training.driver import TrainingOptions, run_training
    from focus_bench.engine.training.recipe import FOCUS_TINY, SMOKE
    from focus_bench.workloads.tasks.tokenizer_build import build_tokenizer

    check_writable("--output-dir", flags.output_dir, is_folder=True)
    check_writable("--compact-dir", flags.compact_dir, is_folder=True)
    if flags.resume is not None and not os.path.isdir(flags.resume):
        raise UsageError("--resume", str(flags.resume), "the folder of an earlier run")
    start = time.monotonic()
    recipe = dataclasses.replace(SMOKE if flags.smoke else FOCUS_TINY, seed=flags.seed)
    tokenizer_folder = flags.output_dir / "tokenizer"
    tokenizer_folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer(tokenizer_folder, seed=flags.seed)
    num_tasks = min(flags.num_tasks, SMOKE_TASKS) if flags.smoke else flags.num_tasks
    train = _documents(tokenizer_folder, "train", num_tasks, flags)
    held_out = _documents(tokenizer_folder, "test", min(HELD_OUT_TASKS, num_tasks), flags)
    print(
        f"{train.num_documents:,} documents, {len(train.token_ids):,} tokens after "
        f"{time.monotonic() - start:.0f} s",
        flush=True,
    )
    limit_s = float("inf")
    if flags.wall_limit is not None:
        limit_s = flags.wall_limit - (time.monotonic() - start)
    result = run_training(
        recipe,
        train,
        held_out,
        flags.output_dir,
        device=resolve_device(flags.device),
        options=TrainingOptions(
            wall_limit_s=limit_s,
            fit_total_steps=flags.fit,
            resume_from=flags.resume,
            compact_folder=flags.compact_dir,
        ),
        log=lambda line: print(line, flush=True),
    )
    for file in tokenizer_folder.iterdir():
        shutil.copy(file, result.checkpoint / file.name)
    print(f"checkpoint: {result.checkpoint}")
    if not result.is_finished:
        print(f"stopped at step {result.step} of {result.total_steps}; --resume goes on")
    return 0


def _documents(
    tokenizer_folder: Path, split: str, count: int, flags: TrainFlags
) -> "TokenDocuments":
    from focus_bench.bench.training_data import encoded_split
    from focus_bench.core.errors import UsageError
    from focus_bench.engine.training.documents import TokenDocuments
    from focus_bench.workloads.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(str(tokenizer_folder))
    mask, eos = tokenizer.mask_token_id, tokenizer.eos_token_id
    if mask is None or eos is None:
        raise UsageError("tokenizer", str(tokenizer_folder), "one with mask and end tokens")
    encoded = encoded_split(
        tokenizer_folder, split, seed=flags.seed, count=count, processes=flags.workers
    )
    return TokenDocuments(
        token_ids=encoded.ids.astype("int32"),
        offsets=encoded.starts,
        prompt_lengths=encoded.prompt_lengths.astype("int64"),
        mask_token_id=mask,
        eos_token_id=eos,
    )
