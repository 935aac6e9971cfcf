"""Contract 1: one fake executor gives the same sequence of plans under every driver."""

import numpy as np
import pytest
from fakes import FakeExecutor
from lockstep import CASES, IMPOSSIBLE, LockstepCase, run_case, wall_clock_driver

from focus_bench.core.config import AcceptanceConfig
from focus_bench.scheduling.loop import ServingLoop
from focus_bench.sim.driver import run_simulated

BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def simulated_driver(loop: ServingLoop, executor: FakeExecutor) -> float:
    """The simulator's driver; the fake executor moves no clock there."""
    assert executor.clock is None
    return run_simulated(loop)


DRIVERS = (wall_clock_driver, simulated_driver)


@BY_NAME
def test_both_drivers_give_the_same_plans_and_records(case: LockstepCase) -> None:
    wall, simulated = (run_case(case, driver) for driver in DRIVERS)
    assert wall.log.lines == simulated.log.lines
    assert wall.log.digest() == simulated.log.digest()
    assert wall.record.steps == simulated.record.steps
    assert wall.record.requests == simulated.record.requests
    assert np.array_equal(wall.record.group_gaps_s, simulated.record.group_gaps_s)
    assert np.array_equal(wall.record.block_latencies_s, simulated.record.block_latencies_s)
    assert wall.duration_s == simulated.duration_s
    assert len(wall.log.lines) > 20


@BY_NAME
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_request_of_a_case_is_served(case: LockstepCase, driver: object) -> None:
    run = run_case(case, driver)
    requests = {r.request_id: r for r in run.record.requests}
    for spec in case.workload().requests:
        record = requests.pop(spec.request_id)
        if spec.request_id == IMPOSSIBLE:
            assert (record.finish_reason, record.output_tokens) == ("error", 0)
        else:
            assert record.finish_reason == "length"
            assert record.output_tokens == spec.max_new_tokens
            assert record.arrival_s <= record.admitted_s <= record.first_token_s
            assert record.first_token_s <= record.finished_s <= run.duration_s
    assert not requests


@BY_NAME
def test_the_same_case_twice_gives_the_same_digest(case: LockstepCase) -> None:
    digests = {run_case(case, wall_clock_driver).log.digest() for _ in range(2)}
    assert len(digests) == 1


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_small_case_in_full(driver: object) -> None:
    """Three requests on four pages of one block each; the baseline decodes all it feeds.

    Lines: slot=request@history, ":" a decode step or "c" a commit pass, fed positions as bits.
    """
    case = LockstepCase(
        name="in-full",
        policy="baseline",
        num_pages=4,
        batch_size=2,
        acceptance=AcceptanceConfig(kind="synthetic", mean=64.0),
        sizes=((9, 14), (3, 13), (17, 7)),
    )
    assert run_case(case, driver).log.lines == [
        "0 prefill 0:0+8 | rows 1=1@0:ff | waiting 1 | pages 3",
        "1 rows 0=0@8:ff 1=1@0cff | waiting 1 | pages 3",
        "2 rows 0=0@8cff 1=1@8:ff | waiting 1 | pages 4",
        "3 rows 0=0@16:ff | waiting 1 | pages 3",
        "4 prefill 2:0+16 | pages 3",
        "5 rows 0=2@16:ff | pages 3",
    ]


def test_the_cases_differ_and_reach_what_they_are_for() -> None:
    runs = {case.name: run_case(case, wall_clock_driver) for case in CASES}
    assert len({run.log.digest() for run in runs.values()}) == len(CASES)
    for name, run in runs.items():
        preempted = sum(r.preemptions for r in run.record.requests)
        assert (preempted > 0) == name.startswith("small-pool"), name
        assert preempted == sum(s.preemptions for s in run.record.steps)
        lines = run.log.lines
        assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
        assert any("prefill" in line for line in lines)
    waited = {n: any("waiting" in line for line in r.log.lines) for n, r in runs.items()}
    assert waited["focus"]
    assert not waited["closed-loop"]
