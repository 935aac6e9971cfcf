"""Arrivals, the wall-clock driver, the recorder's numbers, and replays through the whole loop."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from fakes import CheckedCache, FakeClock, FakeExecutor, make_request
from scheduling_cases import rules_of

from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    ImportanceConfig,
    PointConfig,
    SchedulerConfig,
)
from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import DUMMY_MODEL, PRESETS
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Provenance, RequestSpec, Workload
from focus_bench.decoding.rules import StepRules
from focus_bench.decoding.trace import DecodeTrace
from focus_bench.scheduling.arrivals import ArrivalQueue
from focus_bench.scheduling.loop import ServingLoop, run_wall_clock
from focus_bench.scheduling.recorder import Recorder
from focus_bench.scheduling.scheduler import Scheduler
from focus_bench.scheduling.setup import build_loop, pages_wanted

ONE_A_STEP = AcceptanceConfig(kind="synthetic", mean=1.0)
ALL_AT_ONCE = AcceptanceConfig(kind="synthetic", mean=64.0)
PROVENANCE = Provenance(dataset="test", origin="synthetic", tokenizer="formula")


def workload_of(*requests: RequestSpec, max_concurrency: int | None = None) -> Workload:
    return Workload(requests=requests, provenance=PROVENANCE, max_concurrency=max_concurrency)


def serve(
    workload: Workload,
    *,
    policy: str = "baseline",
    acceptance: AcceptanceConfig = ONE_A_STEP,
    num_pages: int = 64,
    batch_size: int = 4,
) -> tuple[RunRecord, FakeExecutor, FakeClock]:
    decode = DecodeConfig(policy=policy, block_length=8)
    config = SchedulerConfig(batch_size=batch_size, page_size=8)
    clock = FakeClock()
    executor = FakeExecutor(
        rules=rules_of(decode, acceptance), clock=clock, cache=CheckedCache(num_pages, 8)
    )
    recorder = Recorder(workload=workload, source="measured")
    loop = ServingLoop(
        scheduler=Scheduler(config, decode, num_pages=num_pages),
        executor=executor,
        workload=workload,
        recorder=recorder,
    )
    duration_s = run_wall_clock(loop, clock=clock)
    assert loop.is_done
    return recorder.finish(duration_s, num_pages), executor, clock


# -- arrivals ------------------------------------------------------------------------------------


def test_an_open_queue_gives_what_is_due_in_order_of_arrival() -> None:
    queue = ArrivalQueue(
        workload_of(
            make_request(0, 1, 1, arrival_s=2.0),
            make_request(1, 1, 1, arrival_s=1.0),
            make_request(2, 1, 1, arrival_s=2.0),
            make_request(3, 1, 1, arrival_s=5.0),
        )
    )
    assert queue.due(0.5) == []
    assert queue.next_arrival_s() == 1.0
    assert [r.request_id for r in queue.due(2.0)] == [1, 0, 2]
    assert not queue.is_empty
    assert queue.next_arrival_s() == 5.0
    assert [r.request_id for r in queue.due(5.0)] == [3]
    assert queue.is_empty
    assert queue.next_arrival_s() is None


def test_a_closed_queue_lets_one_in_as_one_leaves() -> None:
    requests = [make_request(i, 1, 1) for i in range(4)]
    queue = ArrivalQueue(workload_of(*requests, max_concurrency=2))
    assert [r.request_id for r in queue.due(0.0)] == [0, 1]
    assert queue.due(0.0) == []
    assert queue.next_arrival_s() is None  # it waits for another to leave
    queue.on_finished(1)
    assert queue.next_arrival_s() == 0.0
    assert [r.request_id for r in queue.due(0.0)] == [2]
    queue.on_finished(2)
    assert [r.request_id for r in queue.due(0.0)] == [3]


def test_the_driver_sleeps_until_the_next_arrival_only_when_idle() -> None:
    workload = workload_of(
        make_request(0, 1, 3, arrival_s=1.0),
        make_request(1, 1, 3, arrival_s=1.005),
        make_request(2, 1, 3, arrival_s=9.0),
    )
    run, _, clock = serve(workload)
    assert clock.slept_until == [1.0, 9.0]
    # Request 1 comes while request 0's first step runs, and waits for its end.
    admitted = {r.request_id: r.admitted_s for r in run.requests}
    assert admitted[0] == 1.0
    assert admitted[1] == pytest.approx(1.011)
    assert admitted[2] == 9.0
    assert [r.arrival_s for r in run.requests] == [1.0, 1.005, 9.0]


def test_a_closed_loop_never_holds_more_than_its_concurrency() -> None:
    workload = workload_of(*(make_request(i, 5, 3 + i % 4) for i in range(12)), max_concurrency=3)
    run, _, _ = serve(workload, batch_size=8)
    assert max(step.num_rows for step in run.steps) == 3
    assert all(step.num_waiting == 0 for step in run.steps)
    # Each later request arrives when another leaves.
    left = sorted(r.finished_s for r in run.requests)
    arrived = sorted(r.arrival_s for r in run.requests)
    assert arrived == [0.0] * 3 + left[:9]


@pytest.mark.parametrize("max_concurrency", [None, 1, 2])
def test_impossible_requests_do_not_stall_a_closed_loop(max_concurrency: int | None) -> None:
    workload = workload_of(
        *(make_request(i, 999 if i != 3 else 5, 4) for i in range(6)),
        max_concurrency=max_concurrency,
    )
    run, _, _ = serve(workload)
    assert [r.finish_reason for r in run.requests] == ["error"] * 3 + ["length"] + ["error"] * 2
    assert all("whole pool" in r.error for r in run.requests if r.request_id != 3)


def test_a_workload_without_requests_takes_no_step() -> None:
    run, _, _ = serve(workload_of())
    assert (run.steps, run.requests, run.duration_s) == ((), (), 0.0)
    assert run.group_gaps_s.shape == (0,)


def test_fault_21_twice_the_sustainable_rate_ends() -> None:
    """Requests come twice as fast as they can be served: the queue grows, and then empties."""
    alone, _, _ = serve(workload_of(make_request(0, 5, 19)), batch_size=1)
    gap = alone.duration_s / 2
    workload = workload_of(*(make_request(i, 5, 19, arrival_s=i * gap) for i in range(40)))
    run, _, _ = serve(workload, batch_size=1)
    assert [r.finish_reason for r in run.requests] == ["length"] * 40
    waits = [r.admitted_s - r.arrival_s for r in run.requests]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(39 * gap)


# -- records -------------------------------------------------------------------------------------


def test_records_of_one_request_by_hand() -> None:
    """P = 11, B = 8: a prefill step, 5 of 8 positions, commit, then 8 more of which 3 count."""
    run, _, _ = serve(workload_of(make_request(0, 11, 8)), acceptance=ALL_AT_ONCE)
    (request,) = run.requests
    assert [s.prefill_tokens for s in run.steps] == [8, 0, 0, 0]
    assert [s.num_rows for s in run.steps] == [0, 1, 1, 1]
    assert [s.commit_rows for s in run.steps] == [0, 0, 1, 0]
    assert [s.fed_tokens for s in run.steps] == [0, 8, 8, 8]
    assert [s.kept_tokens for s in run.steps] == [0, 8, 8, 8]
    assert [s.masked_tokens for s in run.steps] == [0, 5, 0, 8]
    assert [s.decoded_tokens for s in run.steps] == [0, 5, 0, 8]
    assert [s.context_tokens for s in run.steps] == [0, 8, 8, 16]
    assert (request.decode_steps, request.commit_passes, request.blocks) == (2, 1, 1)
    assert request.processed_shallow_tokens == request.processed_deep_tokens == 24
    assert (request.decoded_tokens, request.output_tokens) == (13, 8)
    assert (run.step_fed_tokens, run.step_kept_tokens) == (16, 16)
    prefill_s, step_s = 0.010 + 8e-5, 0.011
    assert request.first_token_s == pytest.approx(prefill_s + step_s)
    assert request.finished_s == pytest.approx(prefill_s + 3 * step_s)
    assert run.group_gaps_s.tolist() == pytest.approx([2 * step_s])
    assert run.block_latencies_s.tolist() == pytest.approx([2 * step_s])
    assert run.steps_per_block.tolist() == [1]
    assert run.tokens_per_step_counts.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 1]  # 5, then 8
    assert run.duration_s == request.finished_s
    prompt = make_request(0, 11, 8)
    assert len(run.output_ids[0]) == 8
    assert prompt.num_prompt_tokens == request.prompt_tokens == 11


@pytest.mark.parametrize("policy", ["baseline", "delayed-cache-neighbor", "focus", "ideal"])
@pytest.mark.parametrize("num_pages", [14, 200])
def test_totals_of_steps_and_of_requests_agree(policy: str, num_pages: int) -> None:
    workload = workload_of(*(make_request(i, 1 + 3 * i, 30) for i in range(12)))
    run, executor, _ = serve(
        workload,
        policy=policy,
        num_pages=num_pages,
        acceptance=AcceptanceConfig(kind="synthetic", mean=2.0, scatter=1.0),
    )
    requests, steps = run.requests, run.steps
    assert sum(r.processed_shallow_tokens for r in requests) == sum(s.fed_tokens for s in steps)
    assert sum(r.processed_deep_tokens for r in requests) == sum(s.kept_tokens for s in steps)
    assert sum(r.decoded_tokens for r in requests) == sum(s.decoded_tokens for s in steps)
    counts = run.tokens_per_step_counts
    assert counts.sum() == sum(r.decode_steps for r in requests)
    assert counts @ range(len(counts)) == sum(r.decoded_tokens for r in requests)
    forwards = sum(r.decode_steps + r.commit_passes for r in requests)
    assert forwards == sum(s.num_rows for s in steps)
    assert sum(r.commit_passes for r in requests) == sum(s.commit_rows for s in steps)
    assert (
        sum(r.blocks for r in requests)
        == len(run.steps_per_block)
        == sum(r.commit_passes for r in requests)
    )
    preempted = sum(r.preemptions for r in requests)
    assert (preempted > 0) == (num_pages == 14)
    # Recomputed preemptions count as well, although nothing is copied.
    assert preempted == sum(s.preemptions for s in steps)
    assert all(r.output_tokens == 30 for r in requests)
    assert len(executor.log.lines) == len(steps)
    if policy == "baseline":
        assert sum(r.processed_deep_tokens for r in requests) == 8 * forwards
    evicting = sum(s.evicting_rows for s in steps)
    assert (evicting > 0) == (policy == "focus")
    for step in steps:
        assert step.kept_tokens <= step.fed_tokens
        assert step.decoded_tokens <= step.masked_tokens <= step.fed_tokens


def test_progress_is_reported_while_the_next_step_runs_and_at_the_end() -> None:
    workload = workload_of(make_request(0, 3, 9), make_request(1, 3, 5))
    decode = DecodeConfig(policy="baseline", block_length=8)
    recorder = Recorder(workload=workload, source="measured")
    clock = FakeClock()
    loop = ServingLoop(
        scheduler=Scheduler(SchedulerConfig(page_size=8), decode, num_pages=8),
        executor=FakeExecutor(rules=rules_of(decode, ONE_A_STEP), clock=clock),
        workload=workload,
        recorder=recorder,
    )
    seen: list[tuple[int, int]] = []
    run_wall_clock(
        loop, clock=clock, on_progress=lambda r: seen.append((r.num_finished, r.output_tokens))
    )
    assert seen == [(0, 0)] * 5 + [(1, 5)] * 5 + [(2, 14)]


# -- one point, and replays ----------------------------------------------------------------------


def point_of(policy: str, acceptance: AcceptanceConfig, **scheduler: object) -> PointConfig:
    return PointConfig(
        decode=DecodeConfig(policy=policy, block_length=8),
        acceptance=acceptance,
        importance=ImportanceConfig(kind="synthetic", tau=1.5, noise=0.3),
        scheduler=SchedulerConfig(batch_size=3, page_size=8, **scheduler),
        engine=EngineConfig(model=DUMMY_MODEL),
    )


def run_point(
    point: PointConfig, workload: Workload, num_pages: int, tokens: int | None = None
) -> tuple[RunRecord, DecodeTrace, FakeExecutor]:
    """Serve one point; `tokens`: every token that is decoded (None: the formula's)."""
    clock = FakeClock()
    executor = FakeExecutor(rules=StepRules.for_point(point), clock=clock)
    if tokens is not None:
        executor.tokens_of = lambda _, p: np.full(p.shape, tokens, dtype=np.int32)
    loop = build_loop(
        point,
        workload,
        executor,
        spec=PRESETS[DUMMY_MODEL],
        num_pages=num_pages,
        source="measured",
        decode_trace=True,
    )
    record = loop.recorder
    duration_s = run_wall_clock(loop, clock=clock)
    trace = record.finished_trace()
    assert trace is not None
    return record.finish(duration_s, num_pages), trace, executor


def outcome_of(run: RunRecord) -> list[tuple[object, ...]]:
    return [dataclasses.astuple(r) for r in run.requests]


@pytest.mark.parametrize("policy", ["baseline", "delayed-cache", "focus", "ideal"])
@pytest.mark.parametrize("acceptance", [ONE_A_STEP, AcceptanceConfig()], ids=lambda a: a.kind)
@pytest.mark.parametrize("include", [True, False])
def test_a_replayed_trace_gives_the_same_plans_and_ends(
    policy: str, acceptance: AcceptanceConfig, include: bool, tmp_path: Path
) -> None:
    """The replay's own tokens are all 0, as in a simulation: no repetition may come of that."""
    requests = [make_request(i, 2 + 5 * i, 120, reply_tokens=70 + i) for i in range(5)]
    workload = workload_of(*requests)
    point = point_of(policy, acceptance, include_stop_token=include)
    first, trace, executor = run_point(point, workload, num_pages=30)
    trace.save(tmp_path / "run.trace")
    replay = AcceptanceConfig(kind="replay", path=str(tmp_path / "run.trace"))
    again, second_trace, replayed = run_point(
        dataclasses.replace(point, acceptance=replay), workload, num_pages=30, tokens=0
    )
    assert replayed.log.lines == executor.log.lines
    assert outcome_of(again) == outcome_of(first)
    for f in dataclasses.fields(DecodeTrace):
        assert np.array_equal(getattr(second_trace, f.name), getattr(trace, f.name)), f.name


@pytest.mark.parametrize("include", [True, False])
def test_a_replay_ends_at_the_traced_stop_token(include: bool, tmp_path: Path) -> None:
    stop = PRESETS[DUMMY_MODEL].stop_token_ids[0]
    workload = workload_of(make_request(0, 3, 40), make_request(1, 3, 40))
    point = point_of("focus", AcceptanceConfig(), include_stop_token=include)

    def tokens_of(request: int, positions: np.ndarray) -> np.ndarray:
        # Request 0 stops at its ninth output token, request 1 never.
        return np.where((positions == 11) & (request == 0), stop, 100 + positions).astype(np.int32)

    def run(at: PointConfig, real: bool) -> tuple[RunRecord, DecodeTrace, list[str]]:
        clock = FakeClock()
        executor = FakeExecutor(rules=StepRules.for_point(at), clock=clock)
        executor.tokens_of = tokens_of if real else lambda _, p: np.zeros(p.shape, dtype=np.int32)
        loop = build_loop(
            at,
            workload,
            executor,
            spec=PRESETS[DUMMY_MODEL],
            num_pages=64,
            source="predicted",
            decode_trace=True,
        )
        duration_s = run_wall_clock(loop, clock=clock)
        trace = loop.recorder.finished_trace()
        assert trace is not None
        return loop.recorder.finish(duration_s, 64), trace, executor.log.lines

    first, trace, lines = run(point, real=True)
    assert first.requests[0].finish_reason == "stop"
    assert first.requests[0].output_tokens == (9 if include else 8)
    assert trace.ended_output_tokens.tolist() == [9, 40]
    trace.save(tmp_path / "t")
    replay = AcceptanceConfig(kind="replay", path=str(tmp_path / "t"))
    again, _, replayed_lines = run(dataclasses.replace(point, acceptance=replay), real=False)
    assert replayed_lines == lines
    assert outcome_of(again) == outcome_of(first)


def test_a_replay_of_another_workload_is_refused(tmp_path: Path) -> None:
    point = point_of("focus", ONE_A_STEP)
    _, trace, _ = run_point(point, workload_of(make_request(0, 3, 20)), num_pages=30)
    trace.save(tmp_path / "t")
    replay = AcceptanceConfig(kind="replay", path=str(tmp_path / "t"))
    other = dataclasses.replace(point, acceptance=replay)
    with pytest.raises(UsageError, match="request 0, forward"):
        run_point(other, workload_of(make_request(0, 6, 20)), num_pages=30)


def test_lengths_come_from_the_data_under_synthetic_acceptance() -> None:
    workload = workload_of(
        make_request(0, 3, 40, reply_tokens=12), make_request(1, 3, 40, reply_tokens=90)
    )
    synthetic, _, _ = run_point(point_of("focus", ONE_A_STEP), workload, num_pages=64)
    assert [r.output_tokens for r in synthetic.requests] == [12, 40]
    by_confidence, _, _ = run_point(point_of("focus", AcceptanceConfig()), workload, num_pages=64)
    assert [r.output_tokens for r in by_confidence.requests] == [40, 40]


def test_pages_wanted_are_those_of_the_largest_requests_at_once() -> None:
    sizes = ((3, 5), (3, 6), (20, 30), (8, 1), (1, 1))
    workload = workload_of(*(make_request(i, p, n) for i, (p, n) in enumerate(sizes)))
    # In blocks of 8, a page each: 1, 2, 7, 2, 1; the batch holds 3.
    point = point_of("baseline", AcceptanceConfig())
    assert pages_wanted(point, workload) == 7 + 2 + 2
    run, _, _ = run_point(point, workload, pages_wanted(point, workload))
    assert sum(r.preemptions for r in run.requests) == 0
