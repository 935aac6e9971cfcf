"""Contract 2: replayed or synthetic, the simulator makes the engine's very plans, step by step."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import describe_plan, make_request

from focus_bench.core.calibration import StepCounts
from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    ImportanceConfig,
    PointConfig,
    SchedulerConfig,
)
from focus_bench.core.hardware import get_hardware
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Provenance, Workload
from focus_bench.decoding.trace import DecodeTrace
from focus_bench.engine.runner import run_point
from focus_bench.engine.weights import dummy_model
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.step_shape import step_shape
from focus_bench.sim.roofline import RooflineModel
from focus_bench.sim.simulate import simulate_point

SPEC = ModelSpec(
    name="test",
    num_layers=3,
    hidden_size=32,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    vocab_size=260,
    mask_token_id=256,
    stop_token_ids=tuple(range(0, 250, 10)),
    dtype="float32",
)
WORKLOAD = Workload(
    requests=tuple(
        make_request(i, prompt, output, reply_tokens=output - 1)
        for i, (prompt, output) in enumerate(
            [(5, 30), (40, 33), (16, 20), (3, 41), (23, 9), (11, 26), (70, 17), (2, 50)]
        )
    ),
    provenance=Provenance(dataset="test", origin="synthetic", tokenizer="formula"),
)


class StepLog:
    """Plans as lines, and what came of them."""

    def __init__(self) -> None:
        self.plans: list[str] = []
        self.outcomes: list[tuple[np.ndarray, ...]] = []
        self.counts: list[StepCounts] = []

    def add(self, plan: Plan, outcome: Outcome) -> None:
        self.plans.append(describe_plan(plan))
        masks = (outcome.kept, outcome.decoded, outcome.progress, outcome.evicting)
        self.outcomes.append(tuple(np.copy(mask) for mask in masks))
        shape = step_shape(
            plan,
            kept=outcome.kept,
            progress=outcome.progress,
            evicting=outcome.evicting,
            page_size=8,
        )
        self.counts.append(StepCounts.of(shape))


def make_point(policy: str, *, num_pages: int = 60, **changes: object) -> PointConfig:
    point = PointConfig(
        decode=DecodeConfig(policy=policy, block_length=8, threshold=0.02, retain=3),
        scheduler=SchedulerConfig(
            batch_size=5, page_size=8, num_pages=num_pages, max_prefill_tokens=32
        ),
        engine=EngineConfig(model="built-by-the-test", device="cpu"),
        seed=5,
    )
    return dataclasses.replace(point, **changes)


def measure(point: PointConfig, spec: ModelSpec = SPEC) -> tuple[StepLog, RunRecord, DecodeTrace]:
    log = StepLog()
    model = dummy_model(spec, device=torch.device("cpu"), seed=1)
    record, trace = run_point(model, point, WORKLOAD, decode_trace=True, on_step=log.add)
    assert trace is not None
    return log, record, trace


def predict(point: PointConfig, spec: ModelSpec = SPEC) -> tuple[StepLog, RunRecord]:
    log = StepLog()
    record = simulate_point(
        point,
        WORKLOAD,
        spec,
        cost_model=RooflineModel(spec=spec, hardware=get_hardware("h200")),
        num_pages=point.scheduler.num_pages or 1,
        on_step=log.add,
    )
    return log, record


def assert_same_steps(engine: StepLog, simulator: StepLog) -> None:
    assert simulator.plans == engine.plans
    assert simulator.counts == engine.counts
    for theirs, ours in zip(engine.outcomes, simulator.outcomes, strict=True):
        for a, b in zip(theirs, ours, strict=True):
            np.testing.assert_array_equal(a, b)


def ends_of(record: RunRecord) -> list[tuple[int, str, int, int]]:
    return [
        (r.request_id, r.finish_reason, r.output_tokens, r.preemptions) for r in record.requests
    ]


POLICIES = (
    "baseline",
    "delayed-cache",
    "delayed-cache-neighbor",
    "focus",
    "focus-fixed",
    "adaptive",
    "fast-dllm-v2",
)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_pages", [60, 11])
def test_a_replayed_trace_gives_the_engines_plans(
    policy: str, num_pages: int, tmp_path: Path
) -> None:
    point = make_point(policy, num_pages=num_pages)
    engine, measured, trace = measure(point)
    trace.save(tmp_path / "trace.npz")
    replay = AcceptanceConfig(kind="replay", path=str(tmp_path / "trace.npz"))
    simulator, predicted = predict(dataclasses.replace(point, acceptance=replay))
    assert_same_steps(engine, simulator)
    assert ends_of(predicted) == ends_of(measured)
    assert {"stop", "length"} <= {r.finish_reason for r in measured.requests}
    assert any(r.preemptions for r in measured.requests) == (num_pages == 11)


@pytest.mark.parametrize("num_pages", [60, 11])
def test_rounds_give_the_same_plans_in_both(num_pages: int) -> None:
    point = make_point(
        "baseline", acceptance=AcceptanceConfig(kind="synthetic", mean=2.0, scatter=0.5)
    )
    scheduler = dataclasses.replace(point.scheduler, num_pages=num_pages, steps_per_round=4)
    rounds = dataclasses.replace(point, scheduler=scheduler)
    engine, measured, _ = measure(rounds)
    simulator, predicted = predict(rounds)
    assert_same_steps(engine, simulator)
    assert ends_of(predicted) == ends_of(measured)
    assert simulator.plans != predict(point)[0].plans


@pytest.mark.parametrize("policy", POLICIES)
def test_synthetic_decoding_gives_the_engines_plans(policy: str) -> None:
    point = make_point(
        policy,
        num_pages=11,
        acceptance=AcceptanceConfig(kind="synthetic", mean=2.0, scatter=0.5),
        importance=ImportanceConfig(kind="synthetic", tau=2.0, noise=0.1),
    )
    engine, measured, _ = measure(point)
    simulator, predicted = predict(point)
    assert_same_steps(engine, simulator)
    assert ends_of(predicted) == ends_of(measured)
    assert (predicted.step_fed_tokens, predicted.step_kept_tokens) == (
        measured.step_fed_tokens,
        measured.step_kept_tokens,
    )
