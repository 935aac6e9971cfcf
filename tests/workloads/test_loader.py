"""Rows to requests: filters, counts, lengths, arrivals and provenance."""

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from focus_bench.core.config import WorkloadConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.workload import Workload
from focus_bench.workloads import loader, sources
from focus_bench.workloads.loader import DATASETS, load_workload
from focus_bench.workloads.rows import Row
from focus_bench.workloads.synthetic import fixed_length_rows
from focus_bench.workloads.tokenizers import ByteTokenizer


def load(seed: int = 0, max_positions: int = 4096, **config: object) -> Workload:
    return load_workload(
        WorkloadConfig(**config),  # type: ignore[arg-type]
        tokenizer=ByteTokenizer(),
        seed=seed,
        block_length=32,
        max_positions=max_positions,
    )


def write_lines(path: Path, rows: list[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def prompts(workload: Workload) -> list[str]:
    return [ByteTokenizer().decode(request.prompt_ids) for request in workload.requests]


@pytest.fixture
def numbered(tmp_path: Path) -> str:
    return write_lines(
        tmp_path / "numbered.jsonl", [{"prompt": f"p{n}", "reply": "r" * (n + 1)} for n in range(9)]
    )


def test_requests_in_file_order(numbered: str) -> None:
    workload = load(dataset="jsonl", dataset_path=numbered, num_prompts=4, max_new_tokens=7)
    assert prompts(workload) == ["p0", "p1", "p2", "p3"]
    assert [request.request_id for request in workload.requests] == [0, 1, 2, 3]
    assert [request.reply_tokens for request in workload.requests] == [1, 2, 3, 4]
    assert {request.max_new_tokens for request in workload.requests} == {7}
    assert {request.arrival_s for request in workload.requests} == {0.0}
    assert all(request.prompt_ids.dtype == np.int32 for request in workload.requests)
    assert workload.request_rate == math.inf
    assert workload.max_concurrency is None
    provenance = workload.provenance
    assert (provenance.rows_read, provenance.rows_kept) == (4, 4)
    assert (provenance.dataset, provenance.origin) == ("jsonl", "local file")
    assert (provenance.path, provenance.tokenizer) == (numbered, "byte")
    assert len(provenance.sha256) == 64
    assert not provenance.synthetic
    assert provenance.notes == ()


def test_shuffle_is_a_seeded_permutation_of_all_rows(numbered: str) -> None:
    def shuffled(seed: int, count: int) -> list[str]:
        return prompts(
            load(seed, dataset="jsonl", dataset_path=numbered, num_prompts=count, shuffle=True)
        )

    assert sorted(shuffled(1, 9)) == [f"p{n}" for n in range(9)]
    assert shuffled(1, 9) == shuffled(1, 9) != shuffled(2, 9)
    assert shuffled(1, 4) == shuffled(1, 9)[:4]


def test_counts_do_not_depend_on_how_many_rows_are_tokenized_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[object] = [{"prompt": "" if n % 3 else f"p{n}"} for n in range(40)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    seen = set()
    for batch in (1, 2, 7, 256):
        monkeypatch.setattr(loader, "_BATCH_ROWS", batch)
        provenance = load(dataset="jsonl", dataset_path=path, num_prompts=5).provenance
        seen.add((provenance.rows_read, provenance.rows_kept, tuple(provenance.dropped.items())))
    assert seen == {(13, 5, (("blank prompt", 8),))}


def test_every_row_is_kept_or_counted(tmp_path: Path) -> None:
    rows: list[object] = [
        {"prompt": "good"},
        {"prompt": "x" * 5000},
        {"input_tok_ids": [1, 256, 2]},
        {"input_tok_ids": [1, 260]},
        {"input_tok_ids": []},
        {"prompt": "p", "reply": ""},
        {"prompt": 3},
        {"input_tok_ids": [7, 8], "output_toks": 5},
    ]
    workload = load(
        dataset="jsonl", dataset_path=write_lines(tmp_path / "a.jsonl", rows), num_prompts=2
    )
    provenance = workload.provenance
    assert provenance.dropped == {
        "bad row": 1,
        "blank prompt": 1,
        "empty reply": 1,
        "mask token in prompt": 1,
        "prompt too long": 1,
        "token id unknown to the tokenizer": 1,
    }
    assert provenance.rows_read == 8 == provenance.rows_kept + sum(provenance.dropped.values())
    assert workload.requests[1].prompt_ids.tolist() == [7, 8]
    assert workload.requests[1].reply_tokens == 5
    assert workload.requests[0].reply_tokens is None


@pytest.mark.parametrize(("tokens", "fits"), [(64, True), (65, False), (59, True)])
def test_prompt_limit_counts_whole_blocks(tmp_path: Path, tokens: int, fits: bool) -> None:
    """ceil((P + max_new) / B) * B <= max positions (algorithm section 7): 69 positions are 96."""
    rows: list[object] = [{"input_tok_ids": [1] * tokens}, {"input_tok_ids": [1]}]
    workload = load(
        max_positions=127,
        dataset="jsonl",
        dataset_path=write_lines(tmp_path / "a.jsonl", rows),
        num_prompts=1,
        max_new_tokens=32,
    )
    assert workload.requests[0].num_prompt_tokens == (tokens if fits else 1)


def test_repeat_says_so(numbered: str) -> None:
    workload = load(dataset="jsonl", dataset_path=numbered, num_prompts=20, repeat=True)
    assert prompts(workload) == [f"p{n % 9}" for n in range(20)]
    assert [request.request_id for request in workload.requests] == list(range(20))
    assert workload.provenance.rows_kept == 9
    assert workload.provenance.notes == ("20 prompts repeat the 9 usable rows",)


def test_arrivals_and_closed_loop(numbered: str) -> None:
    open_loop = load(dataset="jsonl", dataset_path=numbered, num_prompts=9, request_rate=2.0)
    times = [request.arrival_s for request in open_loop.requests]
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] > 0
    assert open_loop.request_rate == 2.0
    closed = load(dataset="jsonl", dataset_path=numbered, num_prompts=9, max_concurrency=3)
    assert closed.max_concurrency == 3
    assert {request.arrival_s for request in closed.requests} == {0.0}
    with pytest.raises(UsageError, match=r"--request-rate: 2\.0 .* inf with --max-concurrency"):
        load(dataset="jsonl", dataset_path=numbered, request_rate=2.0, max_concurrency=3)


def test_wildchat_parquet_and_lines_are_the_same(tmp_path: Path) -> None:
    rows = [
        {
            "conversation_hash": str(n),
            "turn": 1,
            "conversation": [
                {"role": "user", "content": f"вопрос {n}", "toxic": False},
                {"role": "assistant", "content": "a" * n, "toxic": False},
            ],
        }
        for n in range(200)
    ]
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "train-0.parquet", row_group_size=70)
    lines = write_lines(tmp_path / "rows.jsonl", list(rows))
    loaded = [
        load(dataset="wildchat", dataset_path=path, num_prompts=199, max_new_tokens=150)
        for path in (str(tmp_path / "train-0.parquet"), lines)
    ]
    assert prompts(loaded[0]) == prompts(loaded[1]) == [f"вопрос {n}" for n in range(1, 200)]
    assert loaded[0].provenance.dropped == {"empty reply": 1}
    counted = [min(n, 150) for n in range(1, 200)]  # a request gives no more
    assert [r.reply_tokens for r in loaded[0].requests] == counted


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1....PAR1")
    with pytest.raises(UsageError, match="allowed: a whole parquet file"):
        load(dataset="wildchat", dataset_path=str(tmp_path / "a.parquet"))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"focus-bench\[parquet\]"):
        load(dataset="wildchat", dataset_path=str(tmp_path / "a.parquet"))


