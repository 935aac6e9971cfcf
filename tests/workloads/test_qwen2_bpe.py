"""tiktoken against tokenizers on a vocabulary trained here, which is made known for the tests."""

import hashlib
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from focus_bench.workloads import qwen2_bpe
from focus_bench.workloads.hf_tokenizer import QWEN2_SPLIT, HfTokenizer
from focus_bench.workloads.qwen2_bpe import Qwen2Bpe

SENTENCES = [
    "The quick brown fox doesn't jump; it's 1234 days late.",
    "def f(x):\n    return x + 1  # comment\n\n\n\treturn",
    "Съешь же ещё этих мягких французских булок",
    "敏捷的棕色狐狸跳过了懒狗 a\u0301 \u0438\u0306",
]
ADDED = '{"<|im_start|>": 400, "<|MASK|>": 401}'
pieces = st.sampled_from([*SENTENCES, "<|im_start|>", "<|MASK|>", "<|", "e\u0301", "\u0338", " \n"])
texts = st.lists(st.one_of(st.text(max_size=12), pieces), max_size=6).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen2")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(SENTENCES * 4, trainer)
    backend.model.save(str(path))
    assert backend.get_vocab_size() == 400
    (path / "added_tokens.json").write_text(ADDED, encoding="utf-8")
    config = '{"mask_token": "<|MASK|>", "eos_token": "<|im_start|>"}'
    (path / "tokenizer_config.json").write_text(config, encoding="utf-8")
    return path


def make_known(folder: Path, patch: pytest.MonkeyPatch) -> None:
    data = (folder / "vocab.json").read_bytes() + (folder / "merges.txt").read_bytes()
    patch.setattr(qwen2_bpe, "QWEN2_FILES", hashlib.sha256(data).hexdigest())
    patch.setattr(qwen2_bpe, "QWEN2_SIZE", 400)


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[HfTokenizer, HfTokenizer]:
    """With tiktoken, and without it."""
    slow = HfTokenizer(folder)
    with pytest.MonkeyPatch.context() as patch:
        make_known(folder, patch)
        fast = HfTokenizer(folder)
    assert fast._qwen2 is not None
    assert slow._qwen2 is None
    return fast, slow


@settings(max_examples=200, deadline=None)
@given(batch=st.lists(texts, max_size=8), at_most=st.integers(1, 20))
def test_ids_and_counts_are_those_of_tokenizers(
    both: tuple[HfTokenizer, HfTokenizer], batch: list[str], at_most: int
) -> None:
    fast, slow = ([ids.tolist() for ids in of.encode_batch(batch)] for of in both)
    assert fast == slow
    assert both[0].count_tokens(batch, at_most) == both[1].count_tokens(batch, at_most)


@pytest.mark.parametrize("text", ["e\u0301", "<|im_start|>\u0338", f"a{qwen2_bpe._SEPARATOR}b"])
def test_what_tiktoken_does_not_know_goes_to_tokenizers(
    both: tuple[HfTokenizer, HfTokenizer], text: str
) -> None:
    fast, slow = both
    assert fast._qwen2 is not None
    assert not fast._qwen2.takes(text)
    batch = ["a", text, "b"]
    expected = [ids.tolist() for ids in slow.encode_batch(batch)]
    assert [ids.tolist() for ids in fast.encode_batch(batch)] == expected


def test_a_run_that_tiktoken_cannot_cut(both: tuple[HfTokenizer, HfTokenizer]) -> None:
    fast, slow = both
    assert fast._qwen2 is not None
    batch = ["a", " " * 1_000_000 + "x"]
    assert fast._qwen2.encode_batch(batch) is None
    expected = [ids.tolist() for ids in slow.encode_batch(batch)]
    assert [ids.tolist() for ids in fast.encode_batch(batch)] == expected


def test_facts_are_those_that_tokenizers_has(both: tuple[HfTokenizer, HfTokenizer]) -> None:
    fast, slow = both
    assert fast.size == slow.size == 402
    assert fast.special_token_ids == slow.special_token_ids == {400, 401}
    assert (fast.mask_token_id, fast.eos_token_id) == (slow.mask_token_id, slow.eos_token_id)
    assert fast.mask_token_id == 401
    assert fast.decode([400, 65, 66], skip_special=False) == slow.decode([400, 65, 66], False)


def test_what_is_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {400: AddedToken("<a>")}
    assert not Qwen2Bpe.is_known(folder, plain, [])
    make_known(folder, monkeypatch)
    assert Qwen2Bpe.is_known(folder, plain, ["<a>"])
    assert not Qwen2Bpe.is_known(folder / "nowhere", plain, [])
    assert not Qwen2Bpe.is_known(folder, plain, ["<b>"])
    assert not Qwen2Bpe.is_known(folder, {401: AddedToken("<a>")}, [])
    for odd in (
        AddedToken("<a>", lstrip=True),
        AddedToken("<a>", rstrip=True),
        AddedToken("<a>", single_word=True),
        AddedToken("a"),
    ):
        assert not Qwen2Bpe.is_known(folder, {400: odd}, [])


@pytest.mark.parametrize("fault", ["missing", "empty", "raises"])
def test_without_a_working_tiktoken_tokenizers_does_it(
    folder: Path, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_known(folder, monkeypatch)
    monkeypatch.setitem(sys.modules, "tiktoken", types.ModuleType("tiktoken"))
    if fault == "missing":
        monkeypatch.setitem(sys.modules, "tiktoken", None)
    elif fault == "raises":
        (tmp_path / "tiktoken.py").write_text("raise OSError('libtiktoken.so: cut off')")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "tiktoken")
    tokenizer = HfTokenizer(folder)
    assert tokenizer._qwen2 is None
    assert tokenizer.encode_batch(["a<|MASK|>"])[0].tolist()[-1] == 401


def test_no_texts(folder: Path) -> None:
    assert Qwen2Bpe(folder, QWEN2_SPLIT, {}).encode_batch([]) == []
