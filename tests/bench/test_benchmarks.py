"""Problems of outside benchmarks from local files, and what is said where something is missing."""

import gzip
import importlib.util
import json
import os
import sys
import types
from pathlib import Path

import pytest

from focus_bench.bench.benchmarks import (
    BENCHMARKS,
    OFFLINE,
    check_harness,
    fewshot_of,
    go_offline,
    load_problems,
)
from focus_bench.core.errors import UsageError


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(name: str, path: Path, count: int | None = None):
    return load_problems(name, path=str(path), download=False, count=count, tokenizer="byte")


def test_whole_rows_are_kept_and_others_counted(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": f"#### {i}", "more": i} for i in range(3)]
    file = write(tmp_path / "test.jsonl", [rows[0], {"question": "no answer"}, *rows[1:], 7])
    problems = load("gsm8k", file)
    assert list(problems.documents) == rows
    assert problems.provenance.dropped == {"bad row": 2}
    assert (problems.provenance.rows_read, problems.provenance.rows_kept) == (5, 3)
    assert list(load("gsm8k", file, count=2).documents) == rows[:2]
    with pytest.raises(UsageError, match="1 to 3, all that gsm8k has"):
        load("gsm8k", file, count=4)


def test_mbpp_takes_its_test_split_out_of_the_file_of_all_rows(tmp_path: Path) -> None:
    rows = [
        {"task_id": i, "text": "t", "code": "c", "test_list": []} for i in (1, 10, 11, 510, 511)
    ]
    problems = load("mbpp", write(tmp_path / "mbpp.jsonl", rows))
    assert [row["task_id"] for row in problems.documents] == [11, 510]
    assert problems.provenance.dropped == {"not of the test split": 3}


def test_no_usable_row_names_the_fields(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", [{"prompt": "p"}])
    with pytest.raises(UsageError, match=r"question, answer.*1 bad row"):
        load("gsm8k", file)


def test_gzip_files_are_read(tmp_path: Path) -> None:
    row = {"task_id": "HumanEval/0", "prompt": "p", "entry_point": "e", "test": "t"}
    file = tmp_path / "HumanEval.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(row).encode()))
    assert list(load("humaneval", file).documents) == [row]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_real_files_have_the_fields(name: str, shared_dir: Path) -> None:
    sizes = {"gsm8k": 1319, "math500": 500, "humaneval": 164, "mbpp": 500, "ifeval": 541}
    folder = shared_dir / "data" / name
    assert len(load(name, folder).documents) == sizes[name]


def test_offline_is_said_to_every_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OFFLINE:
        monkeypatch.setenv(name, "0")  # so that it is put back afterwards
    go_offline()
    assert {os.environ[name] for name in OFFLINE} == {"1"}
    assert "HF_HUB_OFFLINE" in OFFLINE


def test_a_missing_harness_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"gsm8k.*focus-bench\[eval\].*lm_eval"):
        check_harness("gsm8k")


def test_ifeval_without_nltk_data_is_refused_before_the_harness_would_fetch_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def find(name: str) -> None:
        asked.append(name)
        raise LookupError(name)

    nltk = types.ModuleType("nltk")
    nltk.data = types.SimpleNamespace(find=find)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nltk", nltk)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(UsageError, match=r"ifeval.*punkt_tab"):
        check_harness("ifeval")
    assert asked == ["tokenizers/punkt_tab"]


def test_worked_examples_are_those_that_the_task_files_have() -> None:
    assert fewshot_of("gsm8k", None) == 0
    assert fewshot_of("mbpp", None) == 3
    assert fewshot_of("gsm8k", 5) == 5
    with pytest.raises(UsageError, match="--num-fewshot of humaneval: 1"):
        fewshot_of("humaneval", 1)
    gsm8k = BENCHMARKS["gsm8k"]
    assert gsm8k.task(chat=True, num_fewshot=0) == "gsm8k_cot_zeroshot"
    assert gsm8k.task(chat=True, num_fewshot=4) == "gsm8k_cot"
    assert BENCHMARKS["mbpp"].task(chat=False, num_fewshot=3) == "mbpp"
    assert BENCHMARKS["mbpp"].task(chat=True, num_fewshot=3) == "mbpp_instruct"
