"""The figures of one run among several of a point, as a flat row with units in the names."""

from focus_bench.report.metrics import PointMetrics


def run_row(metrics: PointMetrics) -> dict[str, str | int | float | None]:
    """What runs.csv and results.json keep of a run: throughputs, latencies, work, output digest."""
    row: dict[str, str | int | float | None] = {
        "output_throughput": metrics.output_throughput,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "duration_s": metrics.duration_s,
        "total_output_tokens": metrics.total_output_tokens,
        "completed": metrics.num_completed,
        "failed": metrics.num_failed,
        "tokens_per_step": metrics.tokens_per_step,
        "processed_per_decoded": metrics.processed_per_decoded,
        "preemptions": metrics.preemptions,
        "energy_per_output_token_j": metrics.energy_per_output_token_j,
    }
    for name, sample in (
        ("ttft", metrics.ttft_s),
        ("tpot", metrics.tpot_s),
        ("e2e", metrics.e2e_s),
        ("step_time", metrics.step_time_s),
    ):
        for statistic in ("mean", "p50", "p90", "p99"):
            value = getattr(sample, statistic)
            row[f"{name}_{statistic}_ms"] = None if value is None else 1e3 * value
        row[f"{name}_count"] = sample.count
    return row | {"output_digest": metrics.output_digest or None}
