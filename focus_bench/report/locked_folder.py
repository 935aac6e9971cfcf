"""A result folder with one writer: run.json, and one file a finished point, each whole or absent.

`points/STEM.json` is written last of a point's files, so a point is finished if and only if it
exists. `failed/STEM.json` says why a point gave no result, until a later run of it gives one.
run.json and the tables are made anew from these files after each point. Knows no figures: folders
of a kind add their results and tables.
"""

import contextlib
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import focus_bench
from focus_bench.core.errors import UsageError
from focus_bench.core.records import SCHEMA_VERSION
from focus_bench.core.workload import Provenance
from focus_bench.report.atomic import TEMPORARY_SUFFIX, FolderLock, write_atomic
from focus_bench.report.codec import from_plain, to_plain
from focus_bench.report.export import json_text
from focus_bench.report.failures import FailureFile, PointFailure
from focus_bench.report.manifest import Manifest

MANIFEST_FILE = "run.json"
POINTS_FOLDER = "points"
FAILED_FOLDER = "failed"


class StoredResult(Protocol):
    """A result that a folder can hold."""

    @property
    def key(self) -> tuple[str, ...]:
        """What a folder holds at most once; the hardware, which may be "", comes last."""


Result = TypeVar("Result", bound=StoredResult)
Result_co = TypeVar("Result_co", bound=StoredResult, covariant=True)


class PointFile(Protocol[Result_co]):
    """Content of a point file. `order`: points are listed in the order in which they finished."""

    @property
    def order(self) -> int:
        """0, 1, ... in the order of finishing."""

    @property
    def result(self) -> Result_co:
        """The point's result."""


File = TypeVar("File", bound=PointFile[StoredResult])


