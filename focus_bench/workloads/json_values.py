"""JSON values one by one out of text that comes in pieces: an array, one value a line, or loose.

Every whole value is found although the text is cut off or a value is broken. Knows no data set.
"""

import json
import re
from collections.abc import Iterator

from focus_bench.workloads.rows import BAD_ROW, CUT_OFF, Lost
from focus_bench.workloads.text_chunks import TextChunks

# strict=False: a raw line break inside a string is no reason to lose the row.
_DECODER = json.JSONDecoder(strict=False)
_BETWEEN = re.compile(r"[\s,]*")
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_SCALAR = re.compile(r"[^\s,\]]+")


class JsonValues:
    """Iterates once over the JSON values of `chunks`; Lost stands for a value that is broken.

    `truncated` is set when the text turns out to end inside a value or an array.
    """

    def __init__(self, chunks: TextChunks) -> None:
        self._chunks = chunks
        self._source = iter(chunks)
        self._text = ""
        self._at = 0
        self.truncated = False

    @property
    def replaced(self) -> int:
        """Broken characters met so far."""
        return self._chunks.replaced

    def __iter__(self) -> Iterator[object]:
        start = self._skip()
        if start == "[":
            self._at += 1
            yield from self._values(in_array=True)
        elif start == "{" and self._spans_lines():
            yield from self._values(in_array=False)
        else:
            yield from self._lines()
        self.truncated |= self._chunks.cut

    def _fill(self) -> bool:
        """Make room and at least double what is unread; False at the end of the text.

        Doubling keeps the cost of trying a long value again and again linear in its length.
        """
        pieces = [self._text[self._at :]]
        wanted = len(pieces[0])
        got = 0
        for piece in self._source:
            pieces.append(piece)
            got += len(piece)
            if got >= wanted:
                break
        self._text = "".join(pieces)
        self._at = 0
        return got > 0

    def _skip(self) -> str:
        """Go to the next value and return its first character; "" at the end of the text."""
        while True:
            match = _BETWEEN.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def _spans_lines(self) -> bool:
        """Whether the first value is spread over lines, so that lines are no rows.

        It is where the first line is no whole value and the second does not begin another one.
        """
        while self._text.count("\n", self._at) < 2 and self._fill():
            pass
        first, _, rest = self._text[self._at :].partition("\n")
        try:
            json.loads(first)
        except ValueError:
            return bool(rest.strip()) and not rest.lstrip().startswith("{")
        return False

    def _values(self, *, in_array: bool) -> Iterator[object]:
        while True:
            start = self._skip()
            if not start:
                self.truncated |= in_array
                return
            if in_array and start == "]":
                return
            value: object
            end: int | None
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except (ValueError, RecursionError):
                value, end = Lost(BAD_ROW), self._end_of_broken()
            # A value that reaches the end of the buffer may go on behind it (12|34).
            if end in (None, len(self._text)) and self._fill():
                continue
            if end is None:
                self.truncated = True
                yield Lost(CUT_OFF)
                return
            self._at = end
            yield value

    def _end_of_broken(self) -> int | None:
        """Where the value that no parser takes ends, by its brackets; None if behind the buffer."""
        depth = 0
        if self._text[self._at] not in '{["':
            match = _SCALAR.match(self._text, self._at)
            return match.end() if match else self._at + 1
        for token in _TOKEN.finditer(self._text, self._at):
            if token.group() == '"':
                return None
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token.group(), 0)
            if depth == 0:
                return token.end()
        return None

    def _lines(self) -> Iterator[object]:
        while True:
            line_end = self._text.find("\n", self._at)
            if line_end < 0 and self._fill():
                continue
            ended = line_end < 0
            line = self._text[self._at :] if ended else self._text[self._at : line_end]
            self._at = len(self._text) if ended else line_end + 1
            if line.strip():
                try:
                    yield _DECODER.decode(line)
                except (ValueError, RecursionError):
                    self.truncated |= ended
                    yield Lost(CUT_OFF if ended else BAD_ROW)
            if ended:
                return
