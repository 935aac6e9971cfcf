"""The vocabulary of Qwen2 to Qwen3 in tiktoken, five times as fast as in tokenizers.

Knows that one vocabulary, by the digest of its files, and gives the same ids; any other vocabulary,
and what a chat template is, is hf_tokenizer's matter.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import AddedToken

from focus_bench.core.workload import TokenArray

if TYPE_CHECKING:
    import tiktoken

# SHA-256 of vocab.json followed by merges.txt, as published with Qwen2.5, Qwen3 and SDAR. tiktoken
# knows no merges: it joins any two neighbours that make a token, the lowest id first. That is the
# same where ids are in the order of the merges and each token comes out of its own bytes, as in a
# vocabulary that was trained.
QWEN2_FILES = "621938cf30f2e49377bb2c614b639af40ea569729019ea88523dd601c7c87b9d"
QWEN2_SIZE = 151_643
_SEPARATOR = "<|the next text begins|>"
_BETWEEN = "\u2028"
# Added tokens of this form cannot overlap in a text, so the order of looking for them is the same.
_APART = re.compile(r"<[^<>]+>")


class Qwen2Bpe:
    """The vocabulary of a folder for `is_known`, and its `added` tokens by id.

    `pattern`: how text is cut into words.
    """

    def __init__(self, folder: Path, pattern: str, added: Mapping[int, AddedToken]) -> None:
        encoding = _encoding_class()
        assert encoding is not None  # see is_known
        ids: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        self._separator = max([*ids.values(), *added]) + 1
        special = {token.content: token_id for token_id, token in added.items()}
        self._encoding = encoding(
            folder.name,
            pat_str=pattern,
            mergeable_ranks=dict(zip(_as_bytes(ids), ids.values(), strict=True)),
            special_tokens={**special, _SEPARATOR: self._separator},
        )

    @staticmethod
    def is_known(folder: Path, added: Mapping[int, AddedToken], special: Iterable[str]) -> bool:
        """Whether the folder's vocabulary is this one, with `added` tokens, by id, that have no
        rules of their own and follow it without gaps, all `special` texts among them.

        False without a tiktoken that works, too: the ids are the same, and only come later.
        """
        files = (folder / "vocab.json", folder / "merges.txt")
        if (folder / "tokenizer.json").is_file() or not all(file.is_file() for file in files):
            return False
        texts = {token.content for token in added.values()}
        plain = all(
            _APART.fullmatch(token.content)
            and not (token.lstrip or token.rstrip or token.single_word)
            for token in added.values()
        )
        if not plain or len(texts) < len(added) or not texts.issuperset(special):
            return False
        if sorted(added) != list(range(QWEN2_SIZE, QWEN2_SIZE + len(added))):
            return False
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        return digest == QWEN2_FILES and _encoding_class() is not None

    def takes(self, text: str) -> bool:
        """Whether the ids of `text` need nothing that is not here (composing of characters)."""
        is_composed = text.isascii() or unicodedata.is_normalized("NFC", text)
        return is_composed and _SEPARATOR not in text

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray] | None:
        """Ids of every text, in order; None where one of them is beyond what tiktoken can cut
        into words (a million blanks).
        """
        if not texts:
            return []
        # In one call, during which other threads run: one a text would mostly wait for its turn.
        try:
            found = self._encoding.encode_to_numpy(
                _SEPARATOR.join(texts), allowed_special="all", disallowed_special=()
            )
        except ValueError:
            return None
        ends = np.flatnonzero(found == self._separator)
        pieces = np.split(found.astype(np.int32), ends)
        return [pieces[0], *(piece[1:] for piece in pieces[1:])]


def _encoding_class() -> "type[tiktoken.Encoding] | None":
    """tiktoken's; None where it is missing or broken, in whatever way."""
    try:
        import tiktoken

        return tiktoken.Encoding
    except Exception:
        return None


def _as_bytes(texts: Iterable[str]) -> list[bytes]:
    """Tokens as the bytes that their texts, one character a byte, stand for."""
    # Printable bytes stand for themselves, the others, in order, for what follows U+00FF.
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    table = {0x100 + place: chr(byte) for place, byte in enumerate(others)}
    # (All in one go, with a character between them that none has.)
    translated = _BETWEEN.join(texts).translate(table).split(_BETWEEN)
    return [text.encode("latin-1") for text in translated]
