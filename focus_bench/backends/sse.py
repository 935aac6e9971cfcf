"""Server-sent events from bytes as they come (WHATWG HTML, section 9.2): data of each event.

Knows no HTTP and no JSON. Bytes are decoded by whole lines, so a character may come in pieces.
"""

import re

MAX_EVENT_BYTES = 16 * 2**20
_LINE_END = re.compile(rb"\r\n|\n|\r")


class MalformedStream(Exception):
    """What came is no stream of events as it should be; the text says why."""


class EventDecoder:
    """Cuts a stream of bytes into events and gives the data of each; comments are left out."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that end with `chunk`; raises MalformedStream."""
        self._buffer += chunk
        events = []
        begin = 0
        for end in _LINE_END.finditer(self._buffer):
            if end.group() == b"\r" and end.end() == len(self._buffer):
                break  # the other half of "\r\n" may still come
            data = self._line(self._buffer[begin : end.start()])
            begin = end.end()
            if data is not None:
                events.append(data)
        self._buffer = self._buffer[begin:]
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise MalformedStream(f"a line of more than {MAX_EVENT_BYTES} bytes")
        return events

    def _line(self, line: bytes) -> str | None:
        """Take in one line; the event's data if it ends one that has any."""
        if not line:
            data, self._data = self._data, []
            return "\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":  # other fields, and comments (no name), carry nothing here
            try:
                self._data.append(value.removeprefix(b" ").decode("utf-8"))
            except UnicodeDecodeError:
                raise MalformedStream("a line that is not UTF-8") from None
        return None
