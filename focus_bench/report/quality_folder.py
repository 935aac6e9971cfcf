"""The result folder of eval: one file a finished point, and the tables made from them.

`points/HASH.json` is written last of a point's files and whole, so a point is finished if and only
if it exists. run.json, quality.csv and quality.json are made anew after each point.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from focus_bench.core.errors import UsageError
from focus_bench.core.records import SCHEMA_VERSION
from focus_bench.report.atomic import TEMPORARY_SUFFIX, FolderLock, write_atomic
from focus_bench.report.codec import from_plain, to_plain
from focus_bench.report.export import json_text
from focus_bench.report.folder import MANIFEST_FILE, POINTS_FOLDER
from focus_bench.report.manifest import Manifest
from focus_bench.report.quality import quality_csv, quality_json
from focus_bench.report.quality_results import Answer, QualityPlan, QualityResult

QUALITY_FILE = "quality.csv"


@dataclass(frozen=True, kw_only=True)
class _PointFile:
    """Content of a point file. `order`: points are listed in the order in which they finished."""

    schema_version: int
    order: int
    result: QualityResult


class QualityFolder:
    """The one writer of a result folder of eval; use it as a context manager."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self._manifest = manifest
        self._stored: dict[tuple[str, str], _PointFile] = {}
        self._lock = FolderLock(path)

    @classmethod
    def create(cls, path: Path, manifest: Manifest, *, resume: bool = False) -> "QualityFolder":
        """Open a new or empty folder, or with `resume` one that eval wrote before.

        Raises UsageError for a folder with results and no `resume`, one with other things in it,
        one that another process writes to, and files that are not whole or of another version.
        """
        if path.exists() and not path.is_dir():
            raise UsageError("--output-dir", str(path), "a folder")
        has_results = (path / QUALITY_FILE).exists()
        if has_results and not resume:
            raise UsageError("--output-dir", str(path), "a new or empty folder, or --resume")
        ours = (".lock", POINTS_FOLDER, MANIFEST_FILE)  # left by a run that was killed early
        if not has_results and path.is_dir():
            others = [p.name for p in path.iterdir() if p.name not in ours]
            if any(not name.endswith(TEMPORARY_SUFFIX) for name in others):
                raise UsageError("--output-dir", str(path), "a new or empty folder, or eval's own")
        try:
            (path / POINTS_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                "--output-dir", str(path), f"a folder that can be written ({error.strerror})"
            ) from error
        folder = cls(path, manifest)
        folder._lock.acquire()
        try:
            folder._adopt()
        except BaseException:
            folder.close()
            raise
        return folder

    def __enter__(self) -> "QualityFolder":
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
    def results(self) -> tuple[QualityResult, ...]:
        """All finished results, in the order in which they finished."""
        stored = sorted(self._stored.values(), key=lambda point: point.order)
        return tuple(point.result for point in stored)

    def is_finished(self, plan: QualityPlan, hardware: str) -> bool:
        """Whether the plan's result is there already."""
        return (plan.hash(), hardware) in self._stored

    def add(self, result: QualityResult, answers: Sequence[Answer]) -> None:
        """Store a result and the answers behind it, then renew the tables."""
        order = max((point.order for point in self._stored.values()), default=-1) + 1
        stored = _PointFile(schema_version=SCHEMA_VERSION, order=order, result=result)
        lines = (json.dumps(to_plain(answer), ensure_ascii=False) for answer in answers)
        stem = _stem(result)
        write_atomic(
            self.path / POINTS_FOLDER / f"{stem}.answers.jsonl",
            "".join(f"{line}\n" for line in lines),
        )
        write_atomic(self.path / POINTS_FOLDER / f"{stem}.json", json_text(to_plain(stored)))
        self._stored[result.key] = stored
        self._renew_tables()

    def _adopt(self) -> None:
        """Under the lock: take over what is there and remove what a killed run left half done."""
        for folder in (self.path, self.path / POINTS_FOLDER):
            for left_over in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                left_over.unlink()
        for point in _read_points(self.path):
            self._stored[point.result.key] = point
        if (self.path / MANIFEST_FILE).exists():
            file = self.path / MANIFEST_FILE
            old = from_plain(Manifest, _read(file), str(file))
            known = {point.point_hash for point in self._manifest.points}
            kept = tuple(p for p in old.points if p.point_hash not in known)
            self._manifest = dataclasses.replace(
                self._manifest, points=(*kept, *self._manifest.points)
            )
        self._renew_tables()

    def _renew_tables(self) -> None:
        results = self.results
        seen = {_json(r.decoding.provenance): r.decoding.provenance for r in results}
        manifest = dataclasses.replace(self._manifest, data=tuple(seen.values()))
        write_atomic(self.path / MANIFEST_FILE, json_text(to_plain(manifest)))
        write_atomic(self.path / QUALITY_FILE, quality_csv(results))
        write_atomic(self.path / "quality.json", quality_json(results))


def load_quality(path: Path) -> tuple[QualityResult, ...]:
    """The results of a folder that eval wrote, in the order in which they finished.

    Raises UsageError for a folder that is none and for files that are not whole or of another
    version.
    """
    if not (path / QUALITY_FILE).is_file():
        raise UsageError("result folder", str(path), f"a folder with a {QUALITY_FILE}")
    return tuple(point.result for point in _read_points(path))


def _read_points(path: Path) -> list[_PointFile]:
    """All point files of a folder, in the order in which they finished."""
    points = []
    for file in sorted((path / POINTS_FOLDER).glob("*.json")):
        data = _read(file)
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise UsageError(f"{file} schema_version", version, f"{SCHEMA_VERSION}, this version's")
        points.append(from_plain(_PointFile, data, str(file)))
    return sorted(points, key=lambda point: point.order)


def _json(record: object) -> str:
    """The record as JSON text, for telling equal ones."""
    return json_text(to_plain(record))


def _stem(result: QualityResult) -> str:
    device = hashlib.blake2b(result.hardware.encode(), digest_size=4).hexdigest()
    return f"{result.plan.hash()}-{device}"


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError("result file", str(file), f"a whole JSON file ({error})") from error
