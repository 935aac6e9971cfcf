"""Scores as a table, as rows, and in a folder that survives a kill."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import pytest
from report_samples import PROVENANCE, make_request, make_run
from rich.console import Console

from focus_bench.core.config import DecodeConfig, EngineConfig, PointConfig, WorkloadConfig
from focus_bench.core.errors import UsageError
from focus_bench.report.manifest import new_manifest
from focus_bench.report.quality import (
    quality_csv,
    quality_json,
    quality_plan_table,
    quality_row,
    quality_table,
)
from focus_bench.report.quality_folder import QualityFolder, load_quality
from focus_bench.report.quality_results import Answer, QualityPlan, QualityResult
from focus_bench.report.results import result_of

ANSWER = Answer(
    problem=0, right=1.0, output="4 \u2713", finish_reason="stop", output_tokens=3, decode_steps=2
)


def make_plan(policy: str = "focus", *, task: str = "focus-tasks-problems", **decode: object):
    point = PointConfig(
        decode=DecodeConfig(policy=policy, **decode),  # type: ignore[arg-type]
        engine=EngineConfig(model="tiny", load_format="auto"),
        workload=WorkloadConfig(dataset=task, num_prompts=40, max_new_tokens=64),
    )
    return QualityPlan(point=point, scorer="focus-bench", benchmark=task, metric="exact match")


def make_quality(
    plan: QualityPlan, *scores: float, notes: tuple[str, ...] = (), **changes: object
) -> QualityResult:
    run = make_run(
        [
            make_request(0, finish_reason="stop"),
            make_request(1, finish_reason="length", output_tokens=20),
        ],
        notes=notes,
    )
    base = QualityResult(
        plan=plan,
        scores=scores,
        num_problems=40,
        is_binomial=True,
        decoding=result_of(plan.point, run, provenance=PROVENANCE, hardware="cpu"),
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def shown(*results: QualityResult, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    console.print(quality_table(results))
    return console.file.getvalue()  # type: ignore[attr-defined]


def table_rows(text: str) -> list[str]:
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [line for line in lines if line.startswith("problems")]


def test_a_table_has_scores_intervals_and_decoding() -> None:
    text = shown(
        make_quality(make_plan("baseline"), 0.5),
        make_quality(make_plan("focus"), 0.75, notes=("one thing",)),
        make_quality(make_plan("focus-fixed", retain=4, select="random"), 0.0),
    )
    assert table_rows(text) == [
        "problems baseline - - - 50.0 35.2-64.8 40 3.20 4.00 15 1 1 4.00 s",
        "problems focus 1.5 - - 1 75.0 59.8-85.8 40 3.20 4.00 15 1 1 4.00 s",
        "problems focus-fixed - 4 random 0.0 0.0-8.8 40 3.20 4.00 15 1 1 4.00 s",
    ]
    assert "[1] one thing" in text
    assert "no chat template" in text  # of the data, so of every row
    assert "scored by focus-bench (focus-tasks-problems, exact match)" in " ".join(text.split())
    assert "model tiny, threshold 0.9, batch 32" in text


def test_settings_are_columns_only_where_they_vary() -> None:
    assert "thr." not in shown(make_quality(make_plan("focus"), 0.5))
    text = shown(*(make_quality(make_plan("baseline", threshold=t), 0.5) for t in (0.9, 0.8)))
    assert "thr." in text
    assert "alpha" not in text


def test_no_interval_where_the_score_is_no_share() -> None:
    result = make_quality(make_plan(), 0.5, is_binomial=False)
    assert result.ci95 is None
    assert table_rows(shown(result)) == ["problems focus 1.5 50.0 - 40 3.20 4.00 15 1 1 4.00 s"]
    assert quality_row(result)["score_ci95_low"] is None


def test_no_results() -> None:
    assert shown().strip() == "no results"
    assert quality_csv([]) == ""


def test_rows_leave_unread_settings_empty() -> None:
    plans = [make_plan("baseline"), make_plan("focus"), make_plan("focus-fixed", retain=2)]
    rows = [quality_row(make_quality(plan, 0.25, 0.75)) for plan in plans]
    assert [(r["alpha"], r["retain"], r["select"]) for r in rows] == [
        (None, None, None),
        (1.5, None, None),
        (None, 2, "top"),
    ]
    assert rows[0]["score"] == 0.5
    assert rows[0]["score_of_runs"] == "0.25; 0.75"
    assert rows[0]["output_tokens_mean"] == 15
    assert rows[0]["finished_by_reason"] == "stop=1; length=1"
    read = list(csv.DictReader(io.StringIO(quality_csv([make_quality(plans[0], 0.5)]))))
    assert read[0]["score"] == "0.5"
    assert read[0]["alpha"] == ""
    point = json.loads(quality_json([make_quality(plans[1], 0.25, 0.75)]))["points"][0]
    assert point["score_of_runs"] == [0.25, 0.75]
    assert point["finished_by_reason"] == {"stop": 1, "length": 1}


def test_the_plan_says_what_is_finished() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(quality_plan_table([make_plan(), make_plan("baseline")], [True, False]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.index("finished") < text.index("to do")
    assert make_plan().hash() in text


def create(path: Path, *, resume: bool = False) -> QualityFolder:
    return QualityFolder.create(path, new_manifest((), command="eval", seed=0), resume=resume)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    first = make_quality(make_plan(), 0.5, other_scores={"a,b": 0.25})
    second = make_quality(make_plan("baseline"), 0.25, 0.5, notes=("n",))
    with create(tmp_path / "out") as folder:
        folder.add(first, [ANSWER])
        assert folder.is_finished(make_plan(), "cpu")
        assert not folder.is_finished(make_plan(), "another device")
        assert not folder.is_finished(make_plan("baseline"), "cpu")
        folder.add(second, [])
    assert load_quality(tmp_path / "out") == (first, second)
    lines = (tmp_path / "out" / "quality.csv").read_text().splitlines()
    assert len(lines) == 3
    (answers,) = (tmp_path / "out" / "points").glob(f"{make_plan().hash()}*.answers.jsonl")
    assert json.loads(answers.read_text()) == dataclasses.asdict(ANSWER)


def test_a_killed_run_keeps_its_finished_points(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with create(path) as folder:
        folder.add(make_quality(make_plan(), 0.5), [ANSWER])
    # Killed while it wrote the second point: answers are there, the point file is not.
    (path / "points" / "abc-1.answers.jsonl").write_text("{}\n")
    (path / "points" / "abc-1.json.123.tmp").write_text('{"schema')
    (path / "quality.csv.123.tmp").write_text("half")
    with pytest.raises(UsageError, match="--resume"):
        create(path)
    with create(path, resume=True) as folder:
        assert [r.plan for r in folder.results] == [make_plan()]
        folder.add(make_quality(make_plan("baseline"), 0.25), [])
        folder.add(make_quality(make_plan("baseline"), 0.3), [])  # again: replaces, never doubles
    assert not list(path.rglob("*.tmp"))
    assert [r.scores for r in load_quality(path)] == [(0.5,), (0.3,)]


def test_foreign_folders_and_second_writers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match="new or empty"):
        create(tmp_path / "mine")
    with create(tmp_path / "out"), pytest.raises(UsageError, match="no other run"):
        create(tmp_path / "out", resume=True)
    with pytest.raises(UsageError, match=r"quality\.csv"):
        load_quality(tmp_path / "mine")


def test_other_versions_and_broken_files_are_named(tmp_path: Path) -> None:
    with create(tmp_path) as folder:
        folder.add(make_quality(make_plan(), 0.5), [])
    (file,) = (tmp_path / "points").glob("*.json")
    text = file.read_text()
    file.write_text(text.replace('"schema_version": ', '"schema_version": 9'))
    with pytest.raises(UsageError, match="schema_version"):
        load_quality(tmp_path)
    file.write_text(text[: len(text) // 2])
    with pytest.raises(UsageError, match="a whole JSON file"):
        load_quality(tmp_path)