class LockedFolder(ABC, Generic[Result]):
    """The one writer of a result folder; use it as a context manager.

    Results may be added in any order; one that is already there (same key) is replaced.
    `MARKER`: the file by which a folder is known to hold results; `CONTENT`: what messages call
    such a folder.
    """

    MARKER: ClassVar[str]
    CONTENT: ClassVar[str]

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self._manifest = manifest
        self._written_manifest: Manifest | None = None
        self._stored: dict[tuple[str, ...], PointFile[Result]] = {}
        self._failed: dict[tuple[str, ...], FailureFile] = {}
        self._lock = FolderLock(path)

    @classmethod
    def create(cls, path: Path, manifest: Manifest, *, resume: bool = False) -> Self:
        """Open a new or empty folder, or with `resume` one that holds results, which are kept.

        A run.json that is missing or not whole is made anew, without what only it knew.

        Raises UsageError for a folder with results and no `resume`, for a folder with other things
        in it, for one that another process writes to, and for files that are not whole or of
        another schema version.
        """
        if path.exists() and not path.is_dir():
            raise UsageError("--output-dir", str(path), "a folder")
        is_orphaned = not (path / MANIFEST_FILE).exists() and bool(_point_files(path))
        has_results = is_orphaned or (path / cls.MARKER).exists()
        if has_results and not resume:
            raise UsageError("--output-dir", str(path), "a new or empty folder, or --resume")
        if has_results:
            cls._check_kind(path)
        if not has_results and path.is_dir() and not all(map(_is_early, path.iterdir())):
            raise UsageError("--output-dir", str(path), f"a new or empty folder, or {cls.CONTENT}")
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

    def __enter__(self) -> Self:
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
    def results(self) -> tuple[Result, ...]:
        """All finished results, in the order in which they finished."""
        stored = sorted(self._stored.values(), key=lambda point: point.order)
        return tuple(point.result for point in stored)

    @property
    def failures(self) -> tuple[PointFailure, ...]:
        """The points that have no result because they failed, in the order of their failing."""
        failed = sorted(self._failed.values(), key=lambda file: file.order)
        return tuple(file.failure for file in failed)

    def others_than(self, planned: Iterable[str]) -> str:
        """In one line, how many points are here beside those of the hashes `planned`; "" if none.

        They stand in every table of the folder.
        """
        here = {key[0] for key in (*self._stored, *self._failed)}
        others = len(here.difference(planned))
        if not others:
            return ""
        verb = "is" if others == 1 else "are"
        return f"{others} of {len(here)} points in {self.path} {verb} not of this command: kept"

    def add_failure(self, failure: PointFailure) -> None:
        """Keep why a point gave no result, and renew the tables; one that has a result keeps it."""
        if failure.key in self._stored:
            return
        orders = (file.order for file in self._failed.values())
        file = FailureFile(
            schema_version=SCHEMA_VERSION, order=max(orders, default=-1) + 1, failure=failure
        )
        (self.path / FAILED_FOLDER).mkdir(exist_ok=True)
        write_atomic(self._failure_file(failure.key), json_text(to_plain(file)))
        self._failed[failure.key] = file
        self._renew_tables()

    # -- what a kind of folder adds --------------------------------------------------------------

    @classmethod
    def _check_kind(cls, path: Path) -> None:
        """Raise UsageError for a folder that has MARKER, but results of another kind."""

    @abstractmethod
    def _read_points(self) -> Sequence[PointFile[Result]]:
        """The point files that are there."""

    @abstractmethod
    def _point_file(self, order: int, result: Result) -> PointFile[Result]:
        """The record, a dataclass, that is written to the result's point file."""

    @abstractmethod
    def _provenance(self, result: Result) -> Provenance:
        """The data behind a result."""

    @abstractmethod
    def _write_tables(self) -> None:
        """Replace the tables by ones of all results."""

    # -- what it is built on ---------------------------------------------------------------------

    def _get(self, key: tuple[str, ...]) -> Result | None:
        stored = self._stored.get(key)
        return None if stored is None else stored.result

    def _add(self, result: Result, companions: Mapping[str, str]) -> None:
        """Store a result after the texts beside it (by suffix), then renew the tables."""
        before = self._stored.get(result.key)
        orders = (point.order for point in self._stored.values())
        order = before.order if before is not None else max(orders, default=-1) + 1
        stored = self._point_file(order, result)
        for suffix, text in companions.items():
            write_atomic(self._file(result, suffix), text)
        write_atomic(self._file(result, ".json"), json_text(to_plain(stored)))
        self._stored[result.key] = stored
        self._forget_failure(result.key)
        self._renew_tables()

    def _file(self, result: Result, suffix: str) -> Path:
        return point_path(self.path, result.key, suffix)

    def _failure_file(self, key: tuple[str, ...]) -> Path:
        return self.path / FAILED_FOLDER / f"{_stem(key)}.json"

    def _forget_failure(self, key: tuple[str, ...]) -> None:
        if self._failed.pop(key, None) is not None:
            self._failure_file(key).unlink()

    def _adopt(self) -> None:
        # Under the lock: what a killed run left half done is finished or removed.
        old = manifest_if_whole(self.path)
        if old is not None:
            known = {(p.point_hash, p.source, p.hardware) for p in self._manifest.points}
            kept = [p for p in old.points if (p.point_hash, p.source, p.hardware) not in known]
            points = (*kept, *self._manifest.points)
            self._manifest = replace(self._manifest, points=points, data=old.data)
        self._stored = {point.result.key: point for point in self._read_points()}
        self._failed = {file.failure.key: file for file in read_failures(self.path)}
        for key in self._stored.keys() & self._failed.keys():
            self._forget_failure(key)
        for folder in (self.path, self.path / POINTS_FOLDER, self.path / FAILED_FOLDER):
            for left_over in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                left_over.unlink()
        self._renew_tables()

    def _renew_tables(self) -> None:
        data = list(self._manifest.data)
        for provenance in map(self._provenance, self.results):
            if provenance not in data:
                data.append(provenance)
        self._manifest = replace(self._manifest, data=tuple(data))
        # run.json comes first: with it the folder can be loaded and resumed.
        if self._manifest != self._written_manifest:
            write_atomic(self.path / MANIFEST_FILE, json_text(to_plain(self._manifest)))
            self._written_manifest = self._manifest
        self._write_tables()


def point_path(folder: Path, key: tuple[str, ...], suffix: str) -> Path:
    """The file of a folder's result with that ending (".json", ".steps.csv", ...)."""
    return folder / POINTS_FOLDER / f"{_stem(key)}{suffix}"


