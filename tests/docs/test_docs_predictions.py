"""Columns of what-if.csv and of the paper's throughput parts are those of docs/files.md."""

import csv
from pathlib import Path

import pytest
from record_schemas import column_types

from focus_bench.cli.main import main

SPEED = column_types(
    "Throughput parts: table5, table7, fig6, fig7, fig8, fig15, fig17, fig18, fig19"
)


def header_and_rows(file: Path) -> tuple[list[str], list[dict[str, str]]]:
    with file.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        return list(reader.fieldnames or ()), list(reader)


def check_types(rows: list[dict[str, str]], types: dict[str, str]) -> None:
    for row in rows:
        for column, kind in types.items():
            assert row[column] or kind.endswith(" or empty"), column
            if row[column] and kind.startswith("whole"):
                int(row[column])
            elif row[column] and kind.startswith("number"):
                float(row[column])


@pytest.mark.parametrize("part", ["table5", "table7", "fig18"])
def test_a_throughput_part(tmp_path: Path, part: str) -> None:
    arguments = ["--num-prompts", "2", "--no-plots", "--quiet", "--output-dir", str(tmp_path)]
    assert main(["paper", part, "--host-profile", "lmdeploy-eager", *arguments]) == 0
    header, rows = header_and_rows(tmp_path / f"{part}.csv")
    assert header == list(SPEED) if part != "table5" else set(header) == set(SPEED)
    check_types(rows, SPEED)


def test_what_if(tmp_path: Path) -> None:
    arguments = ["--gpu", "h200", "--dataset", "synthetic", "--max-new-tokens", "8", "--quiet"]
    folder = ["--batch-size", "1,2", "--output-dir", str(tmp_path / "out")]
    assert main(["simulate", "--what-if", *arguments, *folder]) == 0
    types = column_types("what-if.csv")
    header, rows = header_and_rows(tmp_path / "out" / "what-if.csv")
    assert header == list(types)
    check_types(rows, types)
