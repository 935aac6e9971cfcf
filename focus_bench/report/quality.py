"""Scores as a table for the terminal, as tidy CSV rows and as JSON.

Knows no file and no run; undefined figures are "-" in tables, empty in CSV and null in JSON.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.core.records import SCHEMA_VERSION
from focus_bench.report import formats
from focus_bench.report.captions import data_line
from focus_bench.report.codec import to_plain
from focus_bench.report.distribution import ratio
from focus_bench.report.export import Cell, csv_text, json_text
from focus_bench.report.layout import Column, FittedTable, column
from focus_bench.report.quality_results import (
    QualityPlan,
    QualityResult,
    reads_alpha,
    reads_retain,
)


def quality_table(results: Sequence[QualityResult]) -> RenderableType:
    """One row a point: score with its interval, and how its text was decoded.

    Above it stand what all rows share, the data, and every label and note, numbered where it holds
    for some rows only.
    """
    if not results:
        return Text("no results")
    lines, marks = _notes(results)
    columns = _names([result.plan for result in results])
    if len({result.hardware for result in results}) > 1:
        columns.append(column("hardware", results, lambda r: r.hardware, is_name=True))
    if any(marks):
        columns.append(Column(heading="#", cells=marks, is_name=True))
    columns += [
        column("score\n%", results, lambda r: _percent(r.accuracy.value)),
        column("95 %\ninterval", results, _interval),
        column("n", results, lambda r: str(r.num_problems)),
        column("tok/\nstep", results, lambda r: formats.fixed(r.decoding.metrics.tokens_per_step)),
        column(
            "proc./\ndec.",
            results,
            lambda r: formats.fixed(r.decoding.metrics.processed_per_decoded),
        ),
        column("tok/\nanswer", results, lambda r: formats.number(_output_tokens_mean(r))),
    ]
    reasons = dict.fromkeys(
        reason for r in results for reason in r.decoding.metrics.finished_by_reason
    )
    for reason in reasons:
        columns.append(column(reason, results, lambda r, name=reason: str(_finished(r, name))))
    if any(r.decoding.metrics.num_failed for r in results):
        columns.append(column("failed", results, lambda r: str(r.decoding.metrics.num_failed)))
    columns.append(
        column("time", results, lambda r: formats.seconds(r.decoding.metrics.duration_s))
    )
    head = [Text(_shared(results)), *(Text(line) for line in _data_lines(results))]
    head += [Text(line, style="yellow") for line in lines]
    return Group(*head, Text(), FittedTable(columns=tuple(columns)))


def quality_plan_table(
    plans: Sequence[QualityPlan], finished: Sequence[bool] | None = None
) -> RenderableType:
    """The points of a dry run, and which of them are finished already (`finished[i]`)."""
    columns = _names(plans)
    columns.append(column("problems", plans, lambda p: str(p.point.workload.num_prompts)))
    columns.append(column("point", plans, lambda p: p.hash()))
    if finished is not None:
        columns.append(column("state", finished, lambda done: "finished" if done else "to do"))
    count = f"{len(plans)} point" + ("" if len(plans) == 1 else "s")
    return Group(Text(count), Text(), FittedTable(columns=tuple(columns)))


def quality_row(result: QualityResult) -> dict[str, Cell]:
    """The row of quality.csv. Settings that the policy does not read are empty."""
    plan, metrics = result.plan, result.decoding.metrics
    point = plan.point
    decode, interval = point.decode, result.ci95
    fixed = reads_retain(decode.policy)
    return {
        "plan_hash": plan.hash(),
        "hardware": result.hardware,
        "task": plan.task,
        "scorer": plan.scorer,
        "benchmark": plan.benchmark,
        "metric": plan.metric,
        "num_fewshot": plan.num_fewshot,
        "chat_template": plan.chat,
        "policy": decode.policy,
        "model": point.engine.model,
        "batch_size": point.scheduler.batch_size,
        "block_length": decode.block_length,
        "threshold": decode.threshold,
        "alpha": decode.alpha if reads_alpha(decode.policy) else None,
        "retain": decode.retain if fixed else None,
        "select": decode.select if fixed else None,
        "unmasking_strategy": decode.unmasking_strategy,
        "acceptance": point.acceptance.label,
        "importance": point.importance.label,
        "temperature": point.sampling.temperature,
        "max_new_tokens": point.workload.max_new_tokens,
        "dtype": point.engine.dtype,
        "seed": point.seed,
        "num_problems": result.num_problems,
        "num_runs": len(result.scores),
        "score": result.accuracy.value,
        "score_ci95_low": interval[0] if interval else None,
        "score_ci95_high": interval[1] if interval else None,
        "score_of_runs": "; ".join(repr(score) for score in result.scores) or None,
        "other_scores": "; ".join(f"{k}={v!r}" for k, v in result.other_scores.items()) or None,
        "tokens_per_step": metrics.tokens_per_step,
        "processed_per_decoded": metrics.processed_per_decoded,
        "processed_shallow_per_decoded": metrics.processed_shallow_per_decoded,
        "retained_fraction": metrics.retained_fraction,
        "output_tokens_mean": _output_tokens_mean(result),
        "output_throughput": metrics.output_throughput,
        "duration_s": metrics.duration_s,
        "finished_by_reason": _counts(result),
        "failed": metrics.num_failed,
        "output_digest": metrics.output_digest or None,
        "data_origin": result.decoding.provenance.origin,
        "data_sha256": result.decoding.provenance.sha256 or None,
        "labels": "; ".join(result.decoding.labels),
        "notes": "; ".join(_own_notes(result)),
    }


def quality_csv(results: Sequence[QualityResult]) -> str:
    """quality.csv: a header and one row a result; empty for no results."""
    rows = [quality_row(result) for result in results]
    return csv_text(tuple(rows[0]), (row.values() for row in rows)) if rows else ""


def quality_json(results: Sequence[QualityResult]) -> str:
    """quality.json: one object a result with the names of quality.csv, lists as lists."""
    points = [
        {
            **quality_row(result),
            "score_of_runs": list(result.scores),
            "other_scores": dict(result.other_scores),
            "finished_by_reason": dict(result.decoding.metrics.finished_by_reason),
            "labels": list(result.decoding.labels),
            "notes": list(_own_notes(result)),
        }
        for result in results
    ]
    return json_text({"schema_version": SCHEMA_VERSION, "points": to_plain(points)})


def _names(plans: Sequence[QualityPlan]) -> list[Column]:
    """What names a row: task and policy always, settings where some row has another value."""

    def varying(heading: str, cells: Sequence[str]) -> list[Column]:
        shown = len({cell for cell in cells if cell != formats.UNDEFINED}) > 1
        return [Column(heading=heading, cells=tuple(cells), is_name=True)] if shown else []

    decodes = [plan.point.decode for plan in plans]
    return [
        column("task", plans, lambda p: p.task.removeprefix("focus-tasks-"), is_name=True),
        *varying("model", [plan.point.engine.model for plan in plans]),
        column("policy", plans, lambda p: p.point.decode.policy, is_name=True),
        *varying("batch", [str(plan.point.scheduler.batch_size) for plan in plans]),
        *varying("B", [str(d.block_length) for d in decodes]),
        *varying("unmasking", [d.unmasking_strategy for d in decodes]),
        *varying("thr.", [f"{d.threshold:g}" for d in decodes]),
        *_if_read(
            "alpha",
            [f"{d.alpha:g}" if reads_alpha(d.policy) else formats.UNDEFINED for d in decodes],
        ),
        *_if_read(
            "K",
            [str(d.retain) if reads_retain(d.policy) else formats.UNDEFINED for d in decodes],
        ),
        *_if_read(
            "select",
            [d.select if reads_retain(d.policy) else formats.UNDEFINED for d in decodes],
        ),
    ]


def _if_read(heading: str, cells: list[str]) -> list[Column]:
    """A column of a setting that some policies do not read; none where no policy here does."""
    if all(cell == formats.UNDEFINED for cell in cells):
        return []
    return [Column(heading=heading, cells=tuple(cells), is_name=True)]


def _shared(results: Sequence[QualityResult]) -> str:
    """Settings that all rows share and no column shows."""
    plans = [result.plan for result in results]
    values = {
        "model": {plan.point.engine.model for plan in plans},
        "threshold": {f"{plan.point.decode.threshold:g}" for plan in plans},
        "batch": {str(plan.point.scheduler.batch_size) for plan in plans},
        "B": {str(plan.point.decode.block_length) for plan in plans},
        "max new tokens": {str(plan.point.workload.max_new_tokens) for plan in plans},
        "temperature": {f"{plan.point.sampling.temperature:g}" for plan in plans},
        "runs": {str(plan.num_runs) for plan in plans},
        "seed": {str(plan.point.seed) for plan in plans},
        "device": {result.hardware for result in results},
    }
    return ", ".join(f"{name} {seen.pop()}" for name, seen in values.items() if len(seen) == 1)


def _data_lines(results: Sequence[QualityResult]) -> list[str]:
    lines = []
    for result in results:
        plan = result.plan
        few = f", {plan.num_fewshot}-shot" if plan.num_fewshot else ""
        template = "" if plan.chat else ", without chat template"
        lines.append(
            f"{data_line(result.decoding.provenance)}; scored by {plan.scorer} "
            f"({plan.benchmark}, {plan.metric}{few}{template})"
        )
    return list(dict.fromkeys(lines))


def _notes(results: Sequence[QualityResult]) -> tuple[list[str], tuple[str, ...]]:
    """Lines above the table, and for each row the numbers of those that hold for some rows only."""
    rows_of: dict[str, list[int]] = {}
    for row, result in enumerate(results):
        for note in result.decoding.all_notes:
            rows_of.setdefault(note, []).append(row)
    lines: list[str] = []
    marks: list[list[str]] = [[] for _ in results]
    number = 0
    for note, rows in rows_of.items():
        if len(rows) == len(results):
            lines.append(note)
            continue
        number += 1
        lines.append(f"[{number}] {note}")
        for row in rows:
            marks[row].append(str(number))
    return lines, tuple(",".join(mark) for mark in marks)


def _own_notes(result: QualityResult) -> tuple[str, ...]:
    return result.decoding.all_notes[len(result.decoding.labels) :]


def _percent(value: float | None) -> str:
    return formats.fixed(None if value is None else 100 * value, 1)


def _interval(result: QualityResult) -> str:
    interval = result.ci95
    if interval is None:
        return formats.UNDEFINED
    return f"{_percent(interval[0])}-{_percent(interval[1])}"


def _output_tokens_mean(result: QualityResult) -> float | None:
    metrics = result.decoding.metrics
    return ratio(metrics.total_output_tokens, metrics.num_completed)


def _finished(result: QualityResult, reason: str) -> int:
    return result.decoding.metrics.finished_by_reason.get(reason, 0)


def _counts(result: QualityResult) -> str | None:
    items = result.decoding.metrics.finished_by_reason.items()
    return "; ".join(f"{reason}={count}" for reason, count in items) or None
