"""Measured against predicted, and each policy against the baseline. Renders nothing.

A prediction belongs to a measurement if both are of the same point; how the weights and the pages
were had (device, number format, memory, path of the data) does not matter to that.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace

from focus_bench.core.config import DecodeConfig, EngineConfig, ImportanceConfig, PointConfig
from focus_bench.core.intervals import Interval, intervals_in
from focus_bench.report.distribution import ratio
from focus_bench.report.metrics import PointMetrics
from focus_bench.report.results import FOR, PointResult
from focus_bench.report.spread import Spread
from focus_bench.report.statistics import ratio_half_width

DEVICE_FACTS = ("device", "threads")  # settings of a measured run that name its device


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One point with its measurement, its prediction, or both."""

    point: PointConfig
    measured: PointResult | None
    predicted: PointResult | None

    @property
    def results(self) -> tuple[PointResult, ...]:
        """Those that exist, measured first."""
        return tuple(r for r in (self.measured, self.predicted) if r is not None)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure that is compared: its name (with its unit), a heading of one or two lines, where it
    stands in the metrics, and whether more of it is better.
    """

    name: str
    heading: str
    get: Callable[[PointMetrics], float | None]
    higher_is_better: bool = False


THROUGHPUT = Figure(
    name="output_throughput",
    heading="tok/s",
    get=lambda m: m.output_throughput,
    higher_is_better=True,
)
TTFT = Figure(name="ttft_p50_s", heading="TTFT\np50", get=lambda m: m.ttft_s.p50)
TPOT = Figure(name="tpot_p50_s", heading="TPOT\np50", get=lambda m: m.tpot_s.p50)
E2E = Figure(name="e2e_p50_s", heading="E2E\np50", get=lambda m: m.e2e_s.p50)
FIGURES = (
    THROUGHPUT,
    Figure(name="step_time_mean_s", heading="step\ntime", get=lambda m: m.step_time_s.mean),
    TTFT,
    TPOT,
    E2E,
    Figure(
        name="tokens_per_step",
        heading="tok/\nstep",
        get=lambda m: m.tokens_per_step,
        higher_is_better=True,
    ),
    Figure(
        name="processed_per_decoded", heading="proc./\ndec.", get=lambda m: m.processed_per_decoded
    ),
)


def _latency(name: str, percentile: str) -> Figure:
    """A percentile of a latency that tables of errors show and main tables do not."""

    def get(metrics: PointMetrics) -> float | None:
        value: float | None = getattr(getattr(metrics, f"{name}_s"), percentile)
        return value

    return Figure(name=f"{name}_{percentile}_s", heading=f"{name.upper()}\n{percentile}", get=get)


E2E_P99 = _latency("e2e", "p99")
# All that a prediction is held against.
JUDGED = (
    *FIGURES,
    *(_latency(name, "p90") for name in ("ttft", "tpot", "e2e")),
    *(_latency(name, "p99") for name in ("ttft", "tpot")),
    E2E_P99,
)


def interval_of(pair: Comparison, figure: Figure) -> Interval | None:
    """Where the prediction says that the figure lies; None if it does not say."""
    return (
        None if pair.predicted is None else intervals_in(pair.predicted.settings).get(figure.name)
    )


def coverage(pairs: Iterable[Comparison], figures: Iterable[Figure]) -> tuple[int, int]:
    """Over all runs of all points and the figures: how many lie in the prediction's interval, and
    how many there are.
    """
    figures = tuple(figures)
    inside = count = 0
    for pair in pairs:
        for figure in figures:
            interval = interval_of(pair, figure)
            if interval is None or pair.measured is None:
                continue
            values = values_of(pair.measured, figure)
            count += len(values)
            inside += sum(interval.holds(value) for value in values)
    return inside, count


def spread_of(result: PointResult, figure: Figure) -> Spread:
    """How a figure spreads over the runs of a point for which it is defined."""
    return Spread.of(values_of(result, figure))


def values_of(result: PointResult, figure: Figure) -> tuple[float, ...]:
    """The figure of every run of a point for which it is defined, in order."""
    values = (figure.get(metrics) for metrics in result.all_runs)
    return tuple(value for value in values if value is not None)


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """Over `count` points: mean of the absolute errors in percent, and the largest of them."""

    count: int
    mape: float | None
    worst: float | None


def pair_results(
    results: Iterable[PointResult], *, any_seed: bool = False
) -> tuple[Comparison, ...]:
    """Every measurement with its predictions (one line for each), then predictions left alone.

    Of the same point, source and hardware the last result counts. Published results are left out.
    `any_seed`: a prediction belongs to the measurements of all seeds of its point.
    """

    def same_work(point: PointConfig) -> PointConfig:
        return without_seed(point) if any_seed else point

    latest = {result.key: result for result in results}
    measured = [r for r in latest.values() if r.source == "measured"]
    predicted = [r for r in latest.values() if r.source == "predicted"]
    pairs: list[Comparison] = []
    used: set[tuple[str, str, str]] = set()
    for result in measured:
        work = same_work(result.point)
        same = [p for p in predicted if same_work(p.point) == work]
        alike = match_key(work)
        partners = same or [p for p in predicted if match_key(same_work(p.point)) == alike]
        used.update(partner.key for partner in partners)
        if not partners:
            pairs.append(Comparison(point=result.point, measured=result, predicted=None))
        pairs += [
            Comparison(point=result.point, measured=result, predicted=partner)
            for partner in partners
        ]
    alone = [p for p in predicted if p.key not in used]
    pairs += [Comparison(point=p.point, measured=None, predicted=p) for p in alone]
    return tuple(pairs)


def error_percent(pair: Comparison, figure: Figure) -> float | None:
    """100 * (predicted - measured) / measured; None unless both are known and measured is not 0."""
    if pair.measured is None or pair.predicted is None:
        return None
    measured = figure.get(pair.measured.metrics)
    predicted = figure.get(pair.predicted.metrics)
    if measured is None or predicted is None:
        return None
    error = ratio(predicted - measured, measured)
    return None if error is None else 100 * error


def error_summary(pairs: Iterable[Comparison], figure: Figure) -> ErrorSummary:
    """Mean and worst absolute error of a figure over the pairs for which it is defined."""
    return summary_of(error_percent(pair, figure) for pair in pairs)


def summary_of(signed: Iterable[float | None]) -> ErrorSummary:
    """Mean and worst absolute value of the errors that are defined, in percent."""
    errors = [abs(error) for error in signed if error is not None]
    return ErrorSummary(
        count=len(errors),
        mape=statistics.fmean(errors) if errors else None,
        worst=max(errors, default=None),
    )


def by_policy(pairs: Iterable[Comparison]) -> dict[str, tuple[Comparison, ...]]:
    """The pairs of each policy, in order of first appearance."""
    groups: dict[str, list[Comparison]] = {}
    for pair in pairs:
        groups.setdefault(pair.point.decode.policy, []).append(pair)
    return {policy: tuple(own) for policy, own in groups.items()}


def noise_percent(pair: Comparison, figure: Figure) -> float | None:
    """How far chance may have moved the measured figure: half of the 95 % t-interval of its mean
    over the runs, in percent of the mean; None for fewer than two runs.
    """
    return None if pair.measured is None else spread_of(pair.measured, figure).half_width_percent


def speedups(results: Iterable[PointResult]) -> dict[tuple[str, str, str], float | None]:
    """Output throughput over the baseline's, by result key; None where there is no baseline.

    The baseline is that of the same source, hardware and settings, but for those that only concern
    the other policies (alpha, retain, select, importance, ...). Of several, each baseline has
    itself, and another policy the most alike: of the same alpha, then of the most equal settings,
    then the nearest in `results`, where those of one folder stand together.
    """
    return {
        result.key: _quotient(result.metrics, None if baseline is None else baseline.metrics)
        for result, baseline in _with_baselines(results)
    }


def speedup_noises(results: Iterable[PointResult]) -> dict[tuple[str, str, str], float | None]:
    """How far chance may have moved each speed-up: half of its 95 % interval in percent, by the
    runs of both policies; None unless both ran at least twice, and for the baseline itself.
    """
    noises: dict[tuple[str, str, str], float | None] = {}
    for result, baseline in _with_baselines(results):
        noise = None
        if baseline is not None and baseline.key != result.key:
            ours, theirs = values_of(result, THROUGHPUT), values_of(baseline, THROUGHPUT)
            noise = ratio_half_width(ours, theirs)
        noises[result.key] = None if noise is None else 100.0 * noise
    return noises


def hardware_differences(pairs: Iterable[Comparison]) -> tuple[str, ...]:
    """Of predictions for another device than the one that measured: both named, each once.

    Predictions that do not say what device they are for (other programs' files) are passed over.
    """
    lines: dict[str, None] = {}
    for pair in pairs:
        if pair.measured is None or pair.predicted is None:
            continue
        measured, predicted = pair.measured.settings, pair.predicted.settings
        for name in DEVICE_FACTS:
            had, wanted = measured.get(name, ""), predicted.get(f"{FOR}{name}", "")
            if had and wanted and had != wanted:
                line = f"measured with {name} {had}, predicted for {name} {wanted}"
                lines[f"hardware differs: {line}"] = None
                break
    return tuple(lines)


def _with_baselines(
    results: Iterable[PointResult],
) -> list[tuple[PointResult, PointResult | None]]:
    latest = list({result.key: result for result in results}.values())
    baselines: dict[tuple[PointConfig, str, str], list[tuple[int, PointResult]]] = {}
    for place, result in enumerate(latest):
        if result.point.decode.policy == "baseline":
            baselines.setdefault(_baseline_key(result), []).append((place, result))
    return [
        (result, _most_alike(place, result, baselines.get(_baseline_key(result), [])))
        for place, result in enumerate(latest)
    ]


def _most_alike(
    place: int, result: PointResult, baselines: Sequence[tuple[int, PointResult]]
) -> PointResult | None:
    """The baseline of a result; itself, if it is one, since nothing is more alike."""

    def likeness(candidate: tuple[int, PointResult]) -> tuple[bool, int, int]:
        there, baseline = candidate
        ours, theirs = result.point, baseline.point
        same = sum(
            getattr(ours.decode, field.name) == getattr(theirs.decode, field.name)
            for field in fields(DecodeConfig)
        )
        same += ours.importance == theirs.importance
        return (ours.decode.alpha == theirs.decode.alpha, same, -abs(place - there))

    if result.point.decode.policy == "baseline":
        return result
    return max(baselines, key=likeness, default=(0, None))[1]


def _quotient(metrics: PointMetrics, baseline: PointMetrics | None) -> float | None:
    ours = metrics.output_throughput
    theirs = None if baseline is None else baseline.output_throughput
    return None if ours is None or theirs is None else ratio(ours, theirs)


def match_key(point: PointConfig) -> PointConfig:
    """The point without how its weights and pages were had (device, number format, memory, path of
    the data): what two results must share to be of the same work.
    """
    return replace(
        point,
        engine=EngineConfig(model=point.engine.model),
        scheduler=replace(point.scheduler, num_pages=None),
        workload=replace(point.workload, dataset_path="", download=False),
    )


def without_seed(point: PointConfig) -> PointConfig:
    """The point with seed 0: what the results of all its seeds share."""
    return replace(point, seed=0)


def _baseline_key(result: PointResult) -> tuple[PointConfig, str, str]:
    decode = result.point.decode
    common = DecodeConfig(
        policy="baseline",
        block_length=decode.block_length,
        threshold=decode.threshold,
        unmasking_strategy=decode.unmasking_strategy,
        steps=decode.steps,
    )
    point = replace(result.point, decode=common, importance=ImportanceConfig())
    return (point, result.source, result.hardware)
