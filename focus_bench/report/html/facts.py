"""The few facts at the head of the HTML report, and what is known of how its results came to be.

Knows results and manifests; writes no HTML.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from focus_bench.report import formats
from focus_bench.report.captions import data_line
from focus_bench.report.compare import THROUGHPUT, error_summary, pair_results, speedups
from focus_bench.report.figures.data import ReportData
from focus_bench.report.figures.groups import Plotted, plotted
from focus_bench.report.manifest import Manifest
from focus_bench.report.quality_results import QualityResult


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A figure in large type and what it is; `is_bad`: a failure."""

    value: str
    text: str
    is_bad: bool = False


def subtitle(data: ReportData) -> str:
    """Models, data sets and hardware, in one line."""
    results = [*data.results, *(r.decoding for r in data.quality)]
    points = [r.point for r in results] + [f.point for f in data.failures]
    models = dict.fromkeys(p.engine.model for p in points)
    datasets = dict.fromkeys(p.workload.dataset for p in points)
    hardware = dict.fromkeys(r.hardware for r in results if r.hardware)
    parts = (", ".join(models), ", ".join(datasets), ", ".join(hardware))
    return " \u00b7 ".join(part for part in parts if part)


def tiles(data: ReportData) -> tuple[Tile, ...]:
    """Best throughput, best speed-up, error of the predictions, best score, failures.

    Bounds that no engine reaches are no best.
    """
    points = [p for p in plotted(data.results) if not p.is_bound]
    measured = [p for p in points if not p.is_predicted]
    is_several = len({p.result.hardware for p in points}) > 1
    shown = [
        _best_throughput(measured or points, is_several),
        _best_speedup(points, measured or points, is_several),
        _prediction_error(data),
        _best_score(data.quality),
        _counts(data),
    ]
    return tuple(tile for tile in shown if tile is not None)


def labels(data: ReportData) -> tuple[str, ...]:
    """Every label of the results, once."""
    results = [*data.results, *(r.decoding for r in data.quality)]
    return tuple(dict.fromkeys(label for result in results for label in result.labels))


def environment(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """What was asked of which program, on which machine, with what data: names and values."""
    facts = [
        ("command", manifest.command),
        ("created", manifest.created_utc),
        ("seed", str(manifest.seed)),
        ("focus-bench", " ".join([manifest.focus_bench_version, manifest.git_commit]).strip()),
        *manifest.machine.items(),
        ("versions", ", ".join(f"{name} {value}" for name, value in manifest.versions.items())),
        *((f"metadata {name}", value) for name, value in manifest.metadata.items()),
        *(("data", data_line(item).removeprefix("data: ")) for item in manifest.data),
    ]
    return tuple((name, value) for name, value in facts if value)


def _best_throughput(points: Sequence[Plotted], is_several: bool) -> Tile | None:
    known = [p for p in points if p.result.metrics.output_throughput is not None]
    if not known:
        return None
    best = max(known, key=lambda p: p.result.metrics.output_throughput or 0.0)
    value = formats.number(best.result.metrics.output_throughput)
    where = _where(best, is_several)
    return Tile(value=f"{value} tok/s", text=f"highest output throughput: {where}")


def _best_speedup(
    points: Sequence[Plotted], shown: Sequence[Plotted], is_several: bool
) -> Tile | None:
    factors = speedups(p.result for p in points)
    known = [p for p in shown if not p.is_baseline and factors[p.result.key] is not None]
    if not known:
        return None
    best = max(known, key=lambda p: factors[p.result.key] or 0.0)
    factor = formats.factor(factors[best.result.key])
    where = _where(best, is_several)
    return Tile(value=factor, text=f"best speed-up over the baseline: {where}")


def _where(point: Plotted, is_several: bool) -> str:
    """Which point it is; on what, where there `is_several` hardware."""
    block_length, source = point.result.point.decode.block_length, point.result.source
    hardware = f" on {point.result.hardware}" if is_several and point.result.hardware else ""
    return f"{point.series}, batch {point.batch_size}, B {block_length}, {source}{hardware}"


def _prediction_error(data: ReportData) -> Tile | None:
    errors = error_summary(pair_results(data.results), THROUGHPUT)
    if errors.mape is None:
        return None
    of_points = f"{errors.count} point{'' if errors.count == 1 else 's'}"
    worst = formats.fixed(errors.worst, 1)
    return Tile(
        value=f"{formats.fixed(errors.mape, 1)} %",
        text=f"mean error of predicted throughput over {of_points} (worst {worst} %)",
    )


def _best_score(results: Sequence[QualityResult]) -> Tile | None:
    known = [r for r in results if r.accuracy.value is not None]
    if not known:
        return None
    best = max(known, key=lambda r: r.accuracy.value or 0.0)
    decode = best.plan.point.decode
    return Tile(
        value=formats.share(best.accuracy.value),
        text=f"highest score: {decode.policy}, {best.plan.task}, n = {best.num_problems}",
    )


def _counts(data: ReportData) -> Tile:
    sources = [r.source for r in data.results]
    counts = [
        *((sources.count(s), s) for s in ("measured", "predicted", "published")),
        (len(data.quality), "evaluated"),
    ]
    found = [f"{count} {name}" for count, name in counts if count]
    failed = sum(r.metrics.num_failed for r in data.results)
    failed += sum(r.decoding.metrics.num_failed for r in data.quality)
    found += [f"{len(data.failures)} failed"] if data.failures else []
    found += [f"{failed} requests failed"] if failed else []
    total = len(data.results) + len(data.quality) + len(data.failures)
    return Tile(
        value=f"{total} point{'' if total == 1 else 's'}",
        text=", ".join(found) or "no results",
        is_bad=bool(failed or data.failures),
    )
