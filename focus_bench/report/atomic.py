"""Files that exist whole or not at all, and a lock between the writers of one folder."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from focus_bench.core.errors import UsageError

TEMPORARY_SUFFIX = ".tmp"


def write_atomic(path: Path, data: str | bytes) -> None:
    """Replace `path` by `data` (text as UTF-8): readers and crashes see the old file or the new."""
    payload = data.encode() if isinstance(data, str) else data
    _replace(path, lambda file: file.write(payload))


def concatenate_atomic(path: Path, parts: Iterable[Path]) -> None:
    """Replace `path` by CSV files of equal columns, one after the other under one header."""

    def write(file: BinaryIO) -> None:
        header = b""
        for part in parts:
            data = part.read_bytes()
            if header:
                data = data[data.index(b"\n") + 1 :]
            else:
                header = data[: data.index(b"\n")]
            file.write(data)

    _replace(path, write)


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    # The new name is durable only once its folder is; not every file system lets one ask.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FolderLock:
    """The only writer of a folder, from `acquire` to `release` or the end of the process.

    The kernel drops the lock of a process that dies, however it dies, so no lock is ever stale.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises UsageError naming the process that writes into the folder now."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip()
            os.close(descriptor)
            raise UsageError(
                "--output-dir",
                str(self._path.parent),
                f"a folder that no other run writes to (now: {holder or 'another process'})",
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Let others write; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
