"""Every figure of a point, computed from the records of one run. Renders and writes nothing.

Undefined figures are None: no denominator, no sample, or nothing that was asked for. Failed
requests (finish reason error or aborted) count in no throughput and no latency; the ratios of
decoding (tokens per step, processed per decoded, retained fraction) are over all work done.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from focus_bench.core.records import RequestRecord, RunRecord, StepRecord
from focus_bench.report.distribution import Distribution, ratio
from focus_bench.report.environment import EnvironmentMetrics, summarise
from focus_bench.report.goodput import GoodputThresholds

FAILURES = ("error", "aborted")
MIN_STEADY_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Work:
    """Arithmetic and traffic of a whole run, against what the hardware could do at best."""

    flops: float
    moved_bytes: float
    peak_flops_per_s: float
    peak_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class StepShares:
    """Shares of the summed step time, 0 to 1; None where no time passed. See StepTiming."""

    prefill: float | None
    prefix: float | None
    eviction: float | None
    suffix: float | None
    head: float | None
    swap: float | None
    host: float | None


@dataclass(frozen=True, kw_only=True)
class PointMetrics:
    """Figures of one run. Throughputs are per second, times in seconds, memory in bytes.

    `output_throughput`: output tokens of finished requests per second of the run.
    `steady_decode_throughput`: positions decoded per second while the batch is as full as it ever
    gets: over the steps without prefill that have that many rows, the first tenth left out, host
    time between steps included; None with fewer than 20 such steps.
    `tokens_per_step`: decoded positions per decode step of a sequence (commit passes left out).
    `processed_per_decoded`: positions fed through layers >= 2, commit passes included, per decoded
    position (paper, Table 5); `processed_shallow_per_decoded`: the same for layers 0-1.
    `tokens_per_step_counts[i]`: decode steps of a sequence that decoded i positions;
    `steps_per_block_counts[i]`: blocks that took i decode steps.
    `retained_fraction`: kept / fed positions of decode steps. `tpot_s` is over requests with at
    least two output tokens. `schedule_time_s`: mean host time of scheduling a step.
    `reached_request_rate`: arrivals per second as the driver let them in (None unless a finite rate
    was requested). `request_goodput`: requests per second that met the limits in `goodput`.
    `output_digest` names the output tokens of all requests (measured runs only, else empty).
    `energy_per_output_token_j`: energy of the GPU's board over the output tokens that throughput
    counts; `environment`: the GPU during the run; both None where it was not sampled.
    """

    num_requests: int
    num_completed: int
    num_failed: int
    finished_by_reason: Mapping[str, int] = field(default_factory=dict)
    failed_by_reason: Mapping[str, int] = field(default_factory=dict)
    failed_request_ids: tuple[int, ...] = ()
    duration_s: float
    total_input_tokens: int
    total_output_tokens: int
    output_throughput: float | None
    steady_decode_throughput: float | None
    request_throughput: float | None
    request_goodput: float | None
    goodput: GoodputThresholds | None
    requested_request_rate: float
    reached_request_rate: float | None
    tokens_per_step: float | None
    processed_per_decoded: float | None
    processed_shallow_per_decoded: float | None
    retained_fraction: float | None
    steps_per_block: Distribution
    ttft_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    queue_s: Distribution
    block_latency_s: Distribution
    group_gap_s: Distribution
    step_time_s: Distribution
    schedule_time_s: float | None
    step_shares: StepShares
    rows_per_step: float | None
    pages_used_peak: int | None
    num_pages: int | None
    preemptions: int | None
    peak_memory_bytes: int | None
    model_flops_utilization: float | None
    model_bandwidth_utilization: float | None
    output_digest: str
    tokens_per_step_counts: tuple[int, ...] = ()
    steps_per_block_counts: tuple[int, ...] = ()
    energy_per_output_token_j: float | None = None
    environment: EnvironmentMetrics | None = None


def compute_metrics(
    run: RunRecord, *, goodput: GoodputThresholds | None = None, work: Work | None = None
) -> PointMetrics:
    """All figures of a run; goodput and utilisation only where their inputs are given."""
    failed = [r for r in run.requests if r.finish_reason in FAILURES]
    finished = [r for r in run.requests if r.finish_reason not in FAILURES]
    duration = run.duration_s
    decoded = _total(r.decoded_tokens for r in run.requests)
    output_tokens = sum(r.output_tokens for r in finished)
    steps = run.steps
    environment = summarise(run.environment)
    energy_j = None if environment is None else environment.energy_j
    return PointMetrics(
        num_requests=len(run.requests),
        num_completed=len(finished),
        num_failed=len(failed),
        finished_by_reason=_counted(r.finish_reason for r in finished),
        failed_by_reason=_counted(_failure(r) for r in failed),
        failed_request_ids=tuple(r.request_id for r in failed),
        duration_s=duration,
        total_input_tokens=sum(r.prompt_tokens for r in finished),
        total_output_tokens=output_tokens,
        output_throughput=ratio(output_tokens, duration) if run.requests else None,
        steady_decode_throughput=_steady_decode_throughput(run),
        request_throughput=ratio(len(finished), duration) if run.requests else None,
        request_goodput=_goodput(finished, goodput, duration) if run.requests else None,
        goodput=goodput,
        requested_request_rate=run.requested_rate,
        reached_request_rate=_reached_rate(run),
        tokens_per_step=_known_ratio(
            _decoded_in_steps(run, decoded), _total(r.decode_steps for r in run.requests)
        ),
        processed_per_decoded=_known_ratio(
            _total(r.processed_deep_tokens for r in run.requests), decoded
        ),
        processed_shallow_per_decoded=_known_ratio(
            _total(r.processed_shallow_tokens for r in run.requests), decoded
        ),
        retained_fraction=ratio(run.step_kept_tokens, run.step_fed_tokens),
        steps_per_block=Distribution.of(run.steps_per_block),
        ttft_s=_known(ttft_s(r) for r in finished),
        tpot_s=_known(tpot_s(r) for r in finished),
        e2e_s=Distribution.of([e2e_s(r) for r in finished]),
        queue_s=_known(queue_s(r) for r in finished),
        block_latency_s=Distribution.of(run.block_latencies_s),
        group_gap_s=Distribution.of(run.group_gaps_s),
        step_time_s=Distribution.of([s.timing.duration_s for s in steps]),
        schedule_time_s=ratio(sum(s.schedule_s for s in steps), len(steps)),
        step_shares=_step_shares(steps),
        rows_per_step=ratio(sum(s.num_rows for s in steps), len(steps)),
        pages_used_peak=max((s.pages_used for s in steps), default=None),
        num_pages=run.num_pages,
        preemptions=_total(r.preemptions for r in run.requests),
        peak_memory_bytes=run.peak_memory_bytes,
        model_flops_utilization=(
            None if work is None else ratio(work.flops, work.peak_flops_per_s * duration)
        ),
        model_bandwidth_utilization=(
            None if work is None else ratio(work.moved_bytes, work.peak_bytes_per_s * duration)
        ),
        output_digest=_digest(run),
        tokens_per_step_counts=tuple(run.tokens_per_step_counts.tolist()),
        steps_per_block_counts=tuple(np.bincount(run.steps_per_block).tolist()),
        energy_per_output_token_j=None if energy_j is None else ratio(energy_j, output_tokens),
        environment=environment,
    )


def _steady_decode_throughput(run: RunRecord) -> float | None:
    rows = max((step.num_rows for step in run.steps), default=0)
    starts = [*(step.start_s for step in run.steps), run.duration_s]
    full = [
        (step.decoded_tokens, starts[i + 1] - step.start_s)
        for i, step in enumerate(run.steps)
        if step.num_rows == rows > 0 and not step.prefill_tokens
    ]
    if len(full) < MIN_STEADY_STEPS:
        return None
    steady = full[len(full) // 10 :]
    return ratio(sum(tokens for tokens, _ in steady), sum(seconds for _, seconds in steady))


def ttft_s(request: RequestRecord) -> float | None:
    """Seconds from arrival to the first visible output token."""
    first = request.first_token_s
    return None if first is None else first - request.arrival_s


def e2e_s(request: RequestRecord) -> float:
    """Seconds from arrival to the end."""
    return request.finished_s - request.arrival_s


def queue_s(request: RequestRecord) -> float | None:
    """Seconds from arrival to the first admission."""
    admitted = request.admitted_s
    return None if admitted is None else admitted - request.arrival_s


def tpot_s(request: RequestRecord) -> float | None:
    """(e2e - ttft) / (n - 1) in seconds; None for fewer than two output tokens."""
    first = request.first_token_s
    if first is None or request.output_tokens < 2:
        return None
    return (request.finished_s - first) / (request.output_tokens - 1)


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum; None where a count is not known (outside engines)."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _known_ratio(value: int | None, divisor: int | None) -> float | None:
    return None if value is None or divisor is None else ratio(value, divisor)


def _decoded_in_steps(run: RunRecord, decoded: int | None) -> int | None:
    """Positions decoded but for those that commit passes gave (where logits are shifted)."""
    counts = run.tokens_per_step_counts
    return decoded if decoded is None or not counts.any() else int(counts @ np.arange(len(counts)))


def _known(values: Iterable[float | None]) -> Distribution:
    return Distribution.of([value for value in values if value is not None])


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _failure(request: RequestRecord) -> str:
    return f"{request.finish_reason}: {request.error}" if request.error else request.finish_reason


def _goodput(
    finished: list[RequestRecord], goodput: GoodputThresholds | None, duration: float
) -> float | None:
    if goodput is None:
        return None
    good = 0
    for request in finished:
        ttft = ttft_s(request)
        good += ttft is not None and goodput.is_met(
            ttft_s=ttft, tpot_s=tpot_s(request), e2e_s=e2e_s(request)
        )
    return ratio(good, duration)


def _reached_rate(run: RunRecord) -> float | None:
    # A request gets in when the first step after its arrival begins: a driver that is busy longer
    # than the gap between arrivals lets them in late and in lumps. Of outside engines, whose steps
    # are not known, the moment of sending counts.
    if np.isinf(run.requested_rate) or len(run.requests) < 2:
        return None
    arrivals = np.array([r.arrival_s for r in run.requests])
    starts = np.sort(
        np.array(
            [s.start_s for s in run.steps]
            or [r.admitted_s for r in run.requests if r.admitted_s is not None]
        )
    )
    place = np.searchsorted(starts, arrivals)
    entered = np.append(starts, np.inf)[place]
    entered = np.where(np.isinf(entered), arrivals, entered)
    return ratio(len(arrivals) - 1, float(entered.max() - entered.min()))


def _step_shares(steps: tuple[StepRecord, ...]) -> StepShares:
    timings = [step.timing for step in steps]
    total = sum(t.duration_s for t in timings)
    return StepShares(
        prefill=ratio(sum(t.prefill_s for t in timings), total),
        prefix=ratio(sum(t.prefix_s for t in timings), total),
        eviction=ratio(sum(t.eviction_s for t in timings), total),
        suffix=ratio(sum(t.suffix_s for t in timings), total),
        head=ratio(sum(t.head_s for t in timings), total),
        swap=ratio(sum(t.swap_s for t in timings), total),
        host=ratio(sum(t.host_s for t in timings), total),
    )


def _digest(run: RunRecord) -> str:
    if run.source != "measured" or not run.output_ids:
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for request_id, tokens in sorted(run.output_ids.items()):
        digest.update(np.array([request_id, len(tokens)], dtype="<i8").tobytes())
        digest.update(np.asarray(tokens, dtype="<i4").tobytes())
    return digest.hexdigest()
