"""Contract 1: the SimPy driver gives the plans and records that the wall-clock driver gives."""

import pytest
from fakes import FakeExecutor
from lockstep import CASES, LockstepCase, run_case, wall_clock_driver

from focus_bench.core.records import RequestRecord, StepRecord
from focus_bench.scheduling.loop import ServingLoop
from focus_bench.sim.driver import run_simulated


def simpy_driver(loop: ServingLoop, _executor: FakeExecutor) -> float:
    return run_simulated(loop)


def times_of(record: StepRecord | RequestRecord) -> list[float]:
    if isinstance(record, StepRecord):
        return [record.start_s]
    times = (record.arrival_s, record.admitted_s, record.first_token_s, record.finished_s)
    return [-1.0 if time is None else time for time in times]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_drivers_give_the_same_plans_and_times(case: LockstepCase) -> None:
    wall, simulated = run_case(case, wall_clock_driver), run_case(case, simpy_driver)
    assert simulated.log.lines == wall.log.lines
    # Clocks that add the same durations in another order differ by rounding only.
    assert simulated.duration_s == pytest.approx(wall.duration_s, rel=1e-12)
    for theirs, ours in (
        (wall.record.steps, simulated.record.steps),
        (wall.record.requests, simulated.record.requests),
    ):
        assert len(theirs) == len(ours)
        for a, b in zip(theirs, ours, strict=True):
            assert times_of(b) == pytest.approx(times_of(a), rel=1e-12)


def test_progress_is_shown_after_each_step() -> None:
    finished: list[int] = []

    def driver(loop: ServingLoop, _executor: FakeExecutor) -> float:
        return run_simulated(loop, on_progress=lambda r: finished.append(r.num_finished))

    run = run_case(CASES[1], driver)
    assert len(finished) == len(run.record.steps)
    assert finished == sorted(finished)
    assert finished[-1] == len(run.record.requests)
