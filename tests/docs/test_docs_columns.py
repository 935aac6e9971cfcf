"""Columns of CSV files are those of docs/files.md, in that order, with cells of the types it names;
every figure among them is defined in docs/metrics.md.
"""

import csv
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from doc_text import DOCS, names_in
from record_schemas import column_types

from focus_bench.api import make_point
from focus_bench.core.records import EnvironmentSample, RunRecord
from focus_bench.core.workload import Provenance
from focus_bench.report import against, compare
from focus_bench.report.comparison_csv import comparison_csv
from focus_bench.report.export import environment_csv, runs_csv, summary_csv
from focus_bench.report.folder import load_folder
from focus_bench.report.results import PointResult, result_of

NAMES = column_types("Columns that name a point")
KEY = dict(list(NAMES.items())[:3])
COLUMNS = {
    "summary.csv": NAMES | column_types("summary.csv"),
    "runs.csv": KEY | column_types("runs.csv") | column_types("A run in runs.csv and results.json"),
    "requests.csv": KEY | column_types("requests.csv"),
    "steps.csv": KEY | column_types("steps.csv"),
    "environment.csv": KEY | column_types("environment.csv"),
    "quality.csv": column_types("quality.csv"),
    "compare": column_types("compare --csv"),
    "against": column_types("report --against --csv"),
}
TABLES = ("summary.csv", "runs.csv", "requests.csv", "steps.csv", "environment.csv")


def check(text: str, name: str) -> list[dict[str, str]]:
    """The header is the documented one, and every cell is of its column's type."""
    columns = COLUMNS[name]
    rows = list(csv.DictReader(io.StringIO(text)))
    header = next(csv.reader(io.StringIO(text)))
    assert header == list(columns)
    for row in rows:
        for column, kind in columns.items():
            assert is_of(row[column], kind), f"{name} {column}: {row[column]!r} is not {kind}"
    return rows


def is_of(cell: str, kind: str) -> bool:
    plain = kind.removesuffix(" or empty")
    if cell == "":
        return kind != plain
    if plain in ("whole", "number"):
        try:
            (int if plain == "whole" else float)(cell)
        except ValueError:
            return False
        return True
    if plain == "yes or no":
        return cell in ("True", "False")
    return plain in ("text", "texts", "object")


@pytest.mark.parametrize("name", TABLES)
def test_files_of_simulate(predicted: Path, name: str) -> None:
    rows = check((predicted / "out" / name).read_text(encoding="utf-8"), name)
    if name == "summary.csv":
        # A failed point has its settings, the reason, and no figure.
        assert [row["state"] for row in rows] == ["finished", "failed"]
        assert rows[1]["failure"]
        figures = list(COLUMNS[name])[len(NAMES) + 2 :]
        assert {rows[1][figure] for figure in figures} == {""}


@pytest.mark.parametrize("name", TABLES)
def test_files_of_run(measured: Path, name: str) -> None:
    rows = check((measured / name).read_text(encoding="utf-8"), name)
    assert bool(rows) is (name != "environment.csv")


def test_files_of_eval(evaluated: Path) -> None:
    rows = check((evaluated / "quality.csv").read_text(encoding="utf-8"), "quality.csv")
    assert [row["retain"] for row in rows] == ["", "4"]


def sampled() -> tuple[PointResult, RunRecord]:
    """A run without requests on a GPU that was sampled, whose driver tells everything."""
    samples = tuple(
        EnvironmentSample(
            time_s=0.1 * place,
            sm_clock_mhz=1980 - place,
            memory_clock_mhz=3201,
            power_w=310.5,
            temperature_c=41,
            energy_j=100.0 + 31.0 * place,
            clock_reasons=("sw_power_cap",) if place else (),
        )
        for place in range(4)
    )
    run = RunRecord(
        source="measured",
        steps=(),
        requests=(),
        duration_s=0.3,
        step_fed_tokens=0,
        step_kept_tokens=0,
        steps_per_block=np.zeros(0, dtype=np.int64),
        group_gaps_s=np.zeros(0),
        block_latencies_s=np.zeros(0),
        num_pages=None,
        environment=samples,
    )
    data = Provenance(dataset="synthetic", origin="synthetic", tokenizer="byte", synthetic=True)
    result = result_of(make_point(model="dummy-tiny"), run, provenance=data, hardware="NVIDIA H200")
    return result, run


def test_a_sampled_gpu_fills_its_columns() -> None:
    result, run = sampled()
    (row,) = check(summary_csv([result]), "summary.csv")
    environment = list(COLUMNS["summary.csv"])
    first = environment.index("energy_j")
    last = environment.index("environment_samples")
    assert all(row[name] for name in environment[first : last + 1])
    check(runs_csv([result]), "runs.csv")
    assert len(check(environment_csv(result, run), "environment.csv")) == 4


def test_comparisons(measured: Path) -> None:
    result = load_folder(measured).results[0]
    predicted = dataclasses.replace(result, source="predicted", hardware="h200", runs=())
    pairs = compare.pair_results([result, predicted])
    assert check(comparison_csv(pairs), "compare")
    side = against.Side(results=(result,))
    assert check(against.against_csv(against.compare_against(side, side)), "against")


def test_every_figure_is_defined() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    defined = {name for line in page.splitlines() for name in names_in(line)}
    about = {"state", "failure", "data_origin", "data_sha256", "labels", "notes"}
    for name in ("summary.csv", "quality.csv"):
        names = list(COLUMNS[name])
        first = names.index("score") if name == "quality.csv" else len(NAMES)
        missing = set(names[first:]) - about - defined
        assert not missing, f"docs/metrics.md does not define {sorted(missing)} of {name}"
