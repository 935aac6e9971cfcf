"""Bytes of a file, gzip or not, as text in pieces of bounded size, whatever the locale says.

Knows nothing of what the text means.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from focus_bench.core.errors import UsageError

CHUNK_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = "\ufeff"
_REPLACEMENT = "\ufffd"


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file; UsageError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise UsageError(
            "--dataset-path", f"{path} ({error.strerror})", "a readable file"
        ) from error


class TextChunks:
    """Iterates once over a UTF-8 file as text.

    A byte-order mark is left out. Bytes that are no UTF-8 become U+FFFD and are counted in
    `replaced`. `cut` says that gzip data ended early or broke; what came before is used. Raises
    UsageError for a file named .gz that is not gzip.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gzip = first_bytes(path, 2) == GZIP_MAGIC
        if path.suffix == ".gz" and not self._gzip:
            raise UsageError(
                "--dataset-path", f"{path} (not a gzip file)", "gzip data in a file named .gz"
            )
        self.replaced = 0
        self.cut = False

    def _bytes(self) -> Iterator[bytes]:
        with gzip.open(self._path) if self._gzip else self._path.open("rb") as file:
            while True:
                try:
                    # `read` would lose what it had decompressed before an error.
                    chunk = file.read1(CHUNK_BYTES)
                except (EOFError, zlib.error, gzip.BadGzipFile):
                    self.cut = True
                    return
                if not chunk:
                    return
                yield chunk

    def __iter__(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        tail = b""  # the last bytes of the chunk before, where a spelled-out U+FFFD may begin
        at_start = True
        for chunk in self._bytes():
            text = decoder.decode(chunk)
            genuine = (tail + chunk).count(_REPLACEMENT.encode())
            self.replaced += text.count(_REPLACEMENT) - genuine
            tail = (tail + chunk)[-2:]
            if at_start and text:
                text = text.removeprefix(BYTE_ORDER_MARK)
                at_start = False
            if text:
                yield text
        last = decoder.decode(b"", final=True)
        self.replaced += len(last)
        if last:
            yield last
