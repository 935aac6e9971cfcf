"""Everything that a report shows, read from result folders of run, simulate and eval.

Knows the folders' files, no figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from focus_bench.report.failures import PointFailure
from focus_bench.report.figures.records import PointRecords, read_records
from focus_bench.report.folder import load_folder
from focus_bench.report.locked_folder import read_manifest
from focus_bench.report.manifest import Manifest
from focus_bench.report.quality_folder import QUALITY_FILE, load_quality
from focus_bench.report.quality_results import QualityResult
from focus_bench.report.results import PointResult


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """Results of all folders, each key once; `manifests`: (name of the folder, its run.json)."""

    results: tuple[PointResult, ...]
    quality: tuple[QualityResult, ...]
    failures: tuple[PointFailure, ...]
    manifests: tuple[tuple[str, Manifest], ...]
    records: PointRecords


def load_report(folders: Sequence[Path]) -> ReportData:
    """Read the folders; of the same point, source and hardware the last one counts.

    Raises UsageError for a folder that holds no results of run, simulate or eval, and for files
    that are not whole or of another schema version.
    """
    results: dict[tuple[str, str, str], PointResult] = {}
    failures: dict[tuple[str, str, str], PointFailure] = {}
    quality: dict[tuple[str, str], QualityResult] = {}
    manifests = []
    of_points = []
    for path in folders:
        if (path / QUALITY_FILE).is_file():
            quality |= {result.key: result for result in load_quality(path)}
            manifests.append((path.resolve().name, read_manifest(path)))
            continue
        folder = load_folder(path)
        of_points.append(path)
        results |= {result.key: result for result in folder.results}
        failures |= {failure.key: failure for failure in folder.failures}
        manifests.append((path.resolve().name, folder.manifest))
    return ReportData(
        results=tuple(results.values()),
        quality=tuple(quality.values()),
        failures=tuple(f for key, f in failures.items() if key not in results),
        manifests=tuple(manifests),
        records=read_records(of_points),
    )
