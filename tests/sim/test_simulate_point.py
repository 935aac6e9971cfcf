"""A simulated run: times, determinism, notes, limits, and what it refuses."""

import dataclasses
import math

import numpy as np
import pytest
from sim_cases import SPEC, ConstantTime, make_point, make_workload, simulate

from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    ImportanceConfig,
    SchedulerConfig,
)
from focus_bench.core.errors import CapacityError, UsageError
from focus_bench.core.hardware import get_hardware
from focus_bench.core.model_spec import PRESETS
from focus_bench.decoding.policies import POLICIES
from focus_bench.sim.roofline import RooflineModel
from focus_bench.sim.simulate import pages_on_hardware, pages_on_host

SIMULATED_POLICIES = tuple(p.name for p in POLICIES.values() if not p.sub_block_length)


@pytest.mark.parametrize("policy", SIMULATED_POLICIES)
def test_every_policy_runs_and_repeats_itself(policy: str) -> None:
    workload = make_workload([5, 70, 33, 200, 1], 50)
    model = RooflineModel(spec=SPEC, hardware=get_hardware("h200"))
    first, second = (
        simulate(make_point(policy), workload, cost_model=model, num_pages=12) for _ in range(2)
    )
    assert first.steps == second.steps
    assert first.requests == second.requests
    assert first.source == "predicted"
    assert [(r.finish_reason, r.output_tokens) for r in first.requests] == [("length", 50)] * 5
    assert first.duration_s == pytest.approx(sum(s.timing.duration_s for s in first.steps))


def test_another_seed_gives_another_run() -> None:
    workload = make_workload([30] * 4, 64)
    counts = [
        [s.decoded_tokens for s in simulate(make_point(seed=seed), workload).steps]
        for seed in (0, 1)
    ]
    assert counts[0] != counts[1]


def test_times_are_those_of_the_steps() -> None:
    record = simulate(make_point("baseline", mean=40.0), make_workload([32, 32], 32))
    # One step prefills, the second one decodes the whole block; nothing needs a commit pass.
    assert [s.start_s for s in record.steps] == [0.0, 0.25]
    assert record.duration_s == 0.5
    for request in record.requests:
        assert (request.arrival_s, request.admitted_s) == (0.0, 0.0)
        assert (request.first_token_s, request.finished_s) == (0.5, 0.5)
        assert (request.output_tokens, request.decode_steps) == (32, 1)


def test_only_output_tokens_count_for_a_long_prompt() -> None:
    (request,) = simulate(make_point(), make_workload([1000], 10)).requests
    assert (request.prompt_tokens, request.output_tokens) == (1000, 10)


def test_no_request_at_all() -> None:
    record = simulate(make_point(), make_workload([], 8))
    assert (record.steps, record.requests, record.duration_s) == ((), (), 0.0)


def test_idle_time_between_arrivals_passes_without_steps() -> None:
    workload = make_workload([3, 3, 3], 1, arrivals_s=[0.0, 10.0, 10.1], request_rate=0.2)
    record = simulate(make_point("baseline"), workload)
    starts = [s.start_s for s in record.steps]
    assert starts[0] == 0.0
    assert 10.0 in starts
    assert all(s < 1.0 or s >= 10.0 for s in starts)
    assert [r.arrival_s for r in record.requests] == [0.0, 10.0, 10.1]
    # The third came within a step and waited for its end.
    assert record.requests[2].admitted_s == pytest.approx(10.25)
    assert record.requested_rate == 0.2


def test_twice_the_sustainable_rate_ends_and_the_queue_shows_it() -> None:
    point = make_point("baseline", scheduler=SchedulerConfig(batch_size=2))
    alone = simulate(point, make_workload([3] * 20, 20))
    sustainable = 20 / alone.duration_s
    arrivals = np.arange(20) / (2 * sustainable)
    workload = make_workload([3] * 20, 20, arrivals_s=list(arrivals), request_rate=2 * sustainable)
    record = simulate(point, workload)
    assert {r.finish_reason for r in record.requests} == {"length"}
    waits = [r.admitted_s - r.arrival_s for r in record.requests if r.admitted_s is not None]
    assert waits[-1] > 3 * max(waits[1], 0.25)
    assert 20 / record.duration_s < 1.1 * sustainable


def test_closed_loop_holds_its_concurrency() -> None:
    workload = make_workload([3] * 9, 12, max_concurrency=2)
    record = simulate(make_point(), workload)
    assert len(record.requests) == 9
    assert max(s.num_rows for s in record.steps) == 2
    assert max(s.num_waiting for s in record.steps) == 0


def test_a_request_larger_than_the_pool_fails_by_name_and_the_others_finish() -> None:
    workload = make_workload([1000, 20, 150], 64)
    # 3 pages of 64: the first prompt does not fit, the third does, but not with its output.
    record = simulate(make_point(), workload, num_pages=3)
    assert [r.finish_reason for r in record.requests] == ["error", "length", "error"]
    assert "17 pages of 64 tokens" in record.requests[0].error
    assert "4 pages of 64 tokens" in record.requests[2].error


@pytest.mark.parametrize("policy", ["baseline", "focus"])
def test_a_tiny_pool_preempts_and_ends(policy: str) -> None:
    model = ConstantTime()
    point = make_point(policy, scheduler=SchedulerConfig(batch_size=256))
    record = simulate(point, make_workload([40] * 30, 100), num_pages=8, cost_model=model)
    assert {r.finish_reason for r in record.requests} == {"length"}
    assert sum(r.preemptions for r in record.requests) > 0
    assert any(shape.swapped_pages for shape in model.shapes) == (policy == "focus")


