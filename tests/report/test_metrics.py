"""Exact figures of hand-made runs (the numbers in the comments are computed by hand)."""

import math

import numpy as np
import pytest
import scipy.stats
from report_samples import make_request, make_run, make_step

from focus_bench.core.errors import UsageError
from focus_bench.core.records import StepRecord
from focus_bench.report.distribution import Distribution, ratio
from focus_bench.report.goodput import GoodputThresholds
from focus_bench.report.metrics import PointMetrics, Work, compute_metrics
from focus_bench.report.spread import Spread


def figures(metrics: PointMetrics) -> list[float | None]:
    samples = (
        metrics.ttft_s,
        metrics.tpot_s,
        metrics.e2e_s,
        metrics.queue_s,
        metrics.block_latency_s,
        metrics.group_gap_s,
        metrics.steps_per_block,
        metrics.step_time_s,
    )
    return [value for s in samples for value in (s.mean, s.std, s.p50, s.p90, s.p99)]


def test_throughput_counts_output_tokens_only():
    # 1,000 prompt tokens, 10 tokens out, 4 s.
    metrics = compute_metrics(make_run([make_request(0)]))
    assert metrics.output_throughput == 2.5
    assert metrics.total_output_tokens == 10
    assert metrics.total_input_tokens == 1000
    assert metrics.request_throughput == 0.25


def test_thirty_two_tokens_of_one_step_count_thirty_two():
    request = make_request(
        0, output_tokens=32, decoded_tokens=32, decode_steps=1, processed_deep_tokens=64
    )
    metrics = compute_metrics(make_run([request]))
    assert metrics.output_throughput == 8.0
    assert metrics.tokens_per_step == 32.0
    assert metrics.processed_per_decoded == 2.0


def test_latencies_of_one_request():
    metrics = compute_metrics(make_run([make_request(0)]))
    assert metrics.ttft_s.p50 == 1.0  # 2.0 - 1.0
    assert metrics.queue_s.p50 == 0.5
    assert metrics.e2e_s.mean == 3.0
    assert metrics.tpot_s.mean == pytest.approx(2.0 / 9)  # (3 - 1) / (10 - 1)
    assert metrics.ttft_s.count == 1
    assert metrics.group_gap_s.mean == 1.0
    assert metrics.group_gap_s.count == 2
    assert metrics.block_latency_s.p99 == 2.5
    assert metrics.steps_per_block.p50 == 5.0
    assert metrics.steps_per_block_counts == (0, 0, 0, 0, 0, 1)


def test_ratios_are_over_all_requests_and_leave_out_what_the_record_leaves_out():
    requests = [
        make_request(0, decode_steps=5, decoded_tokens=16),
        make_request(1, decode_steps=3, decoded_tokens=8, finish_reason="error", error="nan"),
    ]
    metrics = compute_metrics(make_run(requests))
    assert metrics.tokens_per_step == 3.0  # 24 / 8
    assert metrics.processed_per_decoded == 128 / 24
    assert metrics.processed_shallow_per_decoded == 8.0  # 192 / 24
    assert metrics.retained_fraction == 0.25


def test_no_requests_leave_every_figure_undefined():
    empty = make_run(
        duration_s=0.0,
        step_fed_tokens=0,
        step_kept_tokens=0,
        steps_per_block=np.zeros(0, dtype=np.int64),
        group_gaps_s=np.zeros(0),
        block_latencies_s=np.zeros(0),
    )
    metrics = compute_metrics(
        empty,
        goodput=GoodputThresholds(ttft_ms=1.0),
        work=Work(flops=0.0, moved_bytes=0.0, peak_flops_per_s=1e12, peak_bytes_per_s=1e9),
    )
    assert figures(metrics) == [None] * 40
    assert metrics.output_throughput is None
    assert metrics.request_throughput is None
    assert metrics.request_goodput is None
    assert metrics.tokens_per_step is None
    assert metrics.processed_per_decoded is None
    assert metrics.retained_fraction is None
    assert metrics.schedule_time_s is None
    assert metrics.step_shares.suffix is None
    assert metrics.pages_used_peak is None
    assert metrics.model_flops_utilization is None
    assert metrics.num_requests == metrics.num_completed == metrics.num_failed == 0


def test_zero_output_tokens_are_a_throughput_of_zero_and_no_latency():
    request = make_request(0, output_tokens=0, first_token_s=None, decoded_tokens=0, decode_steps=0)
    metrics = compute_metrics(make_run([request]))
    assert metrics.output_throughput == 0.0
    assert metrics.ttft_s.count == metrics.tpot_s.count == 0
    assert metrics.ttft_s.p50 is None
    assert metrics.tokens_per_step is None
    assert metrics.processed_per_decoded is None
    assert metrics.e2e_s.count == 1


def test_one_output_token_has_no_time_per_output_token():
    requests = [make_request(0, output_tokens=1), make_request(1, output_tokens=3)]
    metrics = compute_metrics(make_run(requests))
    assert metrics.tpot_s.count == 1
    assert metrics.tpot_s.mean == 1.0  # (3 - 1) / (3 - 1)


