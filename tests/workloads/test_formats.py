"""One row of each published schema, and rows that break it."""

import pytest

from focus_bench.workloads.formats import FORMATS
from focus_bench.workloads.rows import Lost, Row


def turns(*pairs: tuple[object, object]) -> dict[str, object]:
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in pairs]}


@pytest.mark.parametrize("human", ["human", "user"])
@pytest.mark.parametrize("model", ["gpt", "chatgpt", "bing", "bard"])
def test_sharegpt_first_pair_behind_other_turns(human: str, model: str) -> None:
    row = FORMATS["sharegpt"].row(
        turns(("system", "s"), ("gpt", "g"), (human, " hi "), (model, "yo"), (human, "more"))
    )
    assert row == Row(prompt=" hi ", reply="yo")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (turns(), "no conversation"),
        (turns(("gpt", "a"), ("system", "b")), "no human turn"),
        (turns(("human", " \n"), ("gpt", "a"), ("human", "b"), ("gpt", "c")), "blank prompt"),
        (turns(("human", "a")), "no reply"),
        (turns(("human", "a"), ("human", "b"), ("gpt", "c")), "no reply"),
        (turns(("human", None), ("gpt", "c")), "bad row"),
        (turns(("human", "a"), ("gpt", None)), "bad row"),
        (turns(("human", "a"), ("gpt", 3)), "bad row"),
        ({"id": "no key"}, "bad row"),
        ({"conversations": "text"}, "bad row"),
        ({"conversations": [None]}, "bad row"),
        (["not", "an", "object"], "bad row"),
        (None, "bad row"),
    ],
)
def test_sharegpt_losses(value: object, reason: str) -> None:
    assert FORMATS["sharegpt"].row(value) == Lost(reason)


def test_wildchat() -> None:
    conversation = [
        {"role": "user", "content": "hi", "country": "x"},
        {"role": "assistant", "content": "yo"},
    ]
    assert FORMATS["wildchat"].row({"conversation": conversation}) == Row(prompt="hi", reply="yo")
    assert FORMATS["wildchat"].row({"conversation": conversation[:1]}) == Lost("no reply")


@pytest.mark.parametrize(
    ("dataset", "fields", "row"),
    [
        ("math", {"problem": "p", "solution": "s", "level": "Level 1"}, Row(prompt="p", reply="s")),
        ("math500", {"problem": "p", "solution": "s", "answer": "1"}, Row(prompt="p", reply="s")),
        ("gsm8k", {"question": "q", "answer": "a\n#### 1"}, Row(prompt="q", reply="a\n#### 1")),
        (
            "humaneval",
            {"prompt": "def f():\n", "canonical_solution": " pass"},
            Row(prompt="def f():\n", reply=" pass"),
        ),
        (
            "mbpp",
            {"text": "t", "code": "c", "test_list": ["assert 1", "assert 2"]},
            Row(prompt="t\nassert 1\nassert 2", reply="c"),
        ),
        (
            "mbpp",
            {"prompt": "t", "code": "c", "test_list": ["assert 1"]},
            Row(prompt="t\nassert 1", reply="c"),
        ),
        ("ifeval", {"key": 1, "prompt": "p", "kwargs": [{}]}, Row(prompt="p")),
        ("jsonl", {"prompt": "p"}, Row(prompt="p")),
        ("jsonl", {"prompt": "p", "reply": "r"}, Row(prompt="p", reply="r")),
        ("jsonl", {"prompt": "p", "response": "r"}, Row(prompt="p", reply="r")),
        ("jsonl", {"prompt": "p", "completion": "r"}, Row(prompt="p", reply="r")),
    ],
)
def test_text_rows(dataset: str, fields: dict[str, object], row: Row) -> None:
    assert FORMATS[dataset].row(fields) == row


def test_trace_row() -> None:
    row = FORMATS["jsonl"].row({"input_toks": 3, "output_toks": 7, "input_tok_ids": [5, 0, 9]})
    assert isinstance(row, Row)
    assert row.prompt_ids is not None
    assert row.prompt_ids.tolist() == [5, 0, 9]
    assert row.reply_tokens == 7


@pytest.mark.parametrize(
    "fields",
    [
        {"input_tok_ids": [1, -1]},
        {"input_tok_ids": [1, 2**31]},
        {"input_tok_ids": [1, True]},
        {"input_tok_ids": ["1"]},
        {"input_tok_ids": "12"},
        {"input_tok_ids": [1], "output_toks": -1},
        {"input_tok_ids": [1], "output_toks": "7"},
        {"prompt": 3},
        {"text": "no prompt"},
        {"prompt": "p", "reply": 3},
    ],
)
def test_bad_jsonl_rows(fields: dict[str, object]) -> None:
    assert FORMATS["jsonl"].row(fields) == Lost("bad row")


@pytest.mark.parametrize("dataset", ["math", "gsm8k", "humaneval", "mbpp", "ifeval"])
def test_rows_without_their_key_are_bad(dataset: str) -> None:
    assert FORMATS[dataset].row({"other": "x"}) == Lost("bad row")


def test_mbpp_without_a_task_is_blank_although_it_has_tests() -> None:
    fields = {"text": " ", "code": "c", "test_list": ["assert 1"]}
    assert FORMATS["mbpp"].row(fields) == Lost("blank prompt")