def test_policy_ideal_knows_for_free_what_is_decodable() -> None:
    model = ConstantTime()
    record = simulate(make_point("ideal"), make_workload([32], 64), cost_model=model)
    assert any("ideal" in note for note in record.notes)
    assert {len(shape.forwards) for shape in model.shapes} == {0, 1}
    forwards = [shape.forwards[0] for shape in model.shapes if shape.forwards]
    assert any((forward.kept < forward.fed).any() for forward in forwards)
    assert not any(forward.masked_fed.any() for forward in forwards)  # no importance is computed


def test_notes_name_all_that_a_prediction_rests_on() -> None:
    workload = make_workload([8], 8)
    synthetic = dataclasses.replace(
        workload, provenance=dataclasses.replace(workload.provenance, synthetic=True)
    )
    model = RooflineModel(spec=SPEC, hardware=get_hardware("h200"))
    notes = simulate(make_point(), synthetic, cost_model=model).notes
    point = make_point()
    assert notes == (
        "uncalibrated datasheet roofline (NVIDIA H200 SXM)"
        "; float32 products at 16-bit rates (too fast)",
        f"synthetic acceptance ({point.acceptance.label})",
        f"synthetic importance ({point.importance.label})",
        f"synthetic data ({workload.provenance.dataset})",
    )


@pytest.mark.parametrize(
    ("decode", "extrapolated"),
    [
        (DecodeConfig(policy="focus"), False),
        (DecodeConfig(policy="focus", alpha=1.8), True),
        (DecodeConfig(policy="focus", block_length=16), True),
        (DecodeConfig(policy="adaptive", alpha=1.2), True),
        (DecodeConfig(policy="baseline", alpha=1.8), False),
        (DecodeConfig(policy="baseline", block_length=64), True),
    ],
)
def test_dynamics_away_from_the_fit_are_called_extrapolated(
    decode: DecodeConfig, extrapolated: bool
) -> None:
    notes = simulate(make_point(decode=decode), make_workload([8], 8)).notes
    assert ("extrapolated decode dynamics" in notes) == extrapolated


def test_what_needs_a_model_is_refused_by_name() -> None:
    workload = make_workload([8], 8)
    with pytest.raises(UsageError, match=r"--acceptance: 'confidence' .*synthetic:MEAN or replay"):
        simulate(make_point(acceptance=AcceptanceConfig()), workload)
    with pytest.raises(UsageError, match=r"--importance: 'model' .*synthetic"):
        simulate(make_point("adaptive", importance=ImportanceConfig()), workload)
    # Without eviction by score there is nothing to rank.
    for policy in ("baseline", "ideal"):
        simulate(make_point(policy, importance=ImportanceConfig()), workload)


def test_pages_are_what_memory_leaves_beside_the_weights() -> None:
    spec, hardware = PRESETS["sdar-8b"], get_hardware("h200")
    point = make_point(engine=EngineConfig(model="sdar-8b"))
    pages = pages_on_hardware(point, spec, hardware)
    used = spec.weight_bytes + pages * 64 * spec.kv_bytes_per_token
    budget = 0.9 * hardware.memory_bytes
    assert used <= budget < used + 64 * spec.kv_bytes_per_token
    fewer = make_point(engine=point.engine, scheduler=SchedulerConfig(num_pages=17))
    assert pages_on_hardware(fewer, spec, hardware) == 17
    assert pages_on_host(fewer, make_workload([8], 8)) == 17


def test_a_model_that_does_not_fit_is_refused_with_the_bytes() -> None:
    spec, hardware = PRESETS["sdar-8b"], get_hardware("a100-sxm4-80g")
    tight = make_point(engine=EngineConfig(model="sdar-8b", gpu_memory_utilization=0.01))
    with pytest.raises(CapacityError, match=r"16,381,470,720 of weights.*800,000,000 bytes had"):
        pages_on_hardware(tight, spec, hardware)
    many = make_point(scheduler=SchedulerConfig(num_pages=10**6))
    with pytest.raises(CapacityError, match=r"1000000 KV pages"):
        pages_on_hardware(many, spec, hardware)


def test_host_pages_hold_the_largest_requests_at_once() -> None:
    point = make_point(scheduler=SchedulerConfig(batch_size=2))
    # 200 + 50 tokens need 8 blocks, 4 pages; 100 + 50 need 5 blocks, 3 pages; 10 + 50 need 1 page.
    assert pages_on_host(point, make_workload([10, 200, 100], 50)) == 7
    assert math.isfinite(simulate(point, make_workload([10, 200], 50)).duration_s)


def test_a_request_that_ends_as_it_arrives_is_recorded_though_no_step_follows() -> None:
    point = make_point("baseline", scheduler=SchedulerConfig(batch_size=2))
    workload = make_workload([60, 100_000], 8, arrivals_s=[0.0, 1e6], request_rate=1.0)
    model = RooflineModel(spec=SPEC, hardware=get_hardware("h200"))
    record = simulate(point, workload, cost_model=model, num_pages=20)
    assert [request.finish_reason for request in record.requests] == ["length", "error"]
