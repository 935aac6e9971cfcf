"""Results and records as tidy rows, as CSV text and as JSON with vLLM's key names.

Numbers are unformatted, undefined ones empty (CSV) or null (JSON); units are in the names.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from focus_bench.core.config import PointConfig
from focus_bench.core.intervals import DOMAIN, intervals_in
from focus_bench.core.records import (
    SCHEMA_VERSION,
    EnvironmentSample,
    RequestRecord,
    RunRecord,
    StepRecord,
    StepTiming,
)
from focus_bench.report.codec import to_plain
from focus_bench.report.distribution import Distribution
from focus_bench.report.environment import environment_row
from focus_bench.report.failures import FAILED, FINISHED, PointFailure
from focus_bench.report.metrics import StepShares, e2e_s, queue_s, tpot_s, ttft_s
from focus_bench.report.results import FOR, PointResult
from focus_bench.report.runs import run_row
from focus_bench.report.spread import Spread

Cell = str | int | float | None

_KEY_COLUMNS = ("point_hash", "source", "hardware")
_TIMING_COLUMNS = tuple(field.name for field in fields(StepTiming))
_STEP_COLUMNS = tuple(field.name for field in fields(StepRecord) if field.name != "timing")
_SAMPLE_COLUMNS = tuple(f.name for f in fields(EnvironmentSample) if f.name != "clock_reasons")
# Of this project's engine; an outside one has its own, which stand under `notes` where known.
_OWN_SETTINGS = (
    *("acceptance", "importance", "scheduler", "page_size_tokens", "steps_per_round"),
    *("load_format", "device", "dtype", "threads"),
)
_REQUEST_COLUMNS = tuple(field.name for field in fields(RequestRecord))


def summary_row(result: PointResult) -> dict[str, Cell]:
    """The row of summary.csv: who, under which settings, with what figures, resting on what."""
    metrics = result.metrics
    row = _settings(result.key, result.point, _threads(result))
    row |= {
        "state": FINISHED,
        "failure": None,
        "output_throughput": metrics.output_throughput,
        "steady_decode_throughput": metrics.steady_decode_throughput,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "goodput_limits": None if metrics.goodput is None else metrics.goodput.label,
        "tokens_per_step": metrics.tokens_per_step,
        "processed_per_decoded": metrics.processed_per_decoded,
        "processed_shallow_per_decoded": metrics.processed_shallow_per_decoded,
        "retained_fraction": metrics.retained_fraction,
        "duration_s": metrics.duration_s,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "num_requests": metrics.num_requests,
        "completed": metrics.num_completed,
        "failed": metrics.num_failed,
        "finished_by_reason": _counts(metrics.finished_by_reason.items()),
        "failed_by_reason": _counts(metrics.failed_by_reason.items()),
        "requested_request_rate": metrics.requested_request_rate,
        "reached_request_rate": metrics.reached_request_rate,
    }
    row |= _distribution("steps_per_block", "", metrics.steps_per_block, 1.0)
    row |= _distribution("ttft", "_ms", metrics.ttft_s, 1e3)
    row |= _distribution("tpot", "_ms", metrics.tpot_s, 1e3)
    row |= _distribution("e2e", "_ms", metrics.e2e_s, 1e3)
    row |= _distribution("queue", "_ms", metrics.queue_s, 1e3)
    row |= _distribution("block_latency", "_ms", metrics.block_latency_s, 1e3)
    row |= _distribution("group_gap", "_ms", metrics.group_gap_s, 1e3)
    row |= _distribution("step_time", "_ms", metrics.step_time_s, 1e3)
    row["schedule_time_mean_ms"] = _times(metrics.schedule_time_s, 1e3)
    for part in (field.name for field in fields(StepShares)):
        row[f"step_share_{part}"] = getattr(metrics.step_shares, part)
    row |= {
        "rows_per_step": metrics.rows_per_step,
        "pages_used_peak": metrics.pages_used_peak,
        "num_pages": metrics.num_pages,
        "preemptions": metrics.preemptions,
        "peak_memory_bytes": metrics.peak_memory_bytes,
        "model_flops_utilization": metrics.model_flops_utilization,
        "model_bandwidth_utilization": metrics.model_bandwidth_utilization,
        **_spread(result),
        "domain": result.settings.get(DOMAIN),
        **_intervals(result.settings),
        **environment_row(metrics.environment, metrics.energy_per_output_token_j),
        "output_digest": metrics.output_digest or None,
        "data_origin": result.provenance.origin,
        "data_sha256": result.provenance.sha256 or None,
        "labels": "; ".join(result.labels),
        "notes": "; ".join(result.all_notes[len(result.labels) :]),
    }
    return row


def _threads(result: PointResult) -> int | None:
    """Of the run, or of the CPU that a prediction is for; None where neither is known."""
    settings = result.settings
    threads = settings.get("threads") or settings.get(f"{FOR}threads")
    return int(threads) if threads else None


def _settings(
    key: tuple[str, str, str], point: PointConfig, threads: int | None
) -> dict[str, Cell]:
    """The cells that name a point and say how it was configured."""
    decode, scheduler, workload = point.decode, point.scheduler, point.workload
    row: dict[str, Cell] = {
        **dict(zip(_KEY_COLUMNS, key, strict=True)),
        "policy": decode.policy,
        "model": point.engine.model,
        "dataset": workload.dataset,
        "batch_size": scheduler.batch_size,
        "block_length": decode.block_length,
        "alpha": decode.alpha,
        "threshold": decode.threshold,
        "unmasking_strategy": decode.unmasking_strategy,
        "acceptance": point.acceptance.label,
        "importance": point.importance.label,
        "retain": decode.retain if decode.policy == "focus-fixed" else None,
        "select": decode.select if decode.policy == "focus-fixed" else None,
        "scheduler": scheduler.kind,
        "page_size_tokens": scheduler.page_size,
        "steps_per_round": scheduler.steps_per_round,
        "num_prompts": workload.num_prompts,
        "max_new_tokens": workload.max_new_tokens,
        "max_concurrency": workload.max_concurrency,
        "backend": point.backend.kind,
        "load_format": point.engine.load_format,
        "device": point.engine.device,
        "dtype": point.engine.dtype,
        "threads": threads,
        "seed": point.seed,
    }
    if point.backend.is_outside and key[1] == "measured":
        row |= dict.fromkeys(_OWN_SETTINGS)
    return row


def _failed_row(failure: PointFailure) -> dict[str, Cell]:
    """The row of a point without a result: its settings, its state and the reason."""
    settings = _settings(failure.key, failure.point, failure.point.engine.threads)
    return settings | {"state": FAILED, "failure": failure.reason}


def summary_csv(results: Sequence[PointResult], failures: Sequence[PointFailure] = ()) -> str:
    """summary.csv: a header, one row a result, one a failed point; empty where there are none."""
    rows = [summary_row(result) for result in results]
    rows += [_failed_row(failure) for failure in failures]
    if not rows:
        return ""
    return csv_text(tuple(rows[0]), ([row.get(name) for name in rows[0]] for row in rows))


def runs_csv(results: Sequence[PointResult]) -> str:
    """runs.csv: a header and one row a run, `run` counting from 1; empty for no results."""
    rows: list[dict[str, Cell]] = [
        {**dict(zip(_KEY_COLUMNS, result.key, strict=True)), "run": number, **run_row(metrics)}
        for result in results
        for number, metrics in enumerate(result.all_runs, start=1)
    ]
    return csv_text(tuple(rows[0]), (row.values() for row in rows)) if rows else ""


def requests_csv(result: PointResult, run: RunRecord) -> str:
    """requests.csv of one point: the request records and their latencies."""
    key = result.key
    rows = (
        (
            *key,
            *(getattr(request, name) for name in _REQUEST_COLUMNS),
            ttft_s(request),
            tpot_s(request),
            e2e_s(request),
            queue_s(request),
        )
        for request in run.requests
    )
    latencies = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
    return csv_text((*_KEY_COLUMNS, *_REQUEST_COLUMNS, *latencies), rows)


def steps_csv(result: PointResult, run: RunRecord) -> str:
    """steps.csv of one point: the step records with their timings."""
    key = result.key
    rows = (
        (
            *key,
            *(getattr(step, name) for name in _STEP_COLUMNS),
            *(getattr(step.timing, name) for name in _TIMING_COLUMNS),
        )
        for step in run.steps
    )
    return csv_text((*_KEY_COLUMNS, *_STEP_COLUMNS, *_TIMING_COLUMNS), rows)


def environment_csv(result: PointResult, run: RunRecord) -> str:
    """environment.csv of one point: the samples of its GPU; reasons that were seen, or "none"."""
    rows = (
        (
            *result.key,
            *(getattr(sample, name) for name in _SAMPLE_COLUMNS),
            None if sample.clock_reasons is None else "; ".join(sample.clock_reasons) or "none",
        )
        for sample in run.environment
    )
    return csv_text((*_KEY_COLUMNS, *_SAMPLE_COLUMNS, "clock_reasons"), rows)


def results_json(results: Sequence[PointResult], failures: Sequence[PointFailure] = ()) -> str:
    """results.json: one object a result, with vLLM's key names where one exists, and under
    `failed_points` one a point that failed.
    """
    points = [
        vllm_row(result) | {"runs": [run_row(metrics) for metrics in result.all_runs]}
        for result in results
    ]
    failed = [_failed_row(failure) for failure in failures]
    tables = {"points": to_plain(points), "failed_points": to_plain(failed)}
    return json_text({"schema_version": SCHEMA_VERSION, **tables})


def vllm_row(result: PointResult) -> dict[str, Cell]:
    """A result under the names of vLLM's serving benchmark, after the settings that name it.

    Its inter-token latency (itl) is here the time between visible groups of tokens.
    """
    metrics = result.metrics
    summary = summary_row(result)
    row = _settings(result.key, result.point, _threads(result))
    row |= {
        "duration": metrics.duration_s,
        "completed": metrics.num_completed,
        "failed": metrics.num_failed,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "request_rate": metrics.requested_request_rate,
        "reached_request_rate": metrics.reached_request_rate,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "output_throughput": metrics.output_throughput,
        "steady_decode_throughput": metrics.steady_decode_throughput,
        "tokens_per_step": metrics.tokens_per_step,
        "processed_per_decoded": metrics.processed_per_decoded,
        "retained_fraction": metrics.retained_fraction,
    }
    row |= _spread(result)
    row |= environment_row(metrics.environment, metrics.energy_per_output_token_j)
    for name, sample in (
        ("ttft", metrics.ttft_s),
        ("tpot", metrics.tpot_s),
        ("itl", metrics.group_gap_s),
        ("e2el", metrics.e2e_s),
    ):
        row[f"mean_{name}_ms"] = _times(sample.mean, 1e3)
        row[f"median_{name}_ms"] = _times(sample.p50, 1e3)
        row[f"std_{name}_ms"] = _times(sample.std, 1e3)
        row[f"p90_{name}_ms"] = _times(sample.p90, 1e3)
        row[f"p99_{name}_ms"] = _times(sample.p99, 1e3)
        row[f"{name}_samples"] = sample.count
        row[f"{name}_few_samples"] = " ".join(sample.few) or None
    return row | {"labels": summary["labels"], "notes": summary["notes"]}


def csv_text(header: Sequence[str], rows: Iterable[Iterable[Cell]]) -> str:
    """CSV with a header, Unix line ends and no banner."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()