def test_failed_requests_are_counted_by_reason_and_nowhere_else():
    good = [make_request(i) for i in range(5)]
    bad = [
        make_request(
            5 + i,
            finish_reason="error",
            error="needs 90 pages, the pool has 64",
            output_tokens=7,
            admitted_s=None,
            first_token_s=None,
        )
        for i in range(4)
    ]
    gone = make_request(9, finish_reason="aborted", output_tokens=3)
    metrics = compute_metrics(make_run([*good, *bad, gone]))
    assert metrics.num_completed == 5
    assert metrics.num_failed == len(metrics.failed_request_ids) == 5
    assert metrics.failed_by_reason == {
        "error: needs 90 pages, the pool has 64": 4,
        "aborted": 1,
    }
    assert metrics.finished_by_reason == {"length": 5}
    assert metrics.output_throughput == 12.5  # 5 * 10 / 4
    assert metrics.total_input_tokens == 5000
    assert metrics.e2e_s.count == metrics.ttft_s.count == 5


def test_only_failed_requests_are_a_throughput_of_zero():
    metrics = compute_metrics(make_run([make_request(0, finish_reason="error", error="x")]))
    assert metrics.output_throughput == 0.0
    assert metrics.num_completed == 0
    assert metrics.e2e_s.p50 is None


def test_steps_are_split_into_shares_of_the_summed_time():
    steps = [make_step(0, start_s=0.0, duration_s=0.2), make_step(1, start_s=1.0, duration_s=0.6)]
    metrics = compute_metrics(make_run([make_request(0)], steps))
    assert metrics.step_time_s.mean == pytest.approx(0.4)
    assert metrics.step_time_s.count == 2
    shares = metrics.step_shares
    expected = {"prefill": 0.1, "prefix": 0.2, "eviction": 0.05, "suffix": 0.4, "head": 0.15}
    for name, share in expected.items():
        assert getattr(shares, name) == pytest.approx(share)
    assert shares.swap == 0.0
    assert shares.host == pytest.approx(0.1)
    assert metrics.schedule_time_s == pytest.approx(0.001)
    assert metrics.pages_used_peak == 4
    assert metrics.rows_per_step == 2.0


def test_rate_that_the_driver_cannot_keep_is_reported_as_reached():
    # 1,000 requests/s are asked for: 0, 1, ..., 9 ms. The first step begins at 0 and takes 0.5 s,
    # so nine requests get in when the second begins: 9 gaps in 0.5 s.
    requests = [make_request(i, arrival_s=i * 1e-3) for i in range(10)]
    steps = [make_step(0, start_s=0.0), make_step(1, start_s=0.5)]
    metrics = compute_metrics(make_run(requests, steps, requested_rate=1000.0))
    assert metrics.requested_request_rate == 1000.0
    assert metrics.reached_request_rate == pytest.approx(18.0)


def test_rate_that_the_driver_keeps_is_the_rate_of_the_arrivals():
    requests = [make_request(i, arrival_s=float(i)) for i in range(5)]
    steps = [make_step(i, start_s=float(i)) for i in range(5)]
    metrics = compute_metrics(make_run(requests, steps, requested_rate=1.0))
    assert metrics.reached_request_rate == 1.0


@pytest.mark.parametrize(("count", "rate"), [(5, math.inf), (1, 10.0), (0, 10.0)])
def test_no_rate_is_reached_where_none_was_asked_or_nothing_can_be_told(count, rate):
    requests = [make_request(i) for i in range(count)]
    assert compute_metrics(make_run(requests, requested_rate=rate)).reached_request_rate is None


def test_arrivals_at_one_instant_are_no_division_by_zero():
    requests = [make_request(i) for i in range(3)]
    assert compute_metrics(make_run(requests, requested_rate=5.0)).reached_request_rate is None


def test_goodput_counts_finished_requests_that_meet_every_limit():
    requests = [
        make_request(0),  # ttft 1 s, tpot 0.222 s, e2e 3 s
        make_request(1, first_token_s=2.5),  # ttft 1.5 s
        make_request(2, output_tokens=1),  # tpot undefined
        make_request(3, finish_reason="error", error="x"),
        make_request(4, first_token_s=None, output_tokens=0),
    ]
    run = make_run(requests)
    limits = GoodputThresholds.parse(["ttft:1000", "tpot:223"])
    assert compute_metrics(run, goodput=limits).request_goodput == 0.5  # 2 requests in 4 s
    limits = GoodputThresholds.parse(["e2el:2999"])
    assert compute_metrics(run, goodput=limits).request_goodput == 0.0
    assert compute_metrics(run).request_goodput is None


@pytest.mark.parametrize(
    "items", [["ttft"], ["ttft:"], ["ttft:x"], ["itl:3"], ["ttft:1", "ttft:2"], ["tpot:0"]]
)
def test_bad_goodput_is_refused_by_name(items):
    with pytest.raises(UsageError, match="--goodput"):
        GoodputThresholds.parse(items)


