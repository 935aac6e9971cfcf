"""The flags of eval."""

from dataclasses import dataclass
from typing import Annotated as A

from focus_bench.bench.benchmarks import BENCHMARKS, PAPER_MAX_NEW_TOKENS
from focus_bench.bench.quality import BUNDLED_MAX_NEW_TOKENS, SCORED_TASKS
from focus_bench.cli.flags import (
    DATA,
    DECODING,
    MEASURING,
    OUTPUT,
    SCHEDULING,
    flag,
    real,
    switch,
    whole,
)
from focus_bench.cli.options import DecodingFlags, DeviceFlags, OutputFlags, SamplingFlags
from focus_bench.core.config import SELECTIONS


@dataclass(frozen=True, kw_only=True)
class TaskFlags:
    """Which problems are asked, how, and how often."""

    tasks: A[
        str,
        flag(
            DATA,
            f"Tasks (comma list): {', '.join(SCORED_TASKS)}, bundled; {', '.join(BENCHMARKS)}, "
            "through lm-evaluation-harness (pip install 'focus-bench\\[eval]').",
        ),
    ] = SCORED_TASKS[0]
    num_problems: A[
        int | None,
        whole(DATA, "Problems of each task.", shown="200 bundled ones; all of a benchmark"),
    ] = None
    dataset_path: A[
        list[str] | None,
        flag(
            DATA,
            "A benchmark's file (JSON, JSONL, parquet, gzip) or folder; TASK=PATH where there are "
            "several. May be repeated.",
            shown="none",
        ),
    ] = None
    download: A[
        bool, switch("--download", DATA, "Fetch a benchmark that is not here from the hub.")
    ] = False
    max_new_tokens: A[
        int | None,
        whole(
            DATA,
            "Most output tokens of a reply.",
            shown=f"{BUNDLED_MAX_NEW_TOKENS}; {PAPER_MAX_NEW_TOKENS} for benchmarks",
        ),
    ] = None
    num_fewshot: A[
        int | None,
        whole(DATA, "Worked examples in a benchmark's prompts.", shown="the benchmark's"),
    ] = None
    apply_chat_template: A[
        bool | None,
        flag(
            DATA,
            "Send a benchmark's prompts through the chat template.",
            shown="if the tokenizer has one",
        ),
    ] = None
    num_runs: A[
        int | None,
        whole(MEASURING, "Runs of each point.", shown="1; 2 for benchmarks, as in the paper"),
    ] = None
    code_timeout: A[
        float, real(MEASURING, "Seconds for each program that HumanEval and MBPP run.")
    ] = 3.0


@dataclass(frozen=True, kw_only=True)
class EvalFlags(OutputFlags, DecodingFlags, TaskFlags, DeviceFlags, SamplingFlags):
    """The flags of eval."""

    retain: A[
        str, flag(DECODING, "Masked positions that focus-fixed keeps (comma list; Table 3).")
    ] = "8"
    select: A[
        str,
        flag(DECODING, f"Which ones focus-fixed keeps (comma list): {', '.join(SELECTIONS)}."),
    ] = SELECTIONS[0]
    focus_min_batch: A[int, whole(DECODING, "Running batch from which adaptive uses focus.")] = 16
    batch_size: A[str, flag(SCHEDULING, "Most requests in a batch (comma list).")] = "32"
    num_pages: A[
        int | None, whole(SCHEDULING, "Pages of the KV cache.", shown="what memory allows")
    ] = None
    quiet: A[bool, switch("--quiet", OUTPUT, "Print errors only.")] = False
