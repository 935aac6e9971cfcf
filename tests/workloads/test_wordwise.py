"""Text encoded word by word against the tokenizers library's own encoding of the whole."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from focus_bench.core.workload import TokenArray
from focus_bench.workloads import wordwise
from focus_bench.workloads.hf_tokenizer import QWEN2_SPLIT
from focus_bench.workloads.wordwise import WordwiseEncoder

ADDED = ("<|a|>", "<|a|>b", "<t>")
# What the pattern tells apart, the blanks and controls of ASCII, and characters that NFC joins.
PIECES = (
    *"ab Z0'_.<|>-\n\r\t\v\f\x00\x1c\x1f\x7f",
    *(
        "\u00e9",
        "e\u0301",
        "\u0301",
        "\u00a0",
        "\u0085",
        "\u2028",
        "\u212a",
        "\u017f",
        "\u00b2",
        "字",
    ),
    *("'s", "'LL", "the", " the", "\r\n", "  ", "\n\n", *ADDED),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


def library() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    # Pairs across every border that the pattern draws: a cut in another place gives other ids.
    backend.train_from_iterator(["the 's 'LL ab  \n\n .\n \t ..the"] * 9, trainer)
    backend.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return backend


LIBRARY = library()


class Counting:
    """Encodes with the library and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[TokenArray]:
        self.asked += texts
        encoded = LIBRARY.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.int32) for encoding in encoded]


def ids_of(encoded: list[TokenArray]) -> list[list[int]]:
    assert all(ids.dtype == np.int32 for ids in encoded)
    return [ids.tolist() for ids in encoded]


ENCODER = WordwiseEncoder(Counting(), split=QWEN2_SPLIT, added=ADDED)


@settings(max_examples=500, deadline=None)
@given(texts=st.lists(TEXTS, max_size=4))
def test_any_text_has_the_librarys_ids(texts: list[str]) -> None:
    assert ids_of(ENCODER(texts)) == ids_of(Counting()(texts))


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(max_codepoint=127), max_size=60))
def test_any_ascii_text_has_the_librarys_ids(text: str) -> None:
    assert ids_of(ENCODER([text])) == ids_of(Counting()([text]))


def test_a_word_is_encoded_once_and_lines_beyond_ascii_whole() -> None:
    whole = Counting()
    encode = WordwiseEncoder(whole, split=QWEN2_SPLIT, added=ADDED)
    texts = ["the the\nthé the\nthe<|a|>b", "", "the"]
    assert ids_of(encode(texts)) == ids_of(Counting()(texts))
    assert sorted(whole.asked) == ["\n", " the", "<|a|>b", "the", "thé the\n"]
    encode(texts)
    assert len(whole.asked) == 5


def test_without_added_tokens_text_is_only_words() -> None:
    whole = Counting()
    encode = WordwiseEncoder(whole, split=QWEN2_SPLIT, added=[""])
    encode(["ab <t>"])
    assert sorted(whole.asked) == [" <", ">", "ab", "t"]


def test_words_are_forgotten_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordwise, "_MOST_CHARS", 5)
    whole = Counting()
    encode = WordwiseEncoder(whole, split=QWEN2_SPLIT, added=ADDED)
    for text in ("ab the", "ab", "ab"):
        assert ids_of(encode([text])) == ids_of(Counting()([text]))
    assert sorted(whole.asked) == [" the", "ab", "ab"]


def test_several_threads_may_encode_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordwise, "_MOST_CHARS", 40)
    encode = WordwiseEncoder(Counting(), split=QWEN2_SPLIT, added=ADDED)
    texts = [f"the word{i % 7} a{i} {i}\n" for i in range(300)]
    batches = [texts[i : i + 5] for i in range(0, len(texts), 5)]
    with ThreadPoolExecutor(4) as pool:
        encoded = [ids for batch in pool.map(encode, batches) for ids in batch]
    assert ids_of(encoded) == ids_of(Counting()(texts))