def test_no_goodput_is_none():
    assert GoodputThresholds.parse([]) is None


def test_utilisation_is_of_the_whole_duration():
    work = Work(flops=2e12, moved_bytes=3e9, peak_flops_per_s=1e12, peak_bytes_per_s=1e9)
    metrics = compute_metrics(make_run([make_request(0)]), work=work)
    assert metrics.model_flops_utilization == 0.5
    assert metrics.model_bandwidth_utilization == 0.75


def test_digest_names_the_tokens_of_measured_runs():
    tokens = {0: np.array([1, 2], dtype=np.int32), 1: np.array([3], dtype=np.int32)}
    other_split = {0: np.array([1], dtype=np.int32), 1: np.array([2, 3], dtype=np.int32)}

    def digest(ids, source="measured"):
        return compute_metrics(
            make_run([make_request(0)], output_ids=ids, source=source)
        ).output_digest

    assert digest(tokens) == digest(dict(reversed(tokens.items())))
    assert len(digest(tokens)) == 16
    assert digest(tokens) != digest(other_split)
    assert digest(tokens, source="predicted") == ""
    assert digest({}) == ""


def test_percentiles_interpolate_linearly():
    sample = Distribution.of(range(11))
    assert (sample.p50, sample.p90, sample.p99) == (5.0, 9.0, pytest.approx(9.9))
    assert sample.mean == 5.0
    assert sample.std == pytest.approx(math.sqrt(10.0))


@pytest.mark.parametrize(
    ("count", "few"),
    [
        (0, ()),
        (1, ("p50", "p90", "p99")),
        (2, ("p90", "p99")),
        (9, ("p90", "p99")),
        (10, ("p99",)),
        (99, ("p99",)),
        (100, ()),
    ],
)
def test_a_percentile_needs_a_sample_beyond_it(count, few):
    assert Distribution.of(np.arange(count)).few == few


def test_distribution_refuses_unknown_values():
    with pytest.raises(ValueError, match="not all known"):
        Distribution.of([1.0, math.nan])


def test_ratio_of_nothing_is_none():
    assert ratio(3, 0) is None
    assert ratio(3, 2) == 1.5


def test_spread_of_repeats():
    spread = Spread.of((10.0, 12.0, 14.0))
    assert (spread.mean, spread.std) == (12.0, 2.0)
    # t(0.975, 2) = 0.95 / sqrt(2 * 0.975 * 0.025) = 4.30265; that * 2 / sqrt(3) = 4.96828
    assert spread.ci95_high == pytest.approx(16.96828, abs=1e-5)
    assert spread.ci95_low == pytest.approx(7.03172, abs=1e-5)
    assert spread.half_width_percent == pytest.approx(41.4023, abs=1e-4)
    assert spread.cv_percent == pytest.approx(100 / 6)
    assert Spread.of((5.0,)).half_width_percent is None
    assert Spread.of((1.0, -1.0)).cv_percent is None
    assert Spread.of((5.0,)) == Spread(count=1, mean=5.0, std=None, ci95_low=None, ci95_high=None)
    assert Spread.of(()).mean is None


def test_spread_agrees_with_scipy():
    rng = np.random.default_rng(3)
    for count in (2, 5, 31, 200):
        values = rng.normal(size=count)
        low, high = scipy.stats.t.interval(
            0.95, count - 1, values.mean(), values.std(ddof=1) / math.sqrt(count)
        )
        spread = Spread.of(values.tolist())
        assert (spread.ci95_low, spread.ci95_high) == pytest.approx((low, high), rel=1e-9)


def full_batch(count: int) -> list[StepRecord]:
    """Steps of two rows and four tokens, 0.5 s apart."""
    return [make_step(i, start_s=1.0 + 0.5 * i) for i in range(count)]


def test_steady_decoding_leaves_out_ramp_up_prefill_and_tail() -> None:
    ramp_up = [make_step(0, start_s=0.0, num_rows=1, decoded_tokens=100)]
    steps = full_batch(30)
    steps[4] = make_step(4, start_s=3.0, prefill_tokens=64, decoded_tokens=100)
    tail = [make_step(30, start_s=16.0, num_rows=1, decoded_tokens=100)]
    run = make_run(steps=[*ramp_up, *steps, *tail], duration_s=20.0)
    # 29 full steps without prefill; the first two are left out, the others last until the next.
    assert compute_metrics(run).steady_decode_throughput == pytest.approx(27 * 4 / (27 * 0.5))


def test_steady_decoding_counts_the_time_between_steps() -> None:
    steps = [make_step(i, start_s=2.0 * i, duration_s=0.5) for i in range(20)]
    metrics = compute_metrics(make_run(steps=steps, duration_s=40.0))
    assert metrics.steady_decode_throughput == pytest.approx(4 / 2.0)


def test_steady_decoding_needs_twenty_steps() -> None:
    run = make_run(steps=full_batch(19), duration_s=10.5)
    assert compute_metrics(run).steady_decode_throughput is None
    assert compute_metrics(make_run(steps=[])).steady_decode_throughput is None