def test_sharegpt_that_is_nowhere_becomes_a_set_named_synthetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "packaged_sharegpt", lambda: None)
    workload = load(num_prompts=30)
    provenance = workload.provenance
    assert provenance.synthetic
    assert provenance.origin == provenance.dataset == "synthetic"
    assert "no ShareGPT file" in provenance.notes[0]
    assert len(workload.requests) == 30
    same = load(dataset="synthetic", num_prompts=30)
    assert same.provenance.notes == ()
    for left, right in zip(workload.requests, same.requests, strict=True):
        assert left.prompt_ids.tolist() == right.prompt_ids.tolist()
        assert left.reply_tokens == right.reply_tokens


def test_synthetic_prompts_that_do_not_fit_are_counted() -> None:
    provenance = load(dataset="synthetic", num_prompts=50, max_positions=128).provenance
    assert provenance.rows_kept == 50
    assert provenance.dropped["prompt too long"] == provenance.rows_read - 50 > 0


def test_random_lengths() -> None:
    workload = load(
        dataset="random", num_prompts=3, random_input_len=17, random_output_len=5, max_new_tokens=64
    )
    assert [r.num_prompt_tokens for r in workload.requests] == [17] * 3
    assert [r.reply_tokens for r in workload.requests] == [5] * 3
    assert workload.provenance.synthetic
    default = load(dataset="random", num_prompts=1, max_new_tokens=9)
    assert default.requests[0].num_prompt_tokens == 1024
    assert default.requests[0].reply_tokens == 9
    with pytest.raises(UsageError, match=r"--random-input-len: 5000 .*<= 4095"):
        load(dataset="random", num_prompts=2, random_input_len=5000)


@pytest.mark.parametrize(("batch", "expected"), [(1, 5), (2, 6), (4, 8), (7, 7)])
def test_no_batch_is_read_ahead_that_may_not_be_wanted(
    monkeypatch: pytest.MonkeyPatch, batch: int, expected: int
) -> None:
    made: list[Row] = []

    def counted(*given: object, **how: object) -> Iterator[Row]:
        for row in fixed_length_rows(*given, **how):  # type: ignore[arg-type]
            made.append(row)
            yield row

    monkeypatch.setattr(loader, "fixed_length_rows", counted)
    monkeypatch.setattr(loader, "_BATCH_ROWS", batch)
    workload = load(dataset="random", num_prompts=5, random_input_len=17)
    assert len(workload.requests) == workload.provenance.rows_read == 5
    assert len(made) == expected


def test_gzip_is_known_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rows.data"
    path.write_bytes(gzip.compress(b'{"prompt": "zipped"}'))
    assert prompts(load(dataset="jsonl", dataset_path=str(path), num_prompts=1)) == ["zipped"]


def test_wrong_names_and_paths() -> None:
    with pytest.raises(UsageError, match=r"--dataset: 'sharegtp' .* sharegpt, wildchat, math"):
        load(dataset="sharegtp")
    with pytest.raises(UsageError, match="no path with --dataset synthetic"):
        load(dataset="synthetic", dataset_path="x")
    assert {"synthetic", "random", "jsonl", "ifeval"} <= set(DATASETS)
