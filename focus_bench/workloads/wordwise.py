"""Encodes text word by word, every different word once.

A byte-pair tokenizer encodes each word by itself, and most words of a data set are repeated. Knows
how text is cut into words, not what their ids are.
"""

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from focus_bench.core.workload import TokenArray

_MOST_CHARS = 10_000_000  # of the words remembered: some 200 MB

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
        self._ids_of: dict[str, bytes] = {}
        self._num_chars = 0

    def __call__(self, texts: Sequence[str]) -> list[TokenArray]:
        """The ids of every text, in order, each [tokens] int32."""
        if self._num_chars > _MOST_CHARS:
            self._ids_of, self._num_chars = {}, 0
        ids_of = self._ids_of  # another thread may begin a new one
        words = [self._words(text) for text in texts]
        unknown = list(set().union(*words).difference(ids_of))
        encoded = self._encode_whole(unknown)
        ids_of.update(zip(unknown, (ids.tobytes() for ids in encoded), strict=True))
        self._num_chars += sum(map(len, unknown))
        return [
            np.frombuffer(bytearray().join(map(ids_of.__getitem__, of_text)), dtype=np.int32)
            for of_text in words
        ]

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