def json_text(value: object) -> str:
    """JSON of plain values, indented, one line end at the end."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _spread(result: PointResult) -> dict[str, Cell]:
    """How the output throughput spreads over the runs of a point; empty cells for one run."""
    spread = Spread.of(result.repeats)
    return {
        "num_runs": len(result.all_runs),
        "output_throughput_mean": spread.mean,
        "output_throughput_std": spread.std,
        "output_throughput_ci95_low": spread.ci95_low,
        "output_throughput_ci95_high": spread.ci95_high,
        "output_throughput_cv_percent": spread.cv_percent,
    }


def _intervals(settings: Mapping[str, str]) -> dict[str, Cell]:
    """Where a prediction says that figures lie; empty cells for what it says nothing of."""
    said = intervals_in(settings)
    row: dict[str, Cell] = {}
    latencies = [f"{name}_p{p}" for name in ("ttft", "tpot", "e2e") for p in (50, 90, 99)]
    for name, figure, unit, factor in (
        ("output_throughput", "output_throughput", "", 1.0),
        *((name, f"{name}_s", "_ms", 1e3) for name in ("step_time_mean", *latencies)),
    ):
        interval = said.get(figure)
        low, high = (None, None) if interval is None else (interval.low, interval.high)
        row[f"{name}_interval_low{unit}"] = _times(low, factor)
        row[f"{name}_interval_high{unit}"] = _times(high, factor)
    return row


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _counts(items: Iterable[tuple[str, int]]) -> str | None:
    return "; ".join(f"{name}={count}" for name, count in items) or None


def _distribution(name: str, unit: str, sample: Distribution, factor: float) -> dict[str, Cell]:
    return {
        f"{name}_mean{unit}": _times(sample.mean, factor),
        f"{name}_p50{unit}": _times(sample.p50, factor),
        f"{name}_p90{unit}": _times(sample.p90, factor),
        f"{name}_p99{unit}": _times(sample.p99, factor),
        f"{name}_count": sample.count,
        f"{name}_few_samples": " ".join(sample.few) or None,
    }
