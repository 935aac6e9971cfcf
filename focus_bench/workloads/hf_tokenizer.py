"""A tokenizer read from a Hugging Face folder without transformers (whose import pulls in torch).

Knows two layouts: tokenizer.json, and Qwen2's vocab.json + merges.txt. Nothing of data sets.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import (
    AddedToken,
    Encoding,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from tokenizers import Tokenizer as Backend

from focus_bench.core.errors import UsageError
from focus_bench.core.workload import TokenArray
from focus_bench.workloads.chat_template import ChatTemplate, Turn
from focus_bench.workloads.qwen2_bpe import Qwen2Bpe

# How Qwen2 to Qwen3 cut text into words before BPE: English contractions, letters with at most one
# other character before them, single digits, punctuation, line breaks, blanks. It is a fact of the
# vocabulary: another split gives other ids.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
# count_tokens looks at that many characters per token wanted, and wants some tokens more: the cut
# may split a word, and the last tokens in front of it are then not those of the whole text.
_CHARS_PER_TOKEN = 6
_SPARE_TOKENS = 16


def _read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file, {} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(str(path), str(error), "a JSON object") from error
    if not isinstance(value, dict):
        raise UsageError(str(path), type(value).__name__, "a JSON object")
    return value


def _token_text(value: object) -> str | None:
    """The text of a special token, which files give as a string or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Names such as eos_token with their text; tokenizer_config.json goes before the older map."""
    named = {**_read_json(folder / "special_tokens_map.json"), **config}
    texts = {key: _token_text(value) for key, value in named.items() if key.endswith("_token")}
    return {key: text for key, text in texts.items() if text is not None}


def _extra_special_tokens(config: Mapping[str, Any]) -> list[str]:
    """Special tokens without a name of their own."""
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    texts = extra.values() if isinstance(extra, dict) else extra
    return [text for text in map(_token_text, texts) if text is not None]


def _added_tokens(folder: Path, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Tokens outside the BPE by id.

    As in transformers, added_tokens_decoder of the configuration is the whole truth where it
    exists (the two disagree about the name of SDAR's mask token), added_tokens.json else.
    """
    decoder = config.get("added_tokens_decoder")
    if decoder:
        keys = ("lstrip", "rstrip", "normalized", "single_word", "special")
        return {
            int(token_id): AddedToken(
                entry["content"], **{key: bool(entry.get(key, False)) for key in keys}
            )
            for token_id, entry in decoder.items()
        }
    specials_map = _read_json(folder / "special_tokens_map.json")
    specials = {_token_text(value) for value in specials_map.values()}
    specials |= {_token_text(v) for v in specials_map.get("additional_special_tokens") or ()}
    added = _read_json(folder / "added_tokens.json")
    return {
        int(token_id): AddedToken(text, normalized=text not in specials, special=text in specials)
        for text, token_id in added.items()
    }


def _add(backend: Backend, added: Mapping[int, AddedToken], folder: Path) -> None:
    """Give every added token the id that the folder says; gaps are filled with unused names."""
    for token_id in sorted(added):
        while (have := backend.get_vocab_size()) < token_id:
            backend.add_tokens([AddedToken(f"<|unused_{have}|>")])
        backend.add_tokens([added[token_id]])
        got = backend.token_to_id(added[token_id].content)
        if got != token_id:
            raise UsageError(
                str(folder),
                f"added token {added[token_id].content} with id {token_id}",
                f"id {got}, which the vocabulary gives it",
            )


def _mark_special(backend: Backend, texts: Iterable[str]) -> None:
    """Make special what the configuration names as such, as transformers does.

    SDAR's mask token is an ordinary added token in its list, and special by its name only.
    """
    known = [text for text in texts if backend.token_to_id(text) is not None]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in known])


def _qwen2_backend(folder: Path) -> Backend:
    bpe = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    backend = Backend(bpe)
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _load_backend(folder: Path) -> Backend:
    try:
        if (folder / "tokenizer.json").is_file():
            return Backend.from_file(str(folder / "tokenizer.json"))
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            return _qwen2_backend(folder)
    except Exception as error:  # the library raises bare Exception for any bad file
        raise UsageError(
            "--tokenizer", f"{folder} ({error})", "readable tokenizer files"
        ) from error
    raise UsageError(
        "--tokenizer", str(folder), "a folder with tokenizer.json, or vocab.json and merges.txt"
    )


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The default chat template: its own file goes before the configuration's entry."""
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        return own_file.read_text(encoding="utf-8")
    entry = config.get("chat_template")
    if isinstance(entry, list):  # several named templates
        entry = {named.get("name"): named.get("template") for named in entry}.get("default")
    return entry if isinstance(entry, str) else None


