"""The same command with the same seed gives the same tokens, ten times; another seed others."""

import dataclasses

import pytest
from engine_serving import make_point, make_requests, make_workload, random_model

from focus_bench.core.config import AcceptanceConfig, EngineConfig, ImportanceConfig, PointConfig
from focus_bench.engine.runner import run_point, warm_up
from focus_bench.engine.weights import load_model

Facts = tuple[dict[int, list[int]], list[tuple[int, ...]], list[tuple[str, int, int]]]


def facts(point: PointConfig, *, seed_of_weights: int = 0) -> Facts:
    """Everything of a fresh run that is no time: tokens, steps and requests."""
    model = load_model(EngineConfig(model="dummy-tiny", device="cpu"), seed=seed_of_weights)
    requests = make_requests([5, 16, 11, 40, 3, 8], [14, 9, 12, 8, 5, 11])
    record, _ = run_point(model, point, make_workload(requests))
    steps = [
        (s.num_rows, s.fed_tokens, s.kept_tokens, s.decoded_tokens, s.pages_used, s.num_waiting)
        for s in record.steps
    ]
    ends = [(r.finish_reason, r.decode_steps, r.preemptions) for r in record.requests]
    return {r: ids.tolist() for r, ids in record.output_ids.items()}, steps, ends


SYNTHETIC = {
    "acceptance": AcceptanceConfig(kind="synthetic", mean=2.351, scatter=1.0),
    "importance": ImportanceConfig(kind="synthetic", tau=2.0, noise=0.3),
}


@pytest.mark.parametrize(
    "point",
    [
        make_point("focus", batch_size=4, **SYNTHETIC),  # type: ignore[arg-type]
        make_point("focus", batch_size=4, temperature=1.0, num_pages=7),
    ],
    ids=["synthetic acceptance", "confidence, temperature 1, preemption"],
)
def test_ten_runs_are_one(point: PointConfig) -> None:
    first = facts(point)
    preempted = sum(preemptions for _, _, preemptions in first[2])
    assert bool(preempted) == (point.scheduler.num_pages is not None)
    assert all(facts(point) == first for _ in range(9))
    assert facts(dataclasses.replace(point, seed=1)) != first
    assert facts(point, seed_of_weights=1)[0] != first[0]


def test_what_ran_before_does_not_matter() -> None:
    point = make_point("focus", threshold=0.3, temperature=1.0)
    requests = make_requests([5, 16, 11], 20)
    model = random_model()
    record, _ = run_point(model, point, make_workload(requests))
    warm_up(model, point)
    run_point(model, make_point("baseline"), make_workload(requests[1:]))
    again, _ = run_point(model, point, make_workload(requests))
    assert all((again.output_ids[i] == record.output_ids[i]).all() for i in range(3))