def read_manifest(path: Path) -> Manifest:
    """run.json of a folder.

    Raises UsageError if it is missing, not whole or of another schema version, and says how to
    have a new one if there are points.
    """
    try:
        return _read_record(Manifest, path / MANIFEST_FILE)
    except (FileNotFoundError, NotADirectoryError, _NotWholeError) as error:
        files = _point_files(path)
        is_missing = not isinstance(error, _NotWholeError)
        if not files:
            if is_missing:
                within = _newest_within(path)
                allowed = f"a folder with a {MANIFEST_FILE}"
                if within:
                    allowed += f", such as {', '.join(within)}"
                raise UsageError("result folder", str(path), allowed) from None
            raise
        whole = sum(map(_is_whole, files))
        raise UsageError(
            "result folder",
            str(path),
            f"a folder with a whole {MANIFEST_FILE}, which is {'missing' if is_missing else 'not'};"
            f" {whole} of {len(files)} files of finished points are whole: the command that made "
            "the folder, with --resume --output-dir, keeps them and writes it anew",
        ) from None


def what_is_no_result_folder(path: Path) -> str:
    """What is at `path`, with the result folders within, where it is something else than a result
    folder, which may be damaged; "" for such a folder, and where nothing is.
    """
    kept = (POINTS_FOLDER, FAILED_FOLDER)  # training writes a run.json, too, but has neither
    is_one = (path / MANIFEST_FILE).exists() and any((path / name).is_dir() for name in kept)
    if is_one or _point_files(path) or not path.exists():
        return ""
    within = _newest_within(path)
    return f"{path} (has {', '.join(within)})" if within else str(path)


def manifest_if_whole(path: Path) -> Manifest | None:
    """run.json of a folder that is taken over; None if it is missing or not whole.

    Raises UsageError for one of another schema version.
    """
    try:
        return _read_record(Manifest, path / MANIFEST_FILE)
    except (FileNotFoundError, NotADirectoryError, _NotWholeError):
        return None


def _newest_within(path: Path) -> list[str]:
    """Folders with a run.json in a folder of paper, or of several commands; of many the newest."""
    return sorted(str(file.parent) for file in path.glob(f"*/{MANIFEST_FILE}"))[-3:]


def _point_files(path: Path) -> list[Path]:
    return sorted((path / POINTS_FOLDER).glob("*.json"))


def _is_whole(file: Path) -> bool:
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def read_point_files(path: Path, kind: type[File]) -> list[File]:
    """All point files of a folder, in the order in which they finished; raises as above."""
    files = []
    for file in _point_files(path):
        try:
            files.append(_read_record(kind, file))
        except _NotWholeError as error:
            raise with_remedy(error, file) from error
    return sorted(files, key=lambda point: point.order)


def with_remedy(error: UsageError, file: Path) -> UsageError:
    """The error that a damaged file of a finished point is, saying how to do the point again."""
    files = file.with_name(f"{file.name.partition('.')[0]}.*")
    allowed = f"{error.allowed}; once {files} are deleted, --resume does the point again"
    return UsageError(error.field, error.value, allowed)


def read_failures(path: Path) -> list[FailureFile]:
    """The files of failed/, in the order of their failing; raises as above."""
    found = []
    for file in sorted((path / FAILED_FOLDER).glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # its point has finished meanwhile
            found.append(_read_record(FailureFile, file))
    return sorted(found, key=lambda file: file.order)


Record = TypeVar("Record")


class _NotWholeError(UsageError):
    """A file that was cut or is no JSON, unlike one of another version."""


def _read_record(kind: type[Record], file: Path) -> Record:
    try:
        data: Any = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _NotWholeError("result file", str(file), f"a whole JSON file ({error})") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{file} schema_version",
            "none" if version is None else version,
            f"{SCHEMA_VERSION}, that of focus-bench {focus_bench.__version__}; a folder of another "
            "version is read by that version (run.json names it), and new results need a new "
            "--output-dir",
        )
    return from_plain(kind, data, str(file))


def _stem(key: tuple[str, ...]) -> str:
    *names, hardware = key
    if hardware:
        names.append(hashlib.blake2b(hardware.encode(), digest_size=4).hexdigest())
    return "-".join(names)


def _is_early(path: Path) -> bool:
    # What is there if a run is killed before it wrote its first table.
    ours = (".lock", POINTS_FOLDER, MANIFEST_FILE)
    return path.name in ours or path.name.endswith(TEMPORARY_SUFFIX)
