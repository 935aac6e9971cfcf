"""Latencies and steps of every point, read back from the CSV files beside a folder's results.

Knows the files' columns, no figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from focus_bench.core.step_totals import StepTotals
from focus_bench.report.csv_files import naming_faults, whole_rows
from focus_bench.report.locked_folder import POINTS_FOLDER
from focus_bench.report.metrics import FAILURES

FloatArray = npt.NDArray[np.float64]
Key = tuple[str, str, str]

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
_SERVED = ("arrival_s", "finished_s")
STEP_COLUMNS = (
    *("num_rows", "commit_rows", "evicting_rows", "fed_tokens", "kept_tokens", "masked_tokens"),
    *("context_tokens", "duration_s", "prefill_s", "swap_s", "host_s"),
    *("prefill_tokens", "schedule_s"),
)


def step_totals(row: FloatArray) -> StepTotals:
    """The totals of one step, from its row of STEP_COLUMNS; nothing in it may be NaN."""
    names = (total.name for total in fields(StepTotals))
    return StepTotals(**{name: round(float(row[STEP_COLUMNS.index(name)])) for name in names})


@dataclass(frozen=True, kw_only=True)
class PointRecords:
    """Records of results by key (point hash, source, hardware).

    `latencies[key][name]`: seconds of the finished requests for which it is defined, for each name
    of LATENCIES. `served[key]`: arrival and end of every request [requests, 2]. `steps[key]`: one
    row a step, with the columns of STEP_COLUMNS.
    """

    latencies: dict[Key, dict[str, FloatArray]] = field(default_factory=dict)
    served: dict[Key, FloatArray] = field(default_factory=dict)
    steps: dict[Key, FloatArray] = field(default_factory=dict)


def read_records(folders: Sequence[Path]) -> PointRecords:
    """The records of all folders; of the same point the last folder's. Files that are missing are
    left out. Raises UsageError for a file that is not whole.
    """
    records = PointRecords()
    for folder in folders:
        for file in sorted((folder / POINTS_FOLDER).glob("*.requests.csv")):
            with naming_faults(file):
                key, rows = _read(file, ("finish_reason", *LATENCIES, *_SERVED))
                if key is not None:
                    records.latencies[key] = _latencies(rows)
                    times = [[_number(cell) for cell in row[-len(_SERVED) :]] for row in rows]
                    records.served[key] = np.array(times)
        for file in sorted((folder / POINTS_FOLDER).glob("*.steps.csv")):
            with naming_faults(file):
                key, rows = _read(file, STEP_COLUMNS)
                if key is not None:
                    records.steps[key] = np.array([[_number(c) for c in row] for row in rows])
    return records


def _latencies(rows: list[list[str]]) -> dict[str, FloatArray]:
    finished = [row[1:] for row in rows if row[0] not in FAILURES]
    return {
        name: np.array([float(row[i]) for row in finished if row[i]], dtype=np.float64)
        for i, name in enumerate(LATENCIES)
    }


def _read(file: Path, columns: Sequence[str]) -> tuple[Key | None, list[list[str]]]:
    """Key and the named columns of a file of one point; no key where it has no rows."""
    lines = whole_rows(file)
    header = next(lines)
    places = [header.index(name) for name in columns]
    where = [header.index(name) for name in ("point_hash", "source", "hardware")]
    key: Key | None = None
    rows = []
    for row in lines:
        if key is None:
            key = (row[where[0]], row[where[1]], row[where[2]])
        rows.append([row[i] for i in places])
    return key, rows


def _number(cell: str) -> float:
    return float(cell) if cell else np.nan
