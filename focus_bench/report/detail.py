"""Everything known about one point, as a pure renderable."""

from dataclasses import fields

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.report import formats
from focus_bench.report.captions import data_line
from focus_bench.report.compare import THROUGHPUT, spread_of
from focus_bench.report.environment import Clock
from focus_bench.report.layout import Column, FittedTable, column
from focus_bench.report.metrics import PointMetrics, StepShares
from focus_bench.report.results import PointResult


def point_detail(result: PointResult) -> RenderableType:
    """Settings, notes, throughput, latencies with percentiles and counts, steps and memory.

    A ~ in front of a percentile marks fewer samples than it needs.
    """
    point, metrics = result.point, result.metrics
    title = (
        f"{result.source} {point.decode.policy}, batch {point.scheduler.batch_size}, "
        f"B {point.decode.block_length}, point {result.point_hash}"
    )
    facts = [*_throughput_facts(result), *_step_facts(metrics)]
    if result.source == "measured":
        facts += _environment_facts(metrics)
    width = max(len(name) for name, _ in facts)
    settings = [f"{name} {value}" for name, value in result.settings.items()]
    return Group(
        Text(title, style="bold"),
        Text(data_line(result.provenance)),
        *(Text(note, style="yellow") for note in result.all_notes),
        *([Text(", ".join(settings))] if settings else []),
        Text(),
        *(Text(f"{name:<{width}}  {value}") for name, value in facts),
        Text(),
        FittedTable(columns=_latency_columns(metrics)),
        Text(formats.FEW_SAMPLES),
    )


def _throughput_facts(result: PointResult) -> list[tuple[str, str]]:
    metrics = result.metrics
    facts = [
        ("output throughput", f"{formats.number(metrics.output_throughput)} tok/s"),
        ("steady decoding", f"{formats.number(metrics.steady_decode_throughput)} tok/s"),
        ("request throughput", f"{formats.number(metrics.request_throughput)} req/s"),
    ]
    spread = spread_of(result, THROUGHPUT)
    if spread.count > 1:
        interval = f"{formats.number(spread.ci95_low)} to {formats.number(spread.ci95_high)}"
        of_runs = f"mean {formats.number(spread.mean)}, std {formats.number(spread.std)}"
        facts.append((f"over {spread.count} runs", f"{of_runs}, 95 % interval {interval} tok/s"))
    if metrics.request_goodput is not None:
        limits = "" if metrics.goodput is None else f" ({metrics.goodput.label})"
        facts.append(("goodput", f"{formats.number(metrics.request_goodput)} req/s{limits}"))
    if metrics.reached_request_rate is not None:
        rates = (metrics.requested_request_rate, metrics.reached_request_rate)
        asked, reached = (formats.number(rate) for rate in rates)
        facts.append(("request rate", f"{reached} req/s reached, {asked} req/s asked"))
    ends = [f"{count} {name}" for name, count in metrics.finished_by_reason.items()]
    facts += [
        ("duration", formats.seconds(metrics.duration_s)),
        ("tokens", f"{metrics.total_input_tokens} in, {metrics.total_output_tokens} out"),
        ("finished", f"{metrics.num_completed} of {metrics.num_requests} ({', '.join(ends)})"),
    ]
    facts += [("failed", f"{n} x {reason}") for reason, n in metrics.failed_by_reason.items()]
    return facts


def _step_facts(metrics: PointMetrics) -> list[tuple[str, str]]:
    shares = [
        f"{field.name} {formats.share(getattr(metrics.step_shares, field.name))}"
        for field in fields(StepShares)
    ]
    peak = metrics.pages_used_peak
    facts = [
        ("tokens per step", formats.fixed(metrics.tokens_per_step)),
        (
            "processed per decoded",
            f"{formats.fixed(metrics.processed_per_decoded)} "
            f"({formats.fixed(metrics.processed_shallow_per_decoded)} in layers 0-1)",
        ),
        ("retained", formats.share(metrics.retained_fraction)),
        ("rows per step", formats.fixed(metrics.rows_per_step)),
        ("step split", ", ".join(shares[:4])),
        ("", ", ".join(shares[4:])),
        ("scheduling", f"{formats.seconds(metrics.schedule_time_s)} per step"),
        ("pages", f"{_count(peak)} of {_count(metrics.num_pages)} at most"),
        ("preemptions", _count(metrics.preemptions)),
        ("peak memory", formats.byte_size(metrics.peak_memory_bytes)),
    ]
    if metrics.model_flops_utilization is not None:
        facts.append(("MFU", formats.share(metrics.model_flops_utilization)))
    if metrics.model_bandwidth_utilization is not None:
        facts.append(("MBU", formats.share(metrics.model_bandwidth_utilization)))
    if metrics.output_digest:
        facts.append(("output digest", metrics.output_digest))
    return facts


def _environment_facts(metrics: PointMetrics) -> list[tuple[str, str]]:
    gpu = metrics.environment
    if gpu is None:
        return [("GPU energy", formats.UNDEFINED), ("GPU clocks", formats.UNDEFINED)]
    source = {"counter": " (the driver's counter)", "power": " (from power samples)"}
    hint = f"; a hint only: {gpu.num_samples} samples" if gpu.is_few else ""
    reasons = {name: formats.share(share) for name, share in (gpu.clock_reasons or {}).items()}
    seen = ", ".join(f"{name} {share}" for name, share in reasons.items()) or "none"
    hottest = gpu.max_temperature_c
    return [
        (
            "GPU energy",
            f"{formats.number(metrics.energy_per_output_token_j)} J per output token, "
            f"{formats.number(gpu.energy_j)} J in all{source.get(gpu.energy_source, '')}{hint}",
        ),
        (
            "GPU power",
            f"{formats.number(gpu.mean_power_w)} W on average, "
            f"{formats.UNDEFINED if hottest is None else hottest} C at most",
        ),
        ("GPU clocks", f"SM {_clock(gpu.sm_clock)}, memory {_clock(gpu.memory_clock)}"),
        ("clock reasons", formats.UNDEFINED if gpu.clock_reasons is None else seen),
    ]


def _clock(clock: Clock | None) -> str:
    if clock is None:
        return formats.UNDEFINED
    return f"{clock.mean_mhz:.0f} MHz ({clock.min_mhz} to {clock.max_mhz})"


def _count(value: int | None) -> str:
    return formats.UNDEFINED if value is None else str(value)


def _latency_columns(metrics: PointMetrics) -> tuple[Column, ...]:
    rows = [
        ("TTFT", metrics.ttft_s),
        ("TPOT", metrics.tpot_s),
        ("E2E", metrics.e2e_s),
        ("queue", metrics.queue_s),
        ("block", metrics.block_latency_s),
        ("group gap", metrics.group_gap_s),
        ("step", metrics.step_time_s),
    ]
    samples = [sample for _, sample in rows]
    steps = metrics.steps_per_block
    return (
        Column(heading="", cells=(*(n for n, _ in rows), "steps/block"), is_name=True),
        Column(
            heading="mean",
            cells=(*(formats.seconds(s.mean) for s in samples), formats.fixed(steps.mean)),
        ),
        *(
            Column(
                heading=name,
                cells=(
                    *(formats.percentile(sample, name) for sample in samples),
                    formats.percentile(steps, name, formats.fixed),
                ),
            )
            for name in ("p50", "p90", "p99")
        ),
        column("n", [*samples, steps], lambda s: str(s.count)),
    )
