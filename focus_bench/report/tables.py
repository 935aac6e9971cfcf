"""Tables of results for the terminal: pure renderables that fit the console's width.

Knows no file and no run; a figure that is undefined is shown as "-".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.core.config import PointConfig
from focus_bench.report import formats
from focus_bench.report.captions import Captions, captions, data_line
from focus_bench.report.compare import (
    FIGURES,
    THROUGHPUT,
    Comparison,
    Figure,
    by_policy,
    error_percent,
    hardware_differences,
    noise_percent,
    pair_results,
    speedup_noises,
    speedups,
)
from focus_bench.report.error_columns import SEEDS_LINE, ErrorRow, error_columns
from focus_bench.report.estimates import PointEstimate, estimate_columns
from focus_bench.report.layout import Column, FittedTable, column
from focus_bench.report.metrics import PointMetrics
from focus_bench.report.results import PointResult
from focus_bench.report.seeds import by_point, has_several_seeds

_NOISE = "+-\n%"


@dataclass(frozen=True, kw_only=True)
class _Setting:
    name: str
    heading: str
    get: Callable[[PointConfig], object]


# Those that name a row always; the others only where they vary, else they stand in the title.
_AXES = (
    _Setting(name="policy", heading="policy", get=lambda p: p.decode.policy),
    _Setting(name="batch", heading="batch", get=lambda p: p.scheduler.batch_size),
    _Setting(name="B", heading="B", get=lambda p: p.decode.block_length),
)
_SETTINGS = (
    _Setting(
        name="backend",
        heading="backend",
        get=lambda p: p.backend.kind if p.backend.is_outside else "",
    ),
    _Setting(name="model", heading="model", get=lambda p: p.engine.model),
    _Setting(name="dataset", heading="dataset", get=lambda p: p.workload.dataset),
    _Setting(name="requests", heading="requests", get=lambda p: p.workload.num_prompts),
    _Setting(name="max new tokens", heading="max\nnew", get=lambda p: p.workload.max_new_tokens),
    _Setting(name="alpha", heading="alpha", get=lambda p: f"{p.decode.alpha:g}"),
    _Setting(name="threshold", heading="thr.", get=lambda p: f"{p.decode.threshold:g}"),
    _Setting(
        name="unmasking strategy", heading="unmasking", get=lambda p: p.decode.unmasking_strategy
    ),
    _Setting(name="retain", heading="retain", get=lambda p: _fixed(p, str(p.decode.retain))),
    _Setting(name="select", heading="select", get=lambda p: _fixed(p, p.decode.select)),
    # Synthetic acceptance and importance are notes, whose numbers tell the rows apart.
    _Setting(name="replayed trace", heading="replayed trace", get=lambda p: p.acceptance.path),
    _Setting(name="scheduler", heading="scheduler", get=lambda p: p.scheduler.kind),
    _Setting(name="page size", heading="page\nsize", get=lambda p: p.scheduler.page_size),
    _Setting(name="pages", heading="pages", get=lambda p: p.scheduler.num_pages or ""),
    _Setting(
        name="steps per round",
        heading="round",
        get=lambda p: p.scheduler.steps_per_round if p.scheduler.steps_per_round > 1 else "",
    ),
    _Setting(name="requests/s", heading="req/s\nasked", get=lambda p: p.workload.request_rate),
    _Setting(
        name="max concurrency", heading="conc.", get=lambda p: p.workload.max_concurrency or ""
    ),
    _Setting(name="device", heading="device", get=lambda p: p.engine.device),
    _Setting(name="dtype", heading="dtype", get=lambda p: p.engine.dtype),
    _Setting(name="seed", heading="seed", get=lambda p: p.seed),
)


def results_table(results: Sequence[PointResult]) -> RenderableType:
    """The main table: one row a point with what was measured and what was predicted.

    Above it stand the settings that all rows share, the data, and everything that was not measured
    (synthetic acceptance, dummy weights, synthetic data, extrapolation, ...).
    """
    pairs = pair_results(results)
    if not pairs:
        return Text("no results")
    notes = captions(pairs)
    faster, noises = speedups(results), speedup_noises(results)

    def speedup(result: PointResult | None) -> str:
        return formats.UNDEFINED if result is None else formats.factor(faster[result.key])

    def speedup_noise(result: PointResult | None) -> str:
        return formats.fixed(None if result is None else noises[result.key], 1)

    measured = any(pair.measured for pair in pairs)
    predicted = any(pair.predicted for pair in pairs)
    columns = name_columns(pairs, notes.marks)
    if measured:
        columns.append(column("meas.\ntok/s", pairs, lambda p: _throughput(p.measured)))
        columns.append(_noise_column(pairs, THROUGHPUT))
    if predicted:
        columns.append(column("pred.\ntok/s", pairs, lambda p: _throughput(p.predicted)))
    if measured and predicted:
        error = column(
            "err.\n%", pairs, lambda p: formats.signed_percent(error_percent(p, THROUGHPUT))
        )
        columns.append(error)
    # A speed-up needs something to be faster than.
    if any(value is not None for value in faster.values()):
        if measured:
            columns.append(column("x base\nmeas.", pairs, lambda p: speedup(p.measured)))
            columns.append(column(_NOISE, pairs, lambda p: speedup_noise(p.measured)))
        if predicted:
            columns.append(column("x base\npred.", pairs, lambda p: speedup(p.predicted)))
    columns += [
        _figure("proc./\ndec.", pairs, lambda m: formats.fixed(m.processed_per_decoded)),
        _figure("tok/\nstep", pairs, lambda m: formats.fixed(m.tokens_per_step)),
        _figure("TTFT\np50", pairs, lambda m: formats.percentile(m.ttft_s, "p50")),
        _figure("TPOT\np50", pairs, lambda m: formats.percentile(m.tpot_s, "p50")),
        _figure("E2E\np50", pairs, lambda m: formats.percentile(m.e2e_s, "p50")),
    ]
    if any(r.metrics.goodput is not None for pair in pairs for r in pair.results):
        columns.append(_figure("good\nreq/s", pairs, lambda m: formats.number(m.request_goodput)))
    if any(r.metrics.energy_per_output_token_j for pair in pairs for r in pair.results):
        columns.append(
            _figure("J/\ntok", pairs, lambda m: formats.number(m.energy_per_output_token_j))
        )
    columns += _failed_columns(pairs)
    return Group(*_head(pairs, notes), FittedTable(columns=tuple(columns)))


def comparison_table(
    results: Sequence[PointResult], *, head: bool = True, any_seed: bool = False
) -> RenderableType:
    """Errors of the prediction in percent: each point and figure, then the means by policy.

    `head` False leaves out what the main table of the same results already says above itself.
    `any_seed`: predictions belong to the measurements of all seeds of their point.
    """
    pairs = tuple(p for p in pair_results(results, any_seed=any_seed) if p.measured and p.predicted)
    if not pairs:
        return Text("no point was both measured and predicted")
    notes = captions(pairs)
    errors = name_columns(pairs, notes.marks)
    repeated = _num_runs(pairs) != "1"
    for figure in FIGURES:
        errors.append(
            column(
                figure.heading,
                pairs,
                lambda p, f=figure: formats.signed_percent(error_percent(p, f)),
            )
        )
        if repeated:
            errors.append(_noise_column(pairs, figure))
    errors += _failed_columns(pairs)
    groups = {**by_policy(pairs), "all": pairs}
    means = error_columns([ErrorRow(pairs=own, figure=THROUGHPUT) for own in groups.values()])
    return Group(
        *(_head(pairs, notes) if head else ()),
        Text("error of the prediction in percent: 100 * (predicted - measured) / measured"),
        FittedTable(columns=tuple(errors)),
        Text("output throughput: absolute errors in percent"),
        *((Text(SEEDS_LINE),) if has_several_seeds(by_point(pairs)) else ()),
        FittedTable(columns=(column("policy", list(groups), str, is_name=True), *means)),
    )


def failures_table(results: Sequence[PointResult], *, most: int = 10) -> RenderableType | None:
    """Failed requests by reason, the `most` frequent reasons of each point; None if none failed."""
    rows: list[tuple[PointResult, str, str]] = []
    for result in results:
        reasons = list(result.metrics.failed_by_reason.items())
        rows += [(result, str(count), reason) for reason, count in reasons[:most]]
        if len(reasons) > most:
            rest = sum(count for _, count in reasons[most:])
            rows.append((result, str(rest), f"{len(reasons) - most} other reasons"))
    if not rows:
        return None
    lines = [Text("failed requests", style="bold red")]
    for result, count, reason in rows:
        point = result.point
        where = (
            f"{result.source} {point.decode.policy}, batch {point.scheduler.batch_size}, "
            f"B {point.decode.block_length}"
        )
        lines.append(Text(f"{where}: {count} x {reason}"))
    return Group(*lines)


def plan_table(
    points: Sequence[PointConfig],
    finished: Sequence[bool] | None = None,
    estimates: Sequence[PointEstimate] | None = None,
) -> RenderableType:
    """The points of a dry run, which of them are finished already (`finished[i]`), and what each
    will probably take (`estimates[i]`).
    """
    pairs = [Comparison(point=point, measured=None, predicted=None) for point in points]
    columns = name_columns(pairs, ("",) * len(pairs))
    if estimates is not None:
        columns += estimate_columns(estimates)
    columns.append(column("point", points, lambda point: point.hash()))
    if finished is not None:
        columns.append(column("state", finished, lambda done: "finished" if done else "to do"))
    count = f"{len(points)} point" + ("" if len(points) == 1 else "s")
    return Group(Text(count), *_title(pairs), Text(), FittedTable(columns=tuple(columns)))


def facts_table(facts: Sequence[tuple[str, str]]) -> RenderableType:
    """Names and what is known about them, one a line (doctor)."""
    width = max((len(name) for name, _ in facts), default=0)
    return Group(*(Text(f"{name:<{width}}  {value}") for name, value in facts))


def name_columns(pairs: Sequence[Comparison], marks: Sequence[str]) -> list[Column]:
    """The columns that tell the rows apart: policy, batch, B, every setting that varies, and the
    numbers of the notes that hold for some rows only.
    """
    varying = [s for s in _SETTINGS if len({s.get(pair.point) for pair in pairs}) > 1]
    columns = [
        column(s.heading, pairs, lambda p, s=s: str(s.get(p.point)), is_name=True)
        for s in (*_AXES, *varying)
    ]
    if len({_hardware(pair) for pair in pairs}) > 1:
        columns.append(column("hardware", pairs, _hardware, is_name=True))
    if any(marks):
        columns.append(Column(heading="#", cells=tuple(marks), is_name=True))
    return columns


def _head(pairs: Sequence[Comparison], notes: Captions) -> list[Text]:
    warnings = (*hardware_differences(pairs), *notes.lines)
    return [
        *_title(pairs),
        *(Text(line, style="yellow") for line in warnings),
        *(
            Text(line)
            for line in (*_noise_lines(pairs), *_goodput_lines(pairs), *_few_lines(pairs))
        ),
        Text(),
    ]


def _title(pairs: Sequence[Comparison]) -> list[Text]:
    shared = []
    for setting in _SETTINGS:
        values = {setting.get(pair.point) for pair in pairs}
        value = values.pop() if len(values) == 1 else ""
        if value not in ("", formats.UNDEFINED):
            shared.append(f"{setting.name} {value}")
    lines = [Text(", ".join(shared))]
    results = [result for pair in pairs for result in pair.results]
    lines += [Text(line) for line in dict.fromkeys(data_line(r.provenance) for r in results)]
    hardware = {(result.source, result.hardware) for result in results if result.hardware}
    lines += [Text(f"{source} on {name}") for source, name in sorted(hardware)]
    return lines


def _hardware(pair: Comparison) -> str:
    # Predictions for several profiles are rows of their own; one device measures them all.
    named = pair.predicted or pair.measured
    return named.hardware if named is not None else ""


def _noise_lines(pairs: Sequence[Comparison]) -> list[str]:
    """What the columns of noise say, where anything was measured."""
    runs = _num_runs(pairs)
    if runs == "":
        return []
    if runs == "1":
        return ["+-: one run each, so run-to-run noise is not known (--num-runs)"]
    return [f"+-: half of the 95 % t-interval of the mean over {runs} runs, in percent"]


def _num_runs(pairs: Sequence[Comparison]) -> str:
    """How often the points were measured, as "3" or "1 to 3"; "" where none was."""
    counts = {len(pair.measured.all_runs) for pair in pairs if pair.measured}
    ends = dict.fromkeys((min(counts), max(counts))) if counts else ()
    return " to ".join(str(count) for count in ends)


def _noise_column(pairs: Sequence[Comparison], figure: Figure) -> Column:
    return column(_NOISE, pairs, lambda pair: formats.fixed(noise_percent(pair, figure), 1))


def _failed_columns(pairs: Sequence[Comparison]) -> list[Column]:
    """Failed requests of each side of which any failed."""

    def failed(result: PointResult | None) -> str:
        return formats.UNDEFINED if result is None else str(result.metrics.num_failed)

    failing = {r.source for pair in pairs for r in pair.results if r.metrics.num_failed}
    sides = {
        "measured": column("failed\nmeas.", pairs, lambda pair: failed(pair.measured)),
        "predicted": column("failed\npred.", pairs, lambda pair: failed(pair.predicted)),
    }
    return [side for source, side in sides.items() if source in failing]


def _goodput_lines(pairs: Sequence[Comparison]) -> list[str]:
    limits = (r.metrics.goodput for pair in pairs for r in pair.results)
    return [
        f"good: requests with {limit.label}" for limit in dict.fromkeys(limits) if limit is not None
    ]


def _few_lines(pairs: Sequence[Comparison]) -> list[str]:
    shown = (pair.results[0].metrics for pair in pairs if pair.results)
    is_few = any("p50" in s.few for m in shown for s in (m.ttft_s, m.tpot_s, m.e2e_s))
    return [formats.FEW_SAMPLES] if is_few else []


def _throughput(result: PointResult | None) -> str:
    return formats.number(None if result is None else result.metrics.output_throughput)


def _figure(
    heading: str, pairs: Sequence[Comparison], show: Callable[[PointMetrics], str]
) -> Column:
    # The measured figure where there is one: these columns do not show both.
    return column(heading, pairs, lambda pair: show(pair.results[0].metrics))


def _fixed(point: PointConfig, value: str) -> str:
    return value if point.decode.policy == "focus-fixed" else formats.UNDEFINED
