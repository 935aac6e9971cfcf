"""The result folder of eval: score and answers of every point, and the tables made from them.

run.json, quality.csv and quality.json are of all points.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from focus_bench.core.errors import UsageError
from focus_bench.core.records import SCHEMA_VERSION
from focus_bench.core.workload import Provenance
from focus_bench.report.atomic import write_atomic
from focus_bench.report.codec import to_plain
from focus_bench.report.locked_folder import LockedFolder, read_point_files
from focus_bench.report.quality import quality_csv, quality_json
from focus_bench.report.quality_results import Answer, QualityPlan, QualityResult

QUALITY_FILE = "quality.csv"


@dataclass(frozen=True, kw_only=True)
class _PointFile:
    """Content of a point file, points/HASH-HARDWARE.json."""

    schema_version: int
    order: int
    result: QualityResult


class QualityFolder(LockedFolder[QualityResult]):
    """The one writer of a result folder of eval."""

    MARKER = QUALITY_FILE
    CONTENT = "eval's own"

    def is_finished(self, plan: QualityPlan, hardware: str) -> bool:
        """Whether the plan's result is there already."""
        return self._get((plan.hash(), hardware)) is not None

    def add(self, result: QualityResult, answers: Sequence[Answer]) -> None:
        """Store a result and the answers behind it, then renew the tables."""
        lines = (json.dumps(to_plain(answer), ensure_ascii=False) for answer in answers)
        self._add(result, {".answers.jsonl": "".join(f"{line}\n" for line in lines)})

    def _read_points(self) -> Sequence[_PointFile]:
        return read_point_files(self.path, _PointFile)

    def _point_file(self, order: int, result: QualityResult) -> _PointFile:
        return _PointFile(schema_version=SCHEMA_VERSION, order=order, result=result)

    def _provenance(self, result: QualityResult) -> Provenance:
        return result.decoding.provenance

    def _write_tables(self) -> None:
        results = self.results
        write_atomic(self.path / QUALITY_FILE, quality_csv(results))
        write_atomic(self.path / "quality.json", quality_json(results))


def load_quality(path: Path) -> tuple[QualityResult, ...]:
    """The results of a folder that eval wrote, in the order in which they finished.

    Raises UsageError for a folder that is none and for files that are not whole or of another
    version.
    """
    if not (path / QUALITY_FILE).is_file():
        raise UsageError("result folder", str(path), f"a folder with a {QUALITY_FILE}")
    return tuple(point.result for point in read_point_files(path, _PointFile))
