"""Simulated with the dynamics of focus-tiny, the bundled tasks decode as in the model's traces."""

import dataclasses
import json

import numpy as np
import pytest
from sim_cases import ConstantTime, processed_per_decoded

from focus_bench.bench.defaults import acceptance_for, importance_for
from focus_bench.bench.workload_cache import WorkloadCache
from focus_bench.core.config import (
    DecodeConfig,
    EngineConfig,
    PointConfig,
    SchedulerConfig,
    WorkloadConfig,
)
from focus_bench.core.model_folder import checkpoint_folder, resolve_model
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Workload
from focus_bench.decoding.dynamics import DYNAMICS_FILE, dynamics_of_model
from focus_bench.sim.simulate import simulate_point

MODEL = "focus-tiny"
TRACED = json.loads((checkpoint_folder(MODEL) / DYNAMICS_FILE).read_text())["provenance"]


def point_of(policy: str, *, num_prompts: int = 400, seed: int = 0) -> PointConfig:
    """What `focus-bench simulate` makes of the default model."""
    engine = EngineConfig(model=MODEL)
    acceptance = acceptance_for(
        None, engine=engine, family="sdar", dataset="focus-tasks", simulated=True
    )
    return PointConfig(
        engine=engine,
        acceptance=acceptance,
        importance=importance_for(None, engine=engine, acceptance=acceptance),
        decode=DecodeConfig(policy=policy),
        scheduler=SchedulerConfig(batch_size=64),
        workload=WorkloadConfig(dataset="focus-tasks", num_prompts=num_prompts, max_new_tokens=256),
        seed=seed,
    )


def simulated(point: PointConfig, workload: Workload) -> RunRecord:
    return simulate_point(
        point,
        workload,
        resolve_model(point.engine),
        cost_model=ConstantTime(),
        num_pages=10_000,
    )


@pytest.fixture(scope="module")
def problems() -> Workload:
    """The problems that were traced; the replies' lengths in the place of the model's own."""
    return WorkloadCache().of(point_of("baseline"))


def test_the_baseline_decodes_as_traced(problems: Workload) -> None:
    record = simulated(point_of("baseline"), problems)
    assert len(record.requests) == TRACED["requests"]
    traced = TRACED["steps_per_block"]
    steps = record.steps_per_block
    assert steps.mean() == pytest.approx(traced["mean"], rel=0.04)
    assert np.percentile(steps, 50) == pytest.approx(traced["p50"], abs=1)
    assert np.percentile(steps, 90) == pytest.approx(traced["p90"], abs=1)
    ratio = processed_per_decoded(record)
    assert ratio == pytest.approx(TRACED["processed_per_decoded"], rel=0.05)


def test_a_whole_block_takes_the_steps_of_the_table(problems: Workload) -> None:
    """Long outputs, none of them cut: the table's exact mean, the commit pass counted."""
    requests = tuple(
        dataclasses.replace(
            request,
            prompt_ids=np.ones(32, dtype=np.int32),
            reply_tokens=640,
            max_new_tokens=640,
        )
        for request in problems.requests[:100]
    )
    record = simulated(point_of("baseline"), dataclasses.replace(problems, requests=requests))
    steps = record.steps_per_block
    exact = dynamics_of_model(MODEL).expected_steps(32)
    assert abs(steps.mean() - exact) < 5 * steps.std() / np.sqrt(len(steps))
    assert processed_per_decoded(record) == pytest.approx(steps.mean() + 1, rel=0.02)


def test_focus_processes_as_much_as_in_the_models_own_runs() -> None:
    point = point_of("focus", num_prompts=100, seed=1)
    record = simulated(point, WorkloadCache().of(point))
    traced = TRACED["focus"]
    assert processed_per_decoded(record) == pytest.approx(traced["processed_per_decoded"], rel=0.05)
    assert record.steps_per_block.mean() == pytest.approx(
        traced["steps_per_block"]["mean"], rel=0.05
    )


def test_the_draws_of_a_request_do_not_depend_on_its_batch(problems: Workload) -> None:
    few = dataclasses.replace(problems, requests=problems.requests[:12])
    for policy in ("baseline", "focus"):
        counts = []
        for batch_size in (1, 5, 12):
            point = point_of(policy)
            scheduler = dataclasses.replace(point.scheduler, batch_size=batch_size)
            record = simulated(dataclasses.replace(point, scheduler=scheduler), few)
            counts.append(
                [
                    (r.decode_steps, r.processed_deep_tokens, r.decoded_tokens)
                    for r in record.requests
                ]
            )
        assert counts[0] == counts[1] == counts[2]


def test_notes_say_what_was_fitted_where_and_what_is_extrapolated(problems: Workload) -> None:
    few = dataclasses.replace(problems, requests=problems.requests[:2])
    point = point_of("baseline")

    def notes(**decode: object) -> str:
        config = dataclasses.replace(point.decode, **decode)  # type: ignore[arg-type]
        return "; ".join(simulated(dataclasses.replace(point, decode=config), few).notes)

    assert "fitted on focus-tiny traces" in notes()
    assert "extrapolated" not in notes()
    assert "out of domain" not in notes()
    assert "extrapolated decode dynamics" in notes(threshold=0.7)
    assert "extrapolated decode dynamics" in notes(block_length=16)
    data = dataclasses.replace(few.provenance, dataset="sharegpt", origin="local file")
    other = simulated(point, dataclasses.replace(few, provenance=data))
    assert "out of domain" in "; ".join(other.notes)
