"""Checks paths that a command will write to, before it spends time on what goes there."""

import os
from pathlib import Path

from focus_bench.core.errors import UsageError


def check_writable(flag: str, path: Path | None, *, is_folder: bool = False) -> None:
    """Raise UsageError unless a file (or folder) can be made at `path`; None is fine.

    Missing folders on the way are made.
    """
    if path is None:
        return
    folder = path if is_folder else path.parent
    allowed = "a path that can be written to"
    if not is_folder and path.is_dir():
        raise UsageError(flag, str(path), "a file, not a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(flag, str(path), f"{allowed} ({error.strerror})") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(flag, str(path), allowed)
