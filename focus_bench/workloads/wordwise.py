"""Encodes text word by word, every different word once.

A byte-pair tokenizer encodes each word by itself, and most words of a data set are repeated. Knows
how text is cut into words, not what their ids are.
"""

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from focus_bench.core.workload import TokenArray

_MOST_CHARS = 10_000_000  # of the words remembered: some 200 MB
_CHAIN_WORDS = 256  # encoded as one text: the library takes longer for a text than for a word

Encode = Callable[[Sequence[str]], list[TokenArray]]


class WordwiseEncoder:
    r"""Gives the ids that `encode_whole` gives, put together from those of a text's words.

    What is a letter or a digit beyond ASCII, Python's re and the tokenizers library need not agree
    on: lines with other characters are encoded as they are.

    Parameters
    ----------
    encode_whole: the ids of texts, in order; it encodes each word of a text by itself.
    split: its words, a pattern of the library in which \p{L} and \p{N} stand for letters and
        digits. A word alone must be one word, and words must end with a line.
    added: texts that are tokens wherever they stand, before words are looked for.
    """

    def __init__(self, encode_whole: Encode, *, split: str, added: Iterable[str]) -> None:
        self._encode_whole = encode_whole
        ascii_split = (
            split.replace(r"\p{L}\p{N}]", "A-Za-z0-9]")
            .replace(r"\p{L}", "[A-Za-z]")
            .replace(r"\p{N}", "[0-9]")
        )
        self._find_words = re.compile(ascii_split, re.ASCII).findall
        # A line that begins with a blank may be cut in front of it only after looking behind it.
        self._find_lines = re.compile(r"(?<=\n)(?=[!-~])").split
        # The library takes the longest of those that begin at a place.
        longest_first = sorted(filter(None, added), key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})").split
        self._added = dict(zip(longest_first, self._encoded(longest_first), strict=True))
        # Between words, what begins nowhere inside itself is found where it was put.
        self._link = next((text for text in longest_first if text[0] not in text[1:]), "")
        self._ids_of = dict(self._added)
        self._num_chars = 0

    def __call__(self, texts: Sequence[str]) -> list[TokenArray]:
        """The ids of every text, in order, each [tokens] int32."""
        if self._num_chars > _MOST_CHARS:
            self._ids_of, self._num_chars = dict(self._added), 0
        ids_of = self._ids_of  # another thread may begin a new one
        words = [self._words(text) for text in texts]
        unknown = list(set().union(*words).difference(ids_of))
        ids_of.update(zip(unknown, self._encoded_words(unknown), strict=True))
        self._num_chars += sum(map(len, unknown))
        return [
            np.frombuffer(bytearray().join(map(ids_of.__getitem__, of_text)), dtype=np.int32)
            for of_text in words
        ]

    def _encoded(self, texts: Sequence[str]) -> list[bytes]:
        return [ids.tobytes() for ids in self._encode_whole(texts)]

    def _encoded_words(self, words: list[str]) -> list[bytes]:
        """The ids of words that hold no added token, chained by one where that can be undone."""
        if not self._link:
            return self._encoded(words)
        chains = [words[i : i + _CHAIN_WORDS] for i in range(0, len(words), _CHAIN_WORDS)]
        link = self._added[self._link]
        encoded: list[bytes] = []
        for chain, ids in zip(
            chains, self._encoded([self._link.join(chain) for chain in chains]), strict=True
        ):
            parts = _split_ids(ids, link)
            # A link and the word beside it may spell another added token.
            encoded += parts if len(parts) == len(chain) else self._encoded(chain)
        return encoded

    def _words(self, text: str) -> list[str]:
        """What is encoded by itself: added tokens, words, and lines that are not ASCII, in order;
        nothing is left out.
        """
        words: list[str] = []
        for place, piece in enumerate(self._cut(text)):
            if place % 2:
                words.append(piece)  # an added token
            elif piece.isascii():
                words += self._find_words(piece)
            else:
                for line in self._find_lines(piece):
                    words += self._find_words(line) if line.isascii() else [line]
        return words


def _split_ids(ids: bytes, link: bytes) -> list[bytes]:
    """The parts of int32 ids between the places where the id `link` stands."""
    at = np.flatnonzero(np.frombuffer(ids, dtype=np.int32) == np.frombuffer(link, dtype=np.int32))
    starts, ends = [0, *(4 * at + 4).tolist()], [*(4 * at).tolist(), len(ids)]
    return [ids[start:end] for start, end in zip(starts, ends, strict=True)]
