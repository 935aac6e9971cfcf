"""Tokenizers of Hugging Face folders against transformers, on a small vocabulary trained here."""

import json
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

from focus_bench.core.errors import UsageError
from focus_bench.workloads.tokenizers import Tokenizer, load_tokenizer

SENTENCES = [
    "The quick brown fox doesn't jump; it's 1234 days late.",
    "def f(x):\n    return x + 1  # comment\n\n\n\treturn",
    "Съешь же ещё этих мягких французских булок",
    "敏捷的棕色狐狸跳过了懒狗",
    "e\u0301 versus \u00e9, \u1e9b\u0323, \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f600",
    "  leading and trailing  \r\n",
    "WE'LL we'Ve I'M",
]
# The mask and the turn marker are special by the configuration's naming them, as SDAR's mask is.
ADDED = {"<|endoftext|>": True, "<|im_start|>": False, "<think>": False, "<|MASK|>": False}
CHAT = (
    "{%- for m in messages %}\n"
    "    {%- if not m.content %}{{ raise_exception('empty turn') }}{%- endif %}\n"
    "<|im_start|>{{ m.role }} {{ m | tojson }} {{ eos_token }}\n"
    "{%- endfor %}\n"
    "  {% if add_generation_prompt %}\n  reply\n  {% endif %}\n"
    "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}\n"
    "{%- if add_generation_prompt %}<|im_start|>assistant{{ tools is none }}\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(SENTENCES * 4, trainer)
    backend.model.save(str(path))
    first = backend.get_vocab_size()
    entry = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    decoder = {
        str(first + offset): {"content": text, **entry, "special": special}
        for offset, (text, special) in enumerate(ADDED.items())
    }
    config = {
        "added_tokens_decoder": decoder,
        "chat_template": CHAT,
        "eos_token": "<|endoftext|>",
        "mask_token": "<|MASK|>",
        "additional_special_tokens": ["<|im_start|>"],
        "tokenizer_class": "Qwen2Tokenizer",
    }
    write(path / "tokenizer_config.json", config)
    # As published with SDAR: the older files give the mask another name.
    write(path / "added_tokens.json", {"<MASK>": first + 3})
    return path


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return Qwen2Tokenizer.from_pretrained(folder)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from([*SENTENCES, *ADDED, " ", "\n\n", "\t"]) | st.text(max_size=15), max_size=6
    )
)
def test_equal_to_transformers(tokenizer: Tokenizer, reference: Any, parts: list[str]) -> None:
    text = "".join(parts)
    ids = tokenizer.encode(text)
    assert ids.tolist() == reference(text, add_special_tokens=False).input_ids
    for skip in (True, False):
        expected = reference.decode(ids.tolist(), skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip) == expected


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.sampled_from([*SENTENCES, *ADDED, " ", "\n", "=" * 90, "ab" * 300, "鶏"])),
        max_size=4,
    ),
    st.integers(1, 60),
)
def test_counting_to_a_limit(tokenizer: Tokenizer, parts: list[list[str]], limit: int) -> None:
    texts = ["".join(pieces * 5) for pieces in parts]
    counts = [min(len(ids), limit) for ids in tokenizer.encode_batch(texts)]
    assert tokenizer.count_tokens(texts, limit) == counts


def test_facts_equal_transformers(tokenizer: Tokenizer, reference: Any, folder: Path) -> None:
    assert tokenizer.size == len(reference)
    assert tokenizer.mask_token_id == reference.convert_tokens_to_ids("<|MASK|>")
    assert tokenizer.eos_token_id == reference.eos_token_id
    assert tokenizer.special_token_ids == set(reference.convert_tokens_to_ids(list(ADDED)))
    assert tokenizer.name == str(folder)


@pytest.mark.parametrize("text", ["hi", " <b>&</b> \u00e9 ", 'quote" \n newline', "<|MASK|>"])
def test_chat_template_equals_transformers(tokenizer: Tokenizer, reference: Any, text: str) -> None:
    messages = [{"role": "user", "content": text}]
    expected = reference.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    ids, had_template = tokenizer.chat_prompt(text)
    assert had_template
    assert ids.tolist() == expected
    assert [prompt.tolist() for prompt in tokenizer.chat_prompts([text])] == [expected]


