"""SDAR's published tokenizer against transformers on rows of real data sets."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Tokenizer

from focus_bench.workloads.tokenizers import Tokenizer, load_tokenizer

ODD_TEXTS = [
    "Съешь же ещё этих мягких французских булок, да выпей чаю 1234",
    "私はガラスを食べられます。それは私を傷つけません。ｶﾞ 敏捷的棕色狐狸",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1ee \U0001f600\U0001f3fd",
    "e\u0301\u0327 \u1e9b\u0323 \ufb01 \u00c5\u212b",
    "if x:\n\treturn\t\t[1,\n\n\n  2]   \r\n\r\n   # don't WE'LL   ",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया",
    "a\u00a0b\u2003c\u200bd\ufeffe\u0000f",
    "<|im_end|><think>x</think><|MASK|><MASK> <|endoftext|>",
    "",
    " ",
    "\n",
]


@pytest.fixture(scope="module")
def folder(shared_dir: Path) -> Path:
    return shared_dir / "data" / "sdar_tokenizer"


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return Qwen2Tokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def texts(shared_dir: Path) -> list[str]:
    def rows(name: str) -> list[dict[str, Any]]:
        lines = (shared_dir / "data" / name).read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line][:150]

    return [
        *ODD_TEXTS,
        *(row["question"] for row in rows("gsm8k/test.jsonl")),
        *(row["solution"] for row in rows("math/test.jsonl")),
        *(row["code"] for row in rows("mbpp/mbpp.jsonl")),
        *(row["prompt"] for row in rows("ifeval/input_data.jsonl")),
    ]


def test_ids_equal_transformers(tokenizer: Tokenizer, reference: Any, texts: list[str]) -> None:
    expected = reference(texts, add_special_tokens=False).input_ids
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == expected


def test_decoding_equals_transformers(
    tokenizer: Tokenizer, reference: Any, texts: list[str]
) -> None:
    for ids in tokenizer.encode_batch(texts[:60]):
        for cut in (len(ids), len(ids) // 2, 1):
            for skip in (True, False):
                expected = reference.decode(ids[:cut].tolist(), skip_special_tokens=skip)
                assert tokenizer.decode(ids[:cut], skip) == expected


def test_chat_prompts_equal_transformers(
    tokenizer: Tokenizer, reference: Any, texts: list[str]
) -> None:
    chosen = texts[::10]
    chats = [[{"role": "user", "content": text}] for text in chosen]
    expected = reference.apply_chat_template(chats, add_generation_prompt=True)["input_ids"]
    assert [ids.tolist() for ids in tokenizer.chat_prompts(chosen)] == expected


def test_special_ids(tokenizer: Tokenizer, reference: Any) -> None:
    assert tokenizer.size == len(reference) == 151670
    assert tokenizer.mask_token_id == 151669
    assert tokenizer.eos_token_id == 151643
    assert len(tokenizer.special_token_ids) == 27
    assert tokenizer.encode("<|MASK|>").tolist() == [151669]
    # The older files of this folder spell it so; the configuration is the truth.
    assert 151669 not in tokenizer.encode("<MASK>").tolist()
