"""Flags that several commands take, with help and defaults, as fields of frozen dataclasses.

Lists are comma lists. Knows no rules: values are checked where configurations are made. Help lists
flags in the order of fields, and panels by their first flag: those of the last base come first.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A

from focus_bench.bench.defaults import ACCEPTANCE_FORMS, DEFAULT_POLICIES, IMPORTANCE_FORMS
from focus_bench.cli.flags import (
    DECODING,
    MODEL,
    OUTPUT,
    SAMPLING,
    SCHEDULING,
    flag,
    path,
    real,
    switch,
    whole,
)
from focus_bench.core.config import POLICY_NAMES, UNMASKING_STRATEGIES
from focus_bench.core.model_spec import BUNDLED_MODELS, DEFAULT_MODEL, PRESETS


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which model runs."""

    model: A[
        str,
        flag(
            MODEL,
            f"Models (comma list): {', '.join(BUNDLED_MODELS)}, trained and bundled; "
            f"{', '.join(PRESETS)}, shapes with random weights; or checkpoint folders.",
        ),
    ] = DEFAULT_MODEL
    load_format: A[
        str, flag(MODEL, "auto: the folder's weights; dummy: seeded random ones, as presets have")
    ] = "auto"
    dtype: A[
        str,
        flag(MODEL, "auto (the model's; float32 on a CPU), float32, bfloat16 or float16."),
    ] = "auto"
    mask_token_id: A[
        int | None,
        whole(MODEL, "Mask token where config.json names none.", shown="the model's"),
    ] = None
    gpu_memory_utilization: A[
        float, real(SCHEDULING, "Fraction of the device's memory to use.")
    ] = 0.9


@dataclass(frozen=True, kw_only=True)
class DeviceFlags(ModelFlags):
    """Which model runs on which device of this machine."""

    device: A[str, flag(MODEL, "auto (a GPU if there is one), cpu or cuda.")] = "auto"
    cuda_graphs: A[
        str,
        flag(
            MODEL,
            "Whether a GPU replays captured CUDA graphs: auto (steps of up to 1,024 tokens, of any "
            "size for models with experts), on or off.",
        ),
    ] = "auto"
    threads: A[
        int | None,
        whole(
            MODEL, "Threads of a CPU.", shown="OMP_NUM_THREADS, else one fewer than there are cores"
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """How text is read, how tokens are drawn, and what replaces a model's decisions."""

    tokenizer: A[
        str,
        flag(
            MODEL,
            "byte, or a checkpoint: a bundled model or a folder with a Hugging Face tokenizer.",
            shown="the checkpoint's; byte for presets",
        ),
    ] = ""
    acceptance: A[
        str | None,
        flag(
            DECODING,
            f"What decides how many tokens a step decodes: {ACCEPTANCE_FORMS}.",
            shown=f"confidence; in simulate what was fitted on {DEFAULT_MODEL}; with dummy weights "
            "the data set's synthetic preset",
        ),
    ] = None
    importance: A[
        str | None,
        flag(
            DECODING,
            f"What ranks positions for eviction: {IMPORTANCE_FORMS}.",
            shown="model; synthetic in simulate and with dummy weights",
        ),
    ] = None
    temperature: A[float, real(SAMPLING, "Sampling temperature; 0 is greedy.")] = 0.0
    top_k: A[int, whole(SAMPLING, "Sample from the k most likely ids; 0: from all.")] = 0
    top_p: A[float, real(SAMPLING, "Sample from this probability mass.")] = 1.0
    seed: A[int, whole(SAMPLING, "Seed of every random stream.")] = 0


@dataclass(frozen=True, kw_only=True)
class DecodingFlags:
    """The axes of decoding that a sweep spans, and steps."""

    policy: A[
        str | None,
        flag(
            DECODING,
            f"Policies (comma list): {', '.join(POLICY_NAMES)}.",
            shown=",".join(DEFAULT_POLICIES),
        ),
    ] = None
    block_length: A[
        str | None,
        flag(
            DECODING, "Block lengths B in tokens (comma list).", shown="the checkpoint's, else 32"
        ),
    ] = None
    alpha: A[str, flag(DECODING, "Expansion factors of the budget (comma list; paper Eq. 4).")] = (
        "1.5"
    )
    threshold: A[str, flag(DECODING, "Confidences from which a token is decoded (comma list).")] = (
        "0.9"
    )
    unmasking_strategy: A[
        str, flag(DECODING, f"Strategies (comma list): {', '.join(UNMASKING_STRATEGIES)}.")
    ] = UNMASKING_STRATEGIES[0]
    steps: A[
        int | None,
        whole(DECODING, "Steps per block of low_confidence_static and sequential.", shown="B"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Where a sweep's results go, and which of its points run."""

    output_dir: A[
        Path | None, path(OUTPUT, "Result folder.", shown="./results/TIMESTAMP-COMMAND")
    ] = None
    resume: A[bool, switch("--resume", OUTPUT, "Skip points that --output-dir holds already.")] = (
        False
    )
    dry_run: A[bool, switch("--dry-run", OUTPUT, "Print the points and run none.")] = False
    metadata: A[
        list[str] | None,
        flag(OUTPUT, "KEY=VALUE to note in run.json; may be repeated.", shown="none"),
    ] = None