def test_every_prefix_of_a_character_decodes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a\U0001f980")
    texts = [tokenizer.decode(ids[:n]) for n in range(len(ids) + 1)]
    assert texts[-1] == "a\U0001f980"
    assert texts[1] == "a"
    assert all(text.rstrip("\ufffd") in ("", "a") for text in texts[:-1])
    assert tokenizer.decode([tokenizer.size + 5, int(ids[0])]) == "a"


def test_half_surrogates_of_json_do_not_stop_it(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(json.loads('"a\\ud83d!"'))) == "a?!"


def copy(folder: Path, target: Path, **config_changes: object) -> Path:
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (target / name).write_bytes((folder / name).read_bytes())
    config = json.loads((target / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.update(config_changes)
    write(target / "tokenizer_config.json", {k: v for k, v in config.items() if v is not None})
    return target


def test_tokenizer_json_gives_the_same_as_vocab_and_merges(
    tokenizer: Tokenizer, reference: Any, tmp_path: Path
) -> None:
    reference.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").is_file()
    assert not (tmp_path / "vocab.json").exists()
    other = load_tokenizer(str(tmp_path))
    text = "<|im_start|>".join(SENTENCES) + "<think>"
    assert other.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert other.size == tokenizer.size
    assert other.eos_token_id == tokenizer.eos_token_id


def test_added_tokens_json_counts_without_a_decoder_in_the_configuration(
    folder: Path, tmp_path: Path
) -> None:
    copy(folder, tmp_path, added_tokens_decoder=None)
    first = len(json.loads((folder / "vocab.json").read_text(encoding="utf-8")))
    # A gap of two ids before the second token.
    write(tmp_path / "added_tokens.json", {"<|endoftext|>": first, "<|MASK|>": first + 3})
    write(tmp_path / "special_tokens_map.json", {"additional_special_tokens": ["<|MASK|>"]})
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.mask_token_id == first + 3
    assert tokenizer.eos_token_id == first
    assert tokenizer.size == first + 4
    assert tokenizer.encode("a<|MASK|>").tolist()[-1] == first + 3
    assert tokenizer.decode([first + 3]) == ""


def test_added_token_that_contradicts_the_vocabulary_is_named(folder: Path, tmp_path: Path) -> None:
    copy(folder, tmp_path, added_tokens_decoder={"3": {"content": "<|endoftext|>"}})
    with pytest.raises(UsageError, match=r"added token <\|endoftext\|> with id 3"):
        load_tokenizer(str(tmp_path))


def test_template_file_goes_before_the_configuration(folder: Path, tmp_path: Path) -> None:
    copy(folder, tmp_path)
    (tmp_path / "chat_template.jinja").write_text("T{{ messages[0].content }}", encoding="utf-8")
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.decode(tokenizer.chat_prompt("x")[0]) == "Tx"


def test_default_of_several_templates(folder: Path, tmp_path: Path) -> None:
    named = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "D{{ messages[0].content }}"},
    ]
    tokenizer = load_tokenizer(str(copy(folder, tmp_path, chat_template=named)))
    assert tokenizer.decode(tokenizer.chat_prompt("x")[0]) == "Dx"


def test_no_template_means_raw_text(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(copy(folder, tmp_path, chat_template=None)))
    assert not tokenizer.has_chat_template
    ids, had_template = tokenizer.chat_prompt("The fox")
    assert not had_template
    assert ids.tolist() == tokenizer.encode("The fox").tolist()
    assert ids.dtype == np.int32


def test_templates_that_fail_are_usage_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"chat template: .* allowed: a template that jinja2"):
        load_tokenizer(str(copy(folder, tmp_path, chat_template="{% if %}")))
    with pytest.raises(UsageError, match="chat template: 'empty turn'"):
        load_tokenizer(str(copy(folder, tmp_path, chat_template=CHAT))).chat_prompt("")


def test_template_cannot_leave_its_sandbox(folder: Path, tmp_path: Path) -> None:
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    tokenizer = load_tokenizer(str(copy(folder, tmp_path, chat_template=escape)))
    with pytest.raises(UsageError, match="unsafe") as caught:
        tokenizer.chat_prompt("x")
    assert isinstance(caught.value.__cause__, jinja2.exceptions.SecurityError)
