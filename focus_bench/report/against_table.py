"""What `report --against` shows: changes of each point, points of one side, regressions in words.

Pure renderables; knows no test and no folder.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.core.config import PointConfig
from focus_bench.report import formats
from focus_bench.report.against import (
    COMPARED,
    Against,
    Change,
    PointChange,
    Verdict,
    limit_percent,
)
from focus_bench.report.captions import captions
from focus_bench.report.compare import Comparison
from focus_bench.report.layout import Column, FittedTable, column
from focus_bench.report.results import PointResult
from focus_bench.report.tables import name_columns

_SIGNIFICANT, _LARGE = "*", "!"
_OF_ITSELF = (
    "all results here and in --against are identical: the same folder, a copy of it, or "
    "predictions that did not change"
)


def against_table(report: Against) -> RenderableType:
    """Warnings, one row a point on both sides, and the points that only one side has."""
    parts: list[RenderableType] = [Text(line, style="yellow") for line in report.warnings]
    if report.is_of_itself:
        parts.append(Text(_OF_ITSELF, style="yellow"))
    if report.points:
        pairs = [_comparison(point.new) for point in report.points]
        notes = captions(pairs)
        parts += [Text(line, style="yellow") for line in notes.lines]
        parts += [Text(line) for line in _legend(report)]
        columns = [*name_columns(pairs, notes.marks), *_columns(report.points)]
        parts += [Text(), FittedTable(columns=tuple(columns))]
    parts += [Text(f"only here: {_result_name(result)}") for result in report.only_new]
    parts += [Text(f"only in --against: {_result_name(result)}") for result in report.only_old]
    verdict = "regression" if report.has_regression else "no regression"
    parts.append(Text(verdict, style="bold red" if report.has_regression else "bold"))
    return Group(*parts)


def regression_lines(report: Against) -> tuple[str, ...]:
    """Every regression in one line: the point, the figure, by how much, and why it counts."""
    lines = []
    for point in report.points:
        name = _result_name(point.new)
        for change in point.changes:
            if change.verdict is Verdict.WORSE:
                why = "no test" if change.p is None else f"p = {change.p:.2g}"
                percent = formats.signed_percent(change.percent)
                lines.append(f"{name}: {change.figure.name} {percent} % ({why})")
        if point.new_failures:
            failed = (point.old.metrics.num_failed, point.new.metrics.num_failed)
            lines.append(f"{name}: failed requests {failed[0]} -> {failed[1]}")
    for failure in report.failed:
        name = _point_name(failure.source, failure.point, failure.hardware)
        lines.append(f"{name}: failed: {failure.reason}")
    return tuple(lines)


def _legend(report: Against) -> list[str]:
    changes = [change for point in report.points for change in point.changes]
    tested = [change for change in changes if change.is_tested]
    lines = ["changes in percent: 100 * (new - old) / old, of means over the runs"]
    if tested:
        limit = limit_percent(report.tolerance_percent, is_tested=True)
        beyond = f" and beyond {limit:g} %" if limit else ""
        lines.append(
            f"{_SIGNIFICANT} significant{beyond}: Welch's t-test at 5 %, adjusted by Holm for "
            f"{report.num_tests} tests; +-: half of its 95 % interval"
        )
    if any(change.verdict is Verdict.UNCLEAR for change in changes):
        lines.append("unclear: chance may explain it, but so noisy that a loss is not ruled out")
    runs = {
        len(result.all_runs)
        for point in report.points
        if any(change.percent is not None and not change.is_tested for change in point.changes)
        for result in (point.new, point.old)
    }
    if runs:
        limit = limit_percent(report.tolerance_percent, is_tested=False)
        few = "one run each" if runs == {1} else "fewer than two runs on a side"
        lines.append(
            f"{few}: no test ({_LARGE} beyond {limit:g} %, see --tolerance; --num-runs repeats)"
        )
    return lines


def _columns(points: Sequence[PointChange]) -> list[Column]:
    columns: list[Column] = []
    if len({point.new.source for point in points}) > 1:
        columns.append(column("source", points, lambda p: p.new.source, is_name=True))
    columns += [
        column("verdict", points, _verdict),
        column("runs\nnew/old", points, _runs),
        column("old\ntok/s", points, lambda p: formats.number(p.changes[0].old)),
        column("new\ntok/s", points, lambda p: formats.number(p.changes[0].new)),
    ]
    for index, figure in enumerate(COMPARED):
        changes = [point.changes[index] for point in points]
        columns.append(column(figure.heading, changes, _marked))
        columns.append(column("+-\n%", changes, lambda c: formats.fixed(c.half_width_percent, 1)))
    if any(point.new_failures for point in points):
        columns.append(column("more\nfailed", points, lambda p: str(p.new_failures)))
    return columns


def _runs(point: PointChange) -> str:
    return f"{len(point.new.all_runs)}/{len(point.old.all_runs)}"


def _marked(change: Change) -> str:
    counts = change.verdict in (Verdict.BETTER, Verdict.WORSE)
    mark = (_SIGNIFICANT if change.is_tested else _LARGE) if counts else ""
    return f"{formats.signed_percent(change.percent)}{mark}"


def _verdict(point: PointChange) -> str:
    if point.is_regression:
        return Verdict.WORSE.value
    verdicts = {change.verdict for change in point.changes}
    order = (Verdict.BETTER, Verdict.UNCLEAR, Verdict.SAME, Verdict.UNKNOWN)
    return next(verdict for verdict in order if verdict in verdicts).value


def _comparison(result: PointResult) -> Comparison:
    is_measured = result.source == "measured"
    return Comparison(
        point=result.point,
        measured=result if is_measured else None,
        predicted=None if is_measured else result,
    )


def _result_name(result: PointResult) -> str:
    return _point_name(result.source, result.point, result.hardware)


def _point_name(source: str, point: PointConfig, hardware: str) -> str:
    decode = point.decode
    return (
        f"{source} {decode.policy}, batch {point.scheduler.batch_size}, B {decode.block_length}, "
        f"alpha {decode.alpha:g}, {point.engine.model}, {point.workload.dataset} on "
        f"{hardware or formats.UNDEFINED}, point {point.hash()}"
    )
