"""The outside benchmarks: which task of lm-evaluation-harness scores each, and its problems.

Prompts and scorers are the harness's own task files; only where the problems come from is ours.
Knows no model, and does not import the harness.
"""

import importlib.metadata
import importlib.util
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from focus_bench.core.errors import UsageError, check_range
from focus_bench.core.workload import Provenance
from focus_bench.workloads.formats import FORMATS
from focus_bench.workloads.rows import BAD_ROW, Lost
from focus_bench.workloads.sources import SourceValues, content_sha256, find_source

PAPER_MAX_NEW_TOKENS = 1024
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE", "TRANSFORMERS_OFFLINE")
_INSTALL = "pip install 'focus-bench[eval]'"
_MBPP_TEST_IDS = range(11, 511)  # the data set's own split; the file of all rows has no other mark

Document = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark.

    `folder`: the harness's folder of its task files. `plain`, `chat`, `few_shot`: the task without
    a chat template, with one, and with worked examples (None: the same one). `split`: where the
    task looks for its problems. `fields`: what a row must have. `metrics`: the figures, each
    "metric,filter" of the harness, whose mean is the score; `plain_metrics` where the plain task
    has other ones. `fewshot`: worked examples unless asked otherwise, and the most there are.
    `modules`: packages that the task needs beside the harness.
    """

    folder: str
    plain: str
    chat: str | None = None
    few_shot: str | None = None
    split: str = "test"
    fields: tuple[str, ...]
    metrics: tuple[str, ...]
    plain_metrics: tuple[str, ...] | None = None
    fewshot: int = 0
    max_fewshot: int = 0
    modules: tuple[str, ...] = ()
    runs_code: bool = False

    def task(self, *, chat: bool, num_fewshot: int) -> str:
        """The harness's name of the task."""
        if num_fewshot and self.few_shot is not None:
            return self.few_shot
        return self.chat if chat and self.chat is not None else self.plain

    def score_metrics(self, *, chat: bool) -> tuple[str, ...]:
        """The figures whose mean is the score."""
        return self.metrics if chat or self.plain_metrics is None else self.plain_metrics


BENCHMARKS: Mapping[str, Benchmark] = {
    "gsm8k": Benchmark(
        folder="gsm8k",
        plain="gsm8k_cot_zeroshot",
        few_shot="gsm8k_cot",  # the one whose worked examples are in the task file
        fields=("question", "answer"),
        metrics=("exact_match,flexible-extract",),
        max_fewshot=8,
    ),
    "math500": Benchmark(
        folder="minerva_math",
        plain="minerva_math500",
        fields=("problem", "solution"),
        metrics=("math_verify,none",),
        fewshot=4,
        max_fewshot=4,
        modules=("sympy", "math_verify", "antlr4"),
    ),
    "humaneval": Benchmark(
        folder="humaneval",
        plain="humaneval",
        chat="humaneval_instruct",
        fields=("task_id", "prompt", "entry_point", "test"),
        metrics=("pass@1,create_test",),
        runs_code=True,
    ),
    "mbpp": Benchmark(
        folder="mbpp",
        plain="mbpp",
        chat="mbpp_instruct",
        fields=("task_id", "text", "code", "test_list"),
        metrics=("pass_at_1,extract_code",),
        plain_metrics=("pass_at_1,none",),
        fewshot=3,
        max_fewshot=3,
        runs_code=True,
    ),
    "ifeval": Benchmark(
        folder="ifeval",
        plain="ifeval",
        split="train",
        fields=("key", "prompt", "instruction_id_list", "kwargs"),
        metrics=("prompt_level_strict_acc,none", "inst_level_strict_acc,none"),
        modules=("langdetect", "immutabledict", "nltk"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Problems:
    """The problems of a benchmark as its file has them, with where they came from."""

    documents: tuple[Document, ...]
    provenance: Provenance


def go_offline() -> None:
    """Tell Hugging Face's libraries to fetch nothing; call it before any of them is imported."""
    os.environ.update(dict.fromkeys(OFFLINE, "1"))


def check_harness(name: str) -> str:
    """Raise UsageError if what scores benchmark `name` is not installed; returns the scorer's name.

    IFEval needs nltk's sentence model too, which the harness would fetch while it is imported.
    """
    benchmark = BENCHMARKS[name]
    missing = [m for m in ("lm_eval", *benchmark.modules) if importlib.util.find_spec(m) is None]
    if missing:
        allowed = f"{_INSTALL}, which brings {', '.join(missing)}"
        raise UsageError("--tasks", name, allowed)
    if "nltk" in benchmark.modules:
        import nltk

        try:
            nltk.data.find("tokenizers/punkt_tab")
        except LookupError:
            raise UsageError(
                "--tasks",
                name,
                "a machine with nltk's data (python -m nltk.downloader punkt_tab, or NLTK_DATA "
                "with the folder that has tokenizers/punkt_tab)",
            ) from None
    return f"lm-evaluation-harness {importlib.metadata.version('lm_eval')}"


def fewshot_of(name: str, asked: int | None) -> int:
    """Worked examples in the prompts of benchmark `name`: what was asked, else the default."""
    benchmark = BENCHMARKS[name]
    if asked is None:
        return benchmark.fewshot
    check_range(f"--num-fewshot of {name}", asked, low=0, high=benchmark.max_fewshot)
    return asked


def load_problems(
    name: str, *, path: str, download: bool, count: int | None, tokenizer: str
) -> Problems:
    """The first `count` problems (None: all) of benchmark `name` from a file, folder or the hub.

    Rows without the fields that the scorer needs are left out and counted. Raises UsageError where
    there is no data, or fewer usable rows than asked for. `tokenizer` is its name, for reports.
    """
    benchmark = BENCHMARKS[name]
    source = find_source(name, FORMATS[name], path=path, download=download)
    assert source is not None  # None is for ShareGPT only
    values = SourceValues(source, benchmark.fields)
    documents: list[Document] = []
    dropped: Counter[str] = Counter()
    rows_read = 0
    for value in values:
        rows_read += 1
        if isinstance(value, Lost):
            dropped[value.reason] += 1
        elif not isinstance(value, dict) or any(field not in value for field in benchmark.fields):
            dropped[BAD_ROW] += 1
        elif name == "mbpp" and value["task_id"] not in _MBPP_TEST_IDS:
            dropped["not of the test split"] += 1
        else:
            documents.append({str(key): item for key, item in value.items()})
    if not documents:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(dropped.items())) or "none"
        raise UsageError(
            f"--dataset-path of {name}",
            str(source.path),
            f"rows with {', '.join(benchmark.fields)} ({rows_read} rows read, left out: {reasons})",
        )
    if count is not None and count > len(documents):
        raise UsageError("--num-problems", count, f"1 to {len(documents)}, all that {name} has")
    documents = documents[:count]
    provenance = Provenance(
        dataset=name,
        origin=source.origin,
        tokenizer=tokenizer,
        path=str(source.path),
        sha256=content_sha256(source),
        rows_read=rows_read,
        rows_kept=len(documents),
        dropped=dict(sorted(dropped.items())),
        truncated=values.truncated,
        notes=source.notes,
    )
    return Problems(documents=tuple(documents), provenance=provenance)
