"""A result folder: one file a finished point, and the tables that are made from them.

`points/HASH-SOURCE.json` (the figures) is written last of a point's files and whole, so a point is
finished if and only if it exists. run.json, summary.csv, requests.csv, steps.csv and results.json
are made anew from the point files after each point, and replaced whole.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.records import SCHEMA_VERSION, RunRecord
from focus_bench.report.atomic import (
    TEMPORARY_SUFFIX,
    FolderLock,
    concatenate_atomic,
    write_atomic,
)
from focus_bench.report.codec import from_plain, to_plain
from focus_bench.report.export import json_text, requests_csv, results_json, steps_csv, summary_csv
from focus_bench.report.manifest import Manifest
from focus_bench.report.results import PointResult

MANIFEST_FILE = "run.json"
POINTS_FOLDER = "points"


@dataclass(frozen=True, kw_only=True)
class _PointFile:
    """Content of a point file. `order`: points are listed in the order in which they finished."""

    schema_version: int
    order: int
    point_hash: str
    result: PointResult


@dataclass(frozen=True, kw_only=True)
class LoadedFolder:
    """A result folder as read: results in the order in which they finished."""

    path: Path
    manifest: Manifest
    results: tuple[PointResult, ...]


def load_folder(path: Path) -> LoadedFolder:
    """Read a result folder, also one that is being written or whose writer was killed.

    Raises UsageError for a folder that is none, for another schema version and for a file that is
    not whole.
    """
    manifest_path = path / MANIFEST_FILE
    if not manifest_path.is_file():
        raise UsageError("result folder", str(path), f"a folder with a {MANIFEST_FILE}")
    data = _read_json(manifest_path)
    _check_schema(data, manifest_path)
    manifest = from_plain(Manifest, data, str(manifest_path))
    stored = _read_points(path)
    return LoadedFolder(path=path, manifest=manifest, results=tuple(p.result for p in stored))


class ResultFolder:
    """The one writer of a result folder; use it as a context manager.

    Results may be added in any order; one that is already there (same point, source and hardware)
    is replaced.
    """

    def __init__(self, path: Path, manifest: Manifest, stored: Sequence[_PointFile]) -> None:
        self.path = path
        self._manifest = manifest
        self._stored = {point.result.key: point for point in stored}
        self._lock = FolderLock(path)

    @classmethod
    def create(cls, path: Path, manifest: Manifest, *, resume: bool = False) -> "ResultFolder":
        """Open a new or empty folder, or with `resume` one that holds results, which are kept.

        Raises UsageError for a folder with results and no `resume`, for a folder with other things
        in it, for one that another process writes to, and as `load_folder` does.
        """
        if path.exists() and not path.is_dir():
            raise UsageError("--output-dir", str(path), "a folder")
        has_results = (path / MANIFEST_FILE).exists()
        if has_results and not resume:
            raise UsageError("--output-dir", str(path), "a new or empty folder, or --resume")
        if not has_results and path.is_dir() and any(not _is_ours(p) for p in path.iterdir()):
            raise UsageError("--output-dir", str(path), "a new or empty folder, or one of results")
        try:
            (path / POINTS_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                "--output-dir", str(path), f"a folder that can be written ({error.strerror})"
            ) from error
        folder = cls(path, manifest, ())
        folder._lock.acquire()
        try:
            folder._adopt()
        except BaseException:
            folder.close()
            raise
        return folder

    def __enter__(self) -> "ResultFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let another process write to the folder."""
        self._lock.release()

    @property
    def results(self) -> tuple[PointResult, ...]:
        """All finished results, in the order in which they finished."""
        return tuple(point.result for point in self._in_order())

    def finished(self, point: PointConfig, source: str, hardware: str = "") -> PointResult | None:
        """The result that is already there, else None."""
        stored = self._stored.get((point.hash(), source, hardware))
        return None if stored is None else stored.result

    def add_point(self, result: PointResult, run: RunRecord) -> None:
        """Store a result and the records that it came from, then renew the tables."""
        before = self._stored.get(result.key)
        orders = (point.order for point in self._stored.values())
        order = before.order if before is not None else max(orders, default=-1) + 1
        stored = _PointFile(
            schema_version=SCHEMA_VERSION,
            order=order,
            point_hash=result.point_hash,
            result=result,
        )
        write_atomic(self._file(result, ".requests.csv"), requests_csv(result, run))
        write_atomic(self._file(result, ".steps.csv"), steps_csv(result, run))
        write_atomic(self._file(result, ".json"), json_text(to_plain(stored)))
        self._stored[result.key] = stored
        self._renew_tables()

    def _adopt(self) -> None:
        # Under the lock: what a killed run left half done is finished or removed.
        if (self.path / MANIFEST_FILE).exists():
            old = load_folder(self.path).manifest
            known = {(p.point_hash, p.source, p.hardware) for p in self._manifest.points}
            kept = [p for p in old.points if (p.point_hash, p.source, p.hardware) not in known]
            points = (*kept, *self._manifest.points)
            self._manifest = replace(self._manifest, points=points, data=old.data)
        for folder in (self.path, self.path / POINTS_FOLDER):
            for left_over in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                left_over.unlink()
        self._stored = {point.result.key: point for point in _read_points(self.path)}
        self._renew_tables()

    def _renew_tables(self) -> None:
        results = self.results
        seen = (*self._manifest.data, *(result.provenance for result in results))
        unique = {json_text(to_plain(provenance)): provenance for provenance in seen}
        self._manifest = replace(self._manifest, data=tuple(unique.values()))
        # run.json comes first: with it the folder can be loaded and resumed.
        write_atomic(self.path / MANIFEST_FILE, json_text(to_plain(self._manifest)))
        write_atomic(self.path / "summary.csv", summary_csv(results))
        write_atomic(self.path / "results.json", results_json(results))
        for name in ("requests.csv", "steps.csv"):
            parts = [self._file(result, f".{name}") for result in results]
            concatenate_atomic(self.path / name, parts)

    def _in_order(self) -> list[_PointFile]:
        return sorted(self._stored.values(), key=lambda point: point.order)

    def _file(self, result: PointResult, suffix: str) -> Path:
        return self.path / POINTS_FOLDER / f"{_stem(result)}{suffix}"


def _stem(result: PointResult) -> str:
    name = f"{result.point_hash}-{result.source}"
    if not result.hardware:
        return name
    return f"{name}-{hashlib.blake2b(result.hardware.encode(), digest_size=4).hexdigest()}"


def _is_ours(path: Path) -> bool:
    # What is there if a run is killed before it wrote run.json.
    return path.name in (".lock", POINTS_FOLDER) or path.name.endswith(TEMPORARY_SUFFIX)


def _read_points(path: Path) -> list[_PointFile]:
    stored = []
    for file in sorted((path / POINTS_FOLDER).glob("*.json")):
        data = _read_json(file)
        _check_schema(data, file)
        stored.append(from_plain(_PointFile, data, str(file)))
    return sorted(stored, key=lambda point: point.order)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError("result file", str(path), f"a whole JSON file ({error})") from error


def _check_schema(data: Any, path: Path) -> None:
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise UsageError(f"{path} schema_version", version, f"{SCHEMA_VERSION}, this version's")
