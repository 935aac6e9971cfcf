"""Checks paths that a command will write to, before it spends time on what goes there."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from focus_bench.core.errors import UsageError
from focus_bench.report.atomic import TEMPORARY_SUFFIX


def check_writable(
    flag: str,
    path: Path | None,
    *,
    is_folder: bool = False,
    inputs: Sequence[Path | None] = (),
) -> None:
    """Raise UsageError unless a file (or folder) can be written at `path`; None is fine.

    `inputs`: files and folders that the command reads or fills itself, which an output must
    neither be nor lie in. The folder of a file must exist; a folder may be made later, with those
    on the way. Nothing is left behind.
    """
    if path is None:
        return
    target = Path(os.path.realpath(path))
    for source in filter(None, inputs):
        real = Path(os.path.realpath(source))
        if target == real or real in target.parents:
            allowed = f"a path outside {source}, which the command itself reads or fills"
            raise UsageError(flag, str(path), allowed)
    try:
        allowed = _refused(path, is_folder=is_folder)
        if not allowed:
            _try_to_write(path, is_folder=is_folder)
    except OSError as error:
        allowed = f"a path that can be written to ({error.strerror})"
    if allowed:
        raise UsageError(flag, str(path), allowed)


def _refused(path: Path, *, is_folder: bool) -> str:
    """What is allowed in the place of what is at `path`; "" if nothing is wrong with that."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "" if is_folder or path.parent.is_dir() else "a file in a folder that exists"
    if is_folder:
        return "" if stat.S_ISDIR(mode) else "a folder, not a file"
    if stat.S_ISDIR(mode):
        return "a file, not a folder"
    return "" if stat.S_ISREG(mode) else "a file, not a device, pipe or socket"


def _try_to_write(path: Path, *, is_folder: bool) -> None:
    """Make and remove a file where one will be made; permissions alone do not tell (/proc)."""
    folder = path if is_folder else path.parent
    while not folder.exists():
        folder = folder.parent
    # As write_atomic calls its own, with room for what is added to a name (a point's hash).
    name = "focus-bench" if is_folder else f"{path.name}-{'0' * 16}"
    trial = folder / f"{name}.{os.getpid()}{TEMPORARY_SUFFIX}"
    os.close(os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    trial.unlink()
