"""New results against older ones of the same points: what changed, and whether chance explains it.

Renders nothing and reads no folder. Equal points are of the same source and the same work (see
`compare.match_key`); how fast something was in two runs says nothing without their spread, so a
change is tested wherever both sides ran at least twice.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from focus_bench.core.config import EngineConfig
from focus_bench.core.errors import UsageError, check_range
from focus_bench.report.compare import E2E, THROUGHPUT, TPOT, TTFT, Figure, match_key, values_of
from focus_bench.report.distribution import ratio
from focus_bench.report.export import Cell, csv_text
from focus_bench.report.failures import PointFailure
from focus_bench.report.manifest import Manifest
from focus_bench.report.results import PointResult
from focus_bench.report.statistics import CONFIDENCE, Welch, holm, welch

COMPARED = (THROUGHPUT, TTFT, TPOT, E2E)
UNTESTED_TOLERANCE_PERCENT = 5.0

# Facts of run.json's machine that make figures incomparable; clocks of the moment are no such.
_MACHINE_FACTS = ("device", "gpu name", "gpu driver_version", "gpu power.limit", "processor")
_SHOWING_ONLY = ("rich",)  # packages that change no figure


class Verdict(StrEnum):
    """What a change means. `UNCLEAR`: not significant, yet the runs are so noisy that a change for
    the worse beyond the tolerance is not ruled out; `UNKNOWN`: the figure is undefined on a side.
    """

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"
    UNCLEAR = "unclear"
    UNKNOWN = "-"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One figure of one point, new against old; both are means over the runs, in the figure's unit.

    `percent`: 100 * (new - old) / old. `half_width_percent`: half of Welch's 95 % interval of the
    difference, in percent of old. `p`: of Welch's test, two-sided, after Holm's adjustment over all
    tests of the report. The last two are None where a side has fewer than two runs.
    """

    figure: Figure
    new: float | None
    old: float | None
    percent: float | None
    half_width_percent: float | None
    p: float | None
    verdict: Verdict

    @property
    def is_tested(self) -> bool:
        """Whether both sides ran often enough for a test."""
        return self.p is not None


@dataclass(frozen=True, kw_only=True)
class PointChange:
    """A point with results on both sides; `changes` in the order of COMPARED."""

    new: PointResult
    old: PointResult
    changes: tuple[Change, ...]

    @property
    def new_failures(self) -> int:
        """How many more requests failed."""
        return max(0, self.new.metrics.num_failed - self.old.metrics.num_failed)

    @property
    def is_regression(self) -> bool:
        """Whether a figure got worse, or more requests failed."""
        return self.new_failures > 0 or any(c.verdict is Verdict.WORSE for c in self.changes)