class HfTokenizer:
    """The tokenizer of a folder as published with a model.

    `encode` gives the ids that transformers gives with add_special_tokens=False; special tokens
    spelled out in a text become their ids, as there. `name`: how outputs call it, the folder
    unless given. Raises UsageError naming an unusable file.
    """

    def __init__(self, folder: Path, *, name: str = "") -> None:
        config = _read_json(folder / "tokenizer_config.json")
        self._folder, self._added = folder, _added_tokens(folder, config)
        named = _special_tokens(folder, config)
        self._special_texts = (*named.values(), *_extra_special_tokens(config))
        self._qwen2: Qwen2Bpe | None = None
        if Qwen2Bpe.is_known(folder, self._added, self._special_texts):
            self._qwen2 = Qwen2Bpe(folder, QWEN2_SPLIT, self._added)
        self.name = name or str(folder)
        self.mask_token_id = self._id_of(named.get("mask_token"))
        self.eos_token_id = self._id_of(named.get("eos_token"))
        added: Collection[int] = self._added
        vocab_size = 0
        if self._qwen2 is None:
            added = self._backend.get_added_tokens_decoder()
            vocab_size = self._backend.get_vocab_size()
        self.size = max([vocab_size, *(i + 1 for i in added)])
        known = {self.mask_token_id, self.eos_token_id} - {None}
        self.special_token_ids = frozenset(added) | frozenset(i for i in known if i is not None)
        source = _template_source(folder, config)
        self._template = None if source is None else ChatTemplate(source, named)

    @cached_property
    def _backend(self) -> Backend:
        """Made at once where it encodes, later where only what tiktoken does not take needs it."""
        backend = _load_backend(self._folder)
        _add(backend, self._added, self._folder)
        _mark_special(backend, self._special_texts)
        return backend

    def _id_of(self, text: str | None) -> int | None:
        if text is None or self._qwen2 is None:
            return None if text is None else self._backend.token_to_id(text)
        return next(i for i, token in self._added.items() if token.content == text)

    @property
    def has_chat_template(self) -> bool:
        """Whether the folder brings a chat template."""
        return self._template is not None

    def encode(self, text: str) -> TokenArray:
        """Ids of `text`, shape [tokens], int32; nothing is put before or after it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """`encode` of every text, in order."""
        return [
            np.asarray(found.ids if isinstance(found, Encoding) else found, dtype=np.int32)
            for found in self._encodings(texts)
        ]

    def _encodings(self, texts: Sequence[str]) -> "Sequence[Encoding | TokenArray]":
        """The ids of every text, in one of two forms, both as long as there are ids."""
        # Half surrogates, which JSON can spell, have no UTF-8 and so no tokens.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        takes = [self._qwen2 is not None and self._qwen2.takes(text) for text in clean]
        fast = None
        if self._qwen2 is not None:
            fast = self._qwen2.encode_batch(list(compress(clean, takes)))
        if fast is None:
            takes, fast = [False] * len(clean), []
        others = [text for text, taken in zip(clean, takes, strict=True) if not taken]
        slow = self._backend.encode_batch_fast(others, add_special_tokens=False) if others else []
        of_fast, of_slow = iter(fast), iter(slow)
        return [next(of_fast) if taken else next(of_slow) for taken in takes]

    def count_tokens(self, texts: Sequence[str], at_most: int) -> list[int]:
        """How many tokens each text has, counted to `at_most`; only as much of a text is encoded
        as that takes.
        """
        enough = at_most + _SPARE_TOKENS
        beginnings = [text[: enough * _CHARS_PER_TOKEN] for text in texts]
        counts = [len(encoding) for encoding in self._encodings(beginnings)]
        open_ended = [
            place
            for place, (text, beginning) in enumerate(zip(texts, beginnings, strict=True))
            if len(beginning) < len(text) and counts[place] < enough
        ]
        whole = self._encodings([texts[place] for place in open_ended])
        for place, encoding in zip(open_ended, whole, strict=True):
            counts[place] = len(encoding)
        return [min(count, at_most) for count in counts]

    def decode(self, ids: npt.ArrayLike, skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are no whole character become U+FFFD."""
        tokens = np.asarray(ids, dtype=np.int64).reshape(-1).tolist()
        return self._backend.decode(tokens, skip_special_tokens=skip_special)

    def chat_prompt(self, user_text: str) -> tuple[TokenArray, bool]:
        """Ids of one user turn through the chat template, of the raw text where there is none."""
        return self.chat_prompts([user_text])[0], self.has_chat_template

    def chat_prompts(self, user_texts: Sequence[str]) -> list[TokenArray]:
        """The ids of `chat_prompt` for every text, in order."""
        if self._template is None:
            return self.encode_batch(user_texts)
        return self.encode_batch([self._template.render(text) for text in user_texts])

    def chat_text(self, turns: Sequence[Turn]) -> str | None:
        """The turns through the chat template as text; None where there is no template."""
        return None if self._template is None else self._template.render_turns(turns)
