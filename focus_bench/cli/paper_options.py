"""The flags of paper."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A

import typer

from focus_bench.bench.paper import ALL_QUALITY, PARTS
from focus_bench.bench.paper_speed import (
    ALL_SPEED,
    MODEL,
    MODELS,
    NUM_PROMPTS,
    SPANS,
    SPEED_PARTS,
)
from focus_bench.bench.quality import BUNDLED_MAX_NEW_TOKENS, SCORED_TASKS
from focus_bench.cli.flags import OUTPUT, flag, path, switch, whole
from focus_bench.core.model_spec import DEFAULT_MODEL
from focus_bench.report.paper.published_speed import DATASETS

GPU_BATCH, CPU_BATCH = 256, 32
_BOTH = "Both"
_QUALITY = f"Scores, measured here: {', '.join(PARTS)}"
_SPEED = f"Throughput, simulated: {', '.join(SPEED_PARTS)}"
_GPUS = ", ".join(dict.fromkeys(span.gpu for span in SPANS.values()))


@dataclass(frozen=True, kw_only=True)
class PaperFlags:
    """The flags of paper."""

    parts: A[
        list[str],
        typer.Argument(
            metavar="PART...",
            help=f"Of {', '.join((*PARTS, *SPEED_PARTS))}; or {ALL_QUALITY}, {ALL_SPEED}.",
        ),
    ]
    model: A[
        str | None,
        flag(
            _BOTH,
            "Model: the bundled one, a checkpoint folder, or a preset, whose weights are random.",
            shown=f"{DEFAULT_MODEL}; simulated: {MODEL} (of {', '.join(MODELS)})",
        ),
    ] = None
    seed: A[int, whole(_BOTH, "Seed of problems, selection, and simulated draws.")] = 0
    task: A[str, flag(_QUALITY, f"Problems: {', '.join(SCORED_TASKS)}.")] = SCORED_TASKS[0]
    num_problems: A[int, whole(_QUALITY, "Held-out problems of each setting.")] = 200
    observed_problems: A[
        int | None,
        whole(_QUALITY, "Problems of fig2, fig3, fig14.", shown="--num-problems, at most 256"),
    ] = None
    max_new_tokens: A[int, whole(_QUALITY, "Most output tokens of a reply.")] = (
        BUNDLED_MAX_NEW_TOKENS
    )
    device: A[str, flag(_QUALITY, "auto (a GPU if there is one), cpu or cuda.")] = "auto"
    dtype: A[str, flag(_QUALITY, "auto, float32, bfloat16 or float16.")] = "auto"
    batch_size: A[
        int | None,
        whole(_QUALITY, "Most requests in a batch.", shown=f"{GPU_BATCH}; {CPU_BATCH} on a CPU"),
    ] = None
    gpu: A[
        str | None,
        flag(
            _SPEED,
            "Hardware to simulate (comma list), as simulate has it.",
            shown=f"the paper's: {_GPUS}",
        ),
    ] = None
    host_profile: A[
        str,
        flag(
            _SPEED,
            "Whose host time a step has: ours, this project's; lmdeploy-eager, an assumption about "
            "the paper's engine: no step takes less than --host-step-ms.",
        ),
    ] = "ours"
    host_step_ms: A[
        str | None,
        flag(
            _SPEED,
            "Milliseconds of lmdeploy-eager.",
            shown="what Tables 5 and 7 of the paper imply for its baseline at batch 1",
        ),
    ] = None
    dataset: A[
        str,
        flag(
            _SPEED,
            f"Data sets of the figures (comma list): {', '.join(DATASETS)}; the tables have all "
            "unless --tokenizer is given.",
        ),
    ] = DATASETS[0]
    tokenizer: A[
        str,
        flag(
            _SPEED,
            "Folder with SDAR's tokenizer: the data sets themselves are read then.",
            shown="none: ShareGPT's token lengths stand for every data set's",
        ),
    ] = ""
    dataset_path: A[
        list[str] | None,
        flag(_SPEED, "NAME=FILE of a data set, with --tokenizer (repeat the flag).", shown="none"),
    ] = None
    download: A[
        bool, switch("--download", _SPEED, "Fetch data sets that are not here, with --tokenizer.")
    ] = False
    measured: A[
        list[Path] | None,
        path(
            _SPEED,
            "Result folder of run: measured points of the same work on the same GPU stand beside "
            "(repeat the flag).",
            shown="none",
        ),
    ] = None
    num_prompts: A[int, whole(_SPEED, "Requests of each point (at batch 1 at most 64).")] = (
        NUM_PROMPTS
    )
    # What --num-prompts was called before.
    num_requests: A[int | None, typer.Option(hidden=True)] = None
    output_dir: A[
        Path | None, path(OUTPUT, "Result folder.", shown="./results/TIMESTAMP-paper")
    ] = None
    resume: A[bool, switch("--resume", OUTPUT, "Go on with what --output-dir holds already.")] = (
        False
    )
    plots: A[bool, flag(OUTPUT, "Write charts as PNG and SVG.")] = True
    dry_run: A[bool, switch("--dry-run", OUTPUT, "Print what would run.")] = False
    quiet: A[bool, switch("--quiet", OUTPUT, "Print errors only.")] = False