@dataclass(frozen=True, kw_only=True)
class Side:
    """The results of one side, its points that failed, and the manifests of its folders."""

    results: tuple[PointResult, ...]
    failures: tuple[PointFailure, ...] = ()
    manifests: tuple[Manifest, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Against:
    """Everything that `report --against` says.

    `failed`: points that failed now and had a result before. `num_tests`: over how many tests the
    probabilities were adjusted. `tolerance_percent`: the user's, None for the defaults.
    """

    points: tuple[PointChange, ...]
    only_new: tuple[PointResult, ...]
    only_old: tuple[PointResult, ...]
    failed: tuple[PointFailure, ...]
    warnings: tuple[str, ...]
    num_tests: int
    tolerance_percent: float | None

    @property
    def has_regression(self) -> bool:
        """Whether any point got worse or failed now."""
        return bool(self.failed) or any(point.is_regression for point in self.points)

    @property
    def is_of_itself(self) -> bool:
        """Whether both sides' results are one and the same: of one folder, or of a copy."""
        return bool(self.points) and all(point.new == point.old for point in self.points)


def compare_against(new: Side, old: Side, *, tolerance_percent: float | None = None) -> Against:
    """Pair the points of both sides and judge each figure.

    A change for the worse counts if it is significant (p < 0.05) where it was tested, and if it is
    larger than `tolerance_percent` (None: 0 where tested, 5 where not). Raises UsageError if no
    point is on both sides, and for a tolerance below 0.
    """
    if tolerance_percent is not None:
        check_range("--tolerance", tolerance_percent, low=0.0)
    pairs = _paired(_latest(new.results), _latest(old.results))
    used = {key for a, b in pairs for key in (("new", *a.key), ("old", *b.key))}
    only_new = [r for r in _latest(new.results) if ("new", *r.key) not in used]
    only_old = [r for r in _latest(old.results) if ("old", *r.key) not in used]
    lost = {(r.source, match_key(r.point)) for r in only_old}
    failed = tuple(f for f in new.failures if (f.source, match_key(f.point)) in lost)
    if not pairs and not failed:
        raise UsageError(
            "--against",
            f"{len(old.results)} results of other points",
            "a folder with at least one point of the same configuration and source",
        )
    tests = [[_test(a, b, figure) for figure in COMPARED] for a, b in pairs]
    adjusted = iter(holm([test.p for row in tests for test in row if test is not None]))
    points = tuple(
        PointChange(
            new=a,
            old=b,
            changes=tuple(
                _change(
                    a, b, figure, test, None if test is None else next(adjusted), tolerance_percent
                )
                for figure, test in zip(COMPARED, row, strict=True)
            ),
        )
        for (a, b), row in zip(pairs, tests, strict=True)
    )
    return Against(
        points=points,
        only_new=tuple(only_new),
        only_old=tuple(only_old),
        failed=failed,
        warnings=(*_version_warnings(new, old), *_point_warnings(points)),
        num_tests=sum(test is not None for row in tests for test in row),
        tolerance_percent=tolerance_percent,
    )


def against_csv(report: Against) -> str:
    """Tidy CSV: one row a point on both sides and figure; units in the figures' names."""
    header = (
        *("point_hash", "old_point_hash", "source", "hardware", "old_hardware", "policy", "model"),
        *("dataset", "batch_size", "block_length", "alpha", "threshold", "figure", "runs"),
        *("old_runs", "new_mean", "old_mean", "change_percent", "half_width_percent"),
        *("p_adjusted", "verdict", "failed_requests", "old_failed_requests", "notes"),
    )
    rows: list[tuple[Cell, ...]] = []
    for point in report.points:
        new, old, config = point.new, point.old, point.new.point
        notes = "; ".join(dict.fromkeys((*new.all_notes, *_differences(new, old))))
        rows += [
            (
                *(new.point_hash, old.point_hash, new.source, new.hardware, old.hardware),
                *(config.decode.policy, config.engine.model, config.workload.dataset),
                *(config.scheduler.batch_size, config.decode.block_length),
                *(config.decode.alpha, config.decode.threshold, change.figure.name),
                *(len(new.all_runs), len(old.all_runs), change.new, change.old, change.percent),
                *(change.half_width_percent, change.p, change.verdict.value),
                *(new.metrics.num_failed, old.metrics.num_failed, notes),
            )
            for change in point.changes
        ]
    return csv_text(header, rows)


def limit_percent(tolerance_percent: float | None, *, is_tested: bool) -> float:
    """The change in percent that is passed over."""
    if tolerance_percent is not None:
        return tolerance_percent
    return 0.0 if is_tested else UNTESTED_TOLERANCE_PERCENT


def _latest(results: Iterable[PointResult]) -> list[PointResult]:
    return list({result.key: result for result in results}.values())


def _paired(
    new: Sequence[PointResult], old: Sequence[PointResult]
) -> list[tuple[PointResult, PointResult]]:
    """Each new result with the most alike old one that is free: first those of the very same point
    and hardware, last those of the same work on other hardware.
    """

    def same_point(result: PointResult) -> tuple[object, ...]:
        return (result.source, result.point_hash)

    def same_work(result: PointResult) -> tuple[object, ...]:
        return (result.source, match_key(result.point))

    def here(key: Callable[[PointResult], tuple[object, ...]]) -> Callable[..., tuple[object, ...]]:
        return lambda result: (*key(result), result.hardware)

    partner: dict[tuple[str, str, str], PointResult] = {}
    free = list(old)
    for key in (here(same_point), here(same_work), same_point, same_work):
        for result in new:
            if result.key in partner:
                continue
            found = next((r for r in free if key(r) == key(result)), None)
            if found is not None:
                partner[result.key] = found
                free.remove(found)
    return [(result, partner[result.key]) for result in new if result.key in partner]


def _test(new: PointResult, old: PointResult, figure: Figure) -> Welch | None:
    return welch(values_of(new, figure), values_of(old, figure))


def _change(
    new: PointResult,
    old: PointResult,
    figure: Figure,
    test: Welch | None,
    p: float | None,
    tolerance_percent: float | None,
) -> Change:
    means = [
        statistics.fmean(values) if values else None
        for values in (values_of(new, figure), values_of(old, figure))
    ]
    percent = half_width_percent = None
    if means[0] is not None and means[1] is not None:
        part = ratio(means[0] - means[1], means[1])
        percent = None if part is None else 100.0 * part
        if test is not None and means[1]:
            half_width_percent = 100.0 * test.half_width / means[1]
    return Change(
        figure=figure,
        new=means[0],
        old=means[1],
        percent=percent,
        half_width_percent=half_width_percent,
        p=p,
        verdict=Verdict.SAME
        if new == old and percent is not None  # however noisy its runs, nothing was measured twice
        else _verdict(figure, percent, half_width_percent, p, tolerance_percent),
    )


def _verdict(
    figure: Figure,
    percent: float | None,
    half_width_percent: float | None,
    p: float | None,
    tolerance_percent: float | None,
) -> Verdict:
    if percent is None:
        return Verdict.UNKNOWN
    if p is not None and half_width_percent is not None and p >= 1.0 - CONFIDENCE:
        loss = -percent if figure.higher_is_better else percent
        is_ruled_out = loss + half_width_percent <= limit_percent(
            tolerance_percent, is_tested=False
        )
        return Verdict.SAME if is_ruled_out else Verdict.UNCLEAR
    if abs(percent) <= limit_percent(tolerance_percent, is_tested=p is not None):
        return Verdict.SAME
    return Verdict.BETTER if (percent > 0.0) == figure.higher_is_better else Verdict.WORSE


def _version_warnings(new: Side, old: Side) -> list[str]:
    """Machine, packages and program, where they differ between the folders of the two sides."""
    sides = [[_facts(manifest) for manifest in side.manifests] for side in (new, old)]
    lines = []
    for name in dict.fromkeys(name for side in sides for facts in side for name in facts):
        ours, theirs = (
            ", ".join(dict.fromkeys(facts[name] for facts in side if facts.get(name)))
            for side in sides
        )
        if ours and theirs and ours != theirs:
            lines.append(f"{name} differs: {ours} against {theirs}")
    return lines


def _facts(manifest: Manifest) -> dict[str, str]:
    """What figures depend on besides the point, as run.json has it."""
    program = f"{manifest.focus_bench_version} {manifest.git_commit}".strip()
    packages = {n: v for n, v in manifest.versions.items() if n not in _SHOWING_ONLY}
    machine = {n: v for n, v in manifest.machine.items() if n in _MACHINE_FACTS}
    return {"focus-bench": program, **packages, **machine}


def _point_warnings(points: Sequence[PointChange]) -> list[str]:
    """What differs between the two results of points, beside what was to be compared."""
    counts: dict[str, int] = {}
    for point in points:
        for line in _differences(point.new, point.old):
            counts[line] = counts.get(line, 0) + 1
    total = len(points)
    return [f"{line} (at {count} of {total} points)" for line, count in counts.items()]


def _differences(new: PointResult, old: PointResult) -> list[str]:
    lines = []
    if new.hardware != old.hardware:
        lines.append(f"hardware differs: {new.hardware or '-'} against {old.hardware or '-'}")
    ours, theirs = new.point.engine, old.point.engine
    for name in (field.name for field in fields(EngineConfig)):
        if getattr(ours, name) != getattr(theirs, name):
            lines.append(f"{name} differs: {getattr(ours, name)} against {getattr(theirs, name)}")
    if new.point.scheduler != old.point.scheduler:
        pages = [r.point.scheduler.num_pages or "as memory allows" for r in (new, old)]
        lines.append(f"num_pages differs: {pages[0]} against {pages[1]}")
    if new.provenance.sha256 != old.provenance.sha256:
        lines.append("the data's file differs")
    digests = (new.metrics.output_digest, old.metrics.output_digest)
    if all(digests) and digests[0] != digests[1]:
        lines.append("the output tokens differ, so the work does too")
    return lines
