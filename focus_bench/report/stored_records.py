"""Records of steps, requests and the GPU, read back from the CSV files of a result folder.

The inverse of the CSV texts in export; numbers come back as they were.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from focus_bench.core.errors import UsageError
from focus_bench.core.records import EnvironmentSample, RequestRecord, StepRecord, StepTiming
from focus_bench.report.csv_files import naming_faults, whole_rows
from focus_bench.report.distribution import ratio
from focus_bench.report.locked_folder import point_path
from focus_bench.report.results import PointResult

Record = TypeVar("Record")
_Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class StoredRecords:
    """What a folder keeps of one result's run."""

    steps: tuple[StepRecord, ...]
    requests: tuple[RequestRecord, ...]
    environment: tuple[EnvironmentSample, ...]


def load_records(folder: Path, result: PointResult) -> StoredRecords:
    """The records of one of the folder's results.

    Raises UsageError naming the file that is missing or not whole.
    """

    def read(name: str, record: Callable[[_Row], Record]) -> tuple[Record, ...]:
        file = point_path(folder, result.key, f".{name}.csv")
        with naming_faults(file):
            rows = whole_rows(file)
            header = next(rows)
            return tuple(record(dict(zip(header, row, strict=True))) for row in rows)

    timing, step = _reader(StepTiming), _reader(StepRecord)
    sample = _reader(EnvironmentSample)
    requests = read("requests", _reader(RequestRecord))
    if len(requests) != result.metrics.num_requests:
        raise UsageError(
            "result file",
            str(point_path(folder, result.key, ".requests.csv")),
            f"one of {result.metrics.num_requests} requests, not of {len(requests)}",
        )
    steps = read("steps", lambda row: step(row, timing=timing(row)))
    if result.metrics.rows_per_step != ratio(sum(s.num_rows for s in steps), len(steps)):
        raise UsageError(
            "result file",
            str(point_path(folder, result.key, ".steps.csv")),
            f"one with all steps of its result, not {len(steps)} of others or some of them",
        )
    return StoredRecords(
        steps=steps,
        requests=requests,
        environment=read(
            "environment", lambda row: sample(row, clock_reasons=_reasons(row["clock_reasons"]))
        ),
    )


def _reader(kind: type[Record]) -> Callable[..., Record]:
    """What makes records of rows; `given` fields are no cells."""
    hints = get_type_hints(kind)

    def read(row: _Row, **given: object) -> Record:
        cells = {name: _value(hint, row[name]) for name, hint in hints.items() if name not in given}
        return kind(**cells, **given)

    return read


def _value(hint: Any, text: str) -> str | int | float | None:
    if hint is str:
        return text
    if not text:  # None of an optional number
        return None
    return int(text) if hint in (int, int | None) else float(text)


def _reasons(text: str) -> tuple[str, ...] | None:
    if not text:
        return None
    return () if text == "none" else tuple(text.split("; "))
