"""The byte tokenizer, and what --tokenizer may name."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import DUMMY_MODEL, PRESETS
from focus_bench.workloads.tokenizers import ByteTokenizer, load_tokenizer


@given(st.text())
def test_text_survives(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == list(text.encode("utf-8", "replace"))
    assert tokenizer.decode(ids) == text.encode("utf-8", "replace").decode()
    assert [part.tolist() for part in tokenizer.encode_batch([text, "a"])] == [ids.tolist(), [97]]
    assert tokenizer.count_tokens([text, "abc"], 2) == [min(len(ids), 2), 2]


@given(st.lists(st.integers(-5, 400)))
def test_any_ids_decode(ids: list[int]) -> None:
    known = bytes(token for token in ids if 0 <= token < 256)
    assert ByteTokenizer().decode(ids) == known.decode("utf-8", "replace")


def test_special_tokens_show_only_when_asked_for() -> None:
    tokenizer = ByteTokenizer()
    ids = np.array([258, 104, 105, 259, 256, 0xF0, 257, 319])
    assert tokenizer.decode(ids) == "hi\ufffd"
    assert tokenizer.decode(ids, skip_special=False) == "<user>hi<assistant><mask>\ufffd<eos>"


def test_chat_form() -> None:
    ids, had_template = ByteTokenizer().chat_prompt("hi")
    assert ids.tolist() == [258, 104, 105, 259]
    assert ids.dtype == np.int32
    assert had_template
    assert [p.tolist() for p in ByteTokenizer().chat_prompts(["hi"])] == [ids.tolist()]


def test_it_is_the_default_presets_tokenizer() -> None:
    spec, tokenizer = PRESETS[DUMMY_MODEL], ByteTokenizer()
    assert spec.tokenizer_size == tokenizer.size
    assert spec.mask_token_id == tokenizer.mask_token_id
    assert spec.stop_token_ids == (tokenizer.eos_token_id,)
    assert tokenizer.special_token_ids == set(range(256, 260))


@pytest.mark.parametrize("name", ["", "byte"])
def test_names(name: str) -> None:
    assert load_tokenizer(name).name == "byte"


def test_unknown_name_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--tokenizer: 'nonesuch' is not usable; allowed: byte"):
        load_tokenizer("nonesuch")
    with pytest.raises(UsageError, match=r"allowed: a folder with tokenizer\.json, or vocab\.json"):
        load_tokenizer(str(tmp_path))


def test_damaged_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"--tokenizer: .*allowed: readable tokenizer files"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match=r"tokenizer_config\.json.*list.*a JSON object"):
        load_tokenizer(str(tmp_path))
