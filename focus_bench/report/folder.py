"""The result folder of run and simulate: figures, requests and steps of every point, and tables.

run.json, summary.csv, runs.csv, requests.csv, steps.csv, environment.csv and results.json are of
all points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.records import SCHEMA_VERSION, RunRecord
from focus_bench.core.workload import Provenance
from focus_bench.report.atomic import concatenate_atomic, write_atomic
from focus_bench.report.csv_files import naming_faults, whole_rows
from focus_bench.report.export import (
    environment_csv,
    requests_csv,
    results_json,
    runs_csv,
    steps_csv,
    summary_csv,
)
from focus_bench.report.failures import PointFailure
from focus_bench.report.locked_folder import (
    MANIFEST_FILE,
    LockedFolder,
    manifest_if_whole,
    read_failures,
    read_manifest,
    read_point_files,
    with_remedy,
)
from focus_bench.report.manifest import Manifest
from focus_bench.report.results import PointResult

# Tables of all points, each made of one file a point.
_RECORDS = ("requests.csv", "steps.csv", "environment.csv")


@dataclass(frozen=True, kw_only=True)
class _PointFile:
    """Content of a point file, points/HASH-SOURCE[-HARDWARE].json."""

    schema_version: int
    order: int
    point_hash: str
    result: PointResult


@dataclass(frozen=True, kw_only=True)
class LoadedFolder:
    """A result folder as read: results in the order in which they finished, and the points that
    failed and have no result.
    """

    path: Path
    manifest: Manifest
    results: tuple[PointResult, ...]
    failures: tuple[PointFailure, ...] = ()

    @property
    def num_missing(self) -> int:
        """Points of run.json that have neither a result nor a failure."""
        known = {result.key for result in self.results} | {f.key for f in self.failures}
        planned = {(p.point_hash, p.source, p.hardware) for p in self.manifest.points}
        return len(planned - known)


def load_folder(path: Path) -> LoadedFolder:
    """Read a result folder, also one that is being written or whose writer was killed.

    Raises UsageError for a folder that is none, for another schema version and for a file that is
    not whole.
    """
    manifest = read_manifest(path)
    if _is_of_eval(manifest):
        allowed = "a folder of run or simulate; `report` shows those of eval"
        raise UsageError("result folder", f"{path}, of {manifest.command}", allowed)
    results = tuple(point.result for point in read_point_files(path, _PointFile))
    finished = {result.key for result in results}
    failures = (file.failure for file in read_failures(path))
    return LoadedFolder(
        path=path,
        manifest=manifest,
        results=results,
        failures=tuple(failure for failure in failures if failure.key not in finished),
    )


def _is_of_eval(manifest: Manifest) -> bool:
    """Whether the folder holds accuracies, which `quality_folder` reads."""
    return manifest.command.startswith(("eval", "paper"))


class ResultFolder(LockedFolder[PointResult]):
    """The one writer of a result folder of run and simulate."""

    MARKER = MANIFEST_FILE
    CONTENT = "one of results"

    def finished(self, point: PointConfig, source: str, hardware: str = "") -> PointResult | None:
        """The result that is already there, else None."""
        return self._get((point.hash(), source, hardware))

    def add_point(self, result: PointResult, run: RunRecord) -> None:
        """Store a result and the records that it came from, then renew the tables."""
        records = {
            ".requests.csv": requests_csv(result, run),
            ".steps.csv": steps_csv(result, run),
            ".environment.csv": environment_csv(result, run),
        }
        self._add(result, records)

    @classmethod
    def _check_kind(cls, path: Path) -> None:
        manifest = manifest_if_whole(path)
        if manifest is not None and _is_of_eval(manifest):
            allowed = "a new or empty folder, or one of run or simulate"
            raise UsageError("--output-dir", f"{path}, of {manifest.command}", allowed)

    def _read_points(self) -> Sequence[_PointFile]:
        points = read_point_files(self.path, _PointFile)
        for point in points:
            for name in _RECORDS:
                self._check_records(self._file(point.result, f".{name}"))
        return points

    @staticmethod
    def _check_records(file: Path) -> None:
        # The tables are made of these files: one that is cut would spoil the rows of the next.
        try:
            with naming_faults(file):
                next(whole_rows(file))
        except UsageError as error:
            raise with_remedy(error, file) from error

    def _point_file(self, order: int, result: PointResult) -> _PointFile:
        return _PointFile(
            schema_version=SCHEMA_VERSION,
            order=order,
            point_hash=result.point_hash,
            result=result,
        )

    def _provenance(self, result: PointResult) -> Provenance:
        return result.provenance

    def _write_tables(self) -> None:
        results, failures = self.results, self.failures
        write_atomic(self.path / "summary.csv", summary_csv(results, failures))
        write_atomic(self.path / "results.json", results_json(results, failures))
        write_atomic(self.path / "runs.csv", runs_csv(results))
        for name in _RECORDS:
            parts = [self._file(result, f".{name}") for result in results]
            concatenate_atomic(self.path / name, parts)
