"""Writes the traces of results in result folders: one file a point.

A point's file holds all its runs, the measured and the predicted one side by side.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path

from focus_bench.report.atomic import write_atomic
from focus_bench.report.perfetto import TracedRun, trace_json
from focus_bench.report.results import PointResult
from focus_bench.report.stored_records import load_records


def write_traces(results: Sequence[tuple[Path, PointResult]], file: Path) -> tuple[Path, ...]:
    """Write the trace of each point to a file, and return the files.

    `results`: each behind the folder that holds it. One point's trace goes to `file`, those of
    several to files with the point's hash behind the name: trace-HASH.json for trace.json. A name
    that ends in .gz is compressed. Raises UsageError for a folder whose records are not whole.
    """
    by_point: dict[str, list[tuple[Path, PointResult]]] = {}
    for folder, result in results:
        by_point.setdefault(result.point_hash, []).append((folder, result))
    written = []
    for point_hash, own in by_point.items():
        path = file if len(by_point) == 1 else _named(file, point_hash)
        data = trace_json([_traced(folder, result) for folder, result in own]).encode()
        # No time stamp and no name inside: equal runs give equal files.
        write_atomic(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        written.append(path)
    return tuple(written)


def _traced(folder: Path, result: PointResult) -> TracedRun:
    records = load_records(folder, result)
    point = result.point
    where = f" on {result.hardware}" if result.hardware else ""
    return TracedRun(
        title=(
            f"{result.source}{where}: {point.decode.policy}, batch {point.scheduler.batch_size}, "
            f"B {point.decode.block_length}"
        ),
        steps=records.steps,
        requests=records.requests,
        duration_s=result.metrics.duration_s,
        environment=records.environment,
        notes=result.all_notes,
    )


def _named(file: Path, point_hash: str) -> Path:
    stem, dot, suffixes = file.name.partition(".")
    return file.with_name(f"{stem}-{point_hash}{dot}{suffixes}")
