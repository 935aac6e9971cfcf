"""What a row of each data set looks like: one small parser per published schema, in one table.

Knows no files and no tokenizers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from focus_bench.workloads.rows import (
    BAD_ROW,
    NO_CONVERSATION,
    NO_HUMAN_TURN,
    NO_REPLY,
    Lost,
    Row,
    text_row,
)

Fields = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class DatasetFormat:
    """How to read one data set, and where it is published.

    `parse` turns the fields of one row into a Row or Lost; `columns` are the fields it reads.
    `preferred`: patterns of the files to read of a folder, where any match, the best first.
    `hub_repo` and `hub_files` name it on the Hugging Face hub ("" and () where it has no place).
    """

    parse: Callable[[Fields], Row | Lost]
    columns: tuple[str, ...]
    preferred: tuple[str, ...] = ()
    hub_repo: str = ""
    hub_files: tuple[str, ...] = ()

    def row(self, value: object) -> Row | Lost:
        """The row that a JSON value is; whatever is no object is a bad row."""
        return self.parse(value) if isinstance(value, Mapping) else Lost(BAD_ROW)


def _first_pair(
    turns: object, *, speaker: str, text: str, humans: Sequence[str], models: Sequence[str]
) -> Row | Lost:
    """The first human turn and the reply right behind it.

    Later turns answer to what came before them, so a row whose first human turn is blank or
    stays without a reply is left out rather than searched on.
    """
    if not isinstance(turns, list):
        return Lost(BAD_ROW)
    if not turns:
        return Lost(NO_CONVERSATION)
    if not all(isinstance(turn, Mapping) for turn in turns):
        return Lost(BAD_ROW)
    first = next((i for i, turn in enumerate(turns) if turn.get(speaker) in humans), None)
    if first is None:
        return Lost(NO_HUMAN_TURN)
    prompt = text_row(turns[first].get(text))
    if isinstance(prompt, Lost):
        return prompt
    if first + 1 == len(turns) or turns[first + 1].get(speaker) not in models:
        return Lost(NO_REPLY)
    reply = turns[first + 1].get(text)
    return Lost(BAD_ROW) if reply is None else text_row(prompt.prompt, reply)


def _sharegpt(fields: Fields) -> Row | Lost:
    return _first_pair(
        fields.get("conversations"),
        speaker="from",
        text="value",
        humans=("human", "user"),
        models=("gpt", "chatgpt", "bing", "bard"),
    )


def _wildchat(fields: Fields) -> Row | Lost:
    return _first_pair(
        fields.get("conversation"),
        speaker="role",
        text="content",
        humans=("user",),
        models=("assistant",),
    )


def _math(fields: Fields) -> Row | Lost:
    return text_row(fields.get("problem"), fields.get("solution"))


def _gsm8k(fields: Fields) -> Row | Lost:
    return text_row(fields.get("question"), fields.get("answer"))


def _humaneval(fields: Fields) -> Row | Lost:
    return text_row(fields.get("prompt"), fields.get("canonical_solution"))


def _mbpp(fields: Fields) -> Row | Lost:
    """The task and its tests, which alone say how the function is to be named and called."""
    task = fields.get("text", fields.get("prompt"))
    tests = fields.get("test_list")
    if not isinstance(task, str) or not isinstance(tests, list):
        return Lost(BAD_ROW)
    if not all(isinstance(test, str) for test in tests):
        return Lost(BAD_ROW)
    return text_row("\n".join((task, *tests)) if task.strip() else "", fields.get("code"))


def _ifeval(fields: Fields) -> Row | Lost:
    return text_row(fields.get("prompt"))


def _jsonl(fields: Fields) -> Row | Lost:
    """Text rows, or rows of a trace with token ids and the reply's length."""
    ids = fields.get("input_tok_ids")
    if ids is None:
        replies = (fields[key] for key in ("reply", "response", "completion") if key in fields)
        return text_row(fields.get("prompt"), next(replies, None))
    length = fields.get("output_toks")
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        return Lost(BAD_ROW)
    if not (length is None or (type(length) is int and length >= 0)):
        return Lost(BAD_ROW)
    if any(not 0 <= token < 2**31 for token in ids):
        return Lost(BAD_ROW)
    return Row(prompt_ids=np.asarray(ids, dtype=np.int32), reply_tokens=length)


_MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
_TEST_SPLIT = ("*test*",)

FORMATS: dict[str, DatasetFormat] = {
    "sharegpt": DatasetFormat(
        parse=_sharegpt,
        columns=("conversations",),
        preferred=("*ShareGPT_V3_unfiltered_cleaned_split.json",),
        hub_repo="anon8231489123/ShareGPT_Vicuna_unfiltered",
        hub_files=("ShareGPT_V3_unfiltered_cleaned_split.json",),
    ),
    "wildchat": DatasetFormat(
        parse=_wildchat,
        columns=("conversation",),
        hub_repo="allenai/WildChat-1M",
        hub_files=("data/train-00000-of-00014.parquet",),
    ),
    "math": DatasetFormat(
        parse=_math,
        columns=("problem", "solution"),
        preferred=_TEST_SPLIT,
        hub_repo="EleutherAI/hendrycks_math",
        hub_files=tuple(f"{name}/test-00000-of-00001.parquet" for name in _MATH_SUBJECTS),
    ),
    "math500": DatasetFormat(
        parse=_math,
        columns=("problem", "solution"),
        preferred=_TEST_SPLIT,
        hub_repo="HuggingFaceH4/MATH-500",
        hub_files=("test.jsonl",),
    ),
    "gsm8k": DatasetFormat(
        parse=_gsm8k,
        columns=("question", "answer"),
        preferred=_TEST_SPLIT,
        hub_repo="openai/gsm8k",
        hub_files=("main/test-00000-of-00001.parquet",),
    ),
    "humaneval": DatasetFormat(
        parse=_humaneval,
        columns=("prompt", "canonical_solution"),
        hub_repo="openai/openai_humaneval",
        hub_files=("openai_humaneval/test-00000-of-00001.parquet",),
    ),
    "mbpp": DatasetFormat(
        parse=_mbpp,
        columns=("text", "prompt", "test_list", "code"),
        preferred=("*mbpp.jsonl", *_TEST_SPLIT),
        hub_repo="google-research-datasets/mbpp",
        hub_files=("full/test-00000-of-00001.parquet",),
    ),
    "ifeval": DatasetFormat(
        parse=_ifeval,
        columns=("prompt",),
        preferred=("*ifeval_input_data.jsonl", "input_data.jsonl"),
        hub_repo="google/IFEval",
        hub_files=("ifeval_input_data.jsonl",),
    ),
    "jsonl": DatasetFormat(
        parse=_jsonl,
        columns=(
            "prompt",
            "reply",
            "response",
            "completion",
            "input_tok_ids",
            "output_toks",
        ),
    ),
}
