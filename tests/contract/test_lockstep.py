"""Contract 1, the wall-clock driver: one fake executor gives a fixed sequence of plans."""

import pytest
from lockstep import CASES, IMPOSSIBLE, LockstepCase, run_case, wall_clock_driver

from focus_bench.core.config import AcceptanceConfig

BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@BY_NAME
def test_every_request_of_a_case_is_served(case: LockstepCase) -> None:
    run = run_case(case, wall_clock_driver)
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
def test_the_same_case_twice_gives_the_same_plans_and_records(case: LockstepCase) -> None:
    first, second = (run_case(case, wall_clock_driver) for _ in range(2))
    assert first.log.lines == second.log.lines
    assert first.log.digest() == second.log.digest()
    assert first.record.steps == second.record.steps
    assert first.record.requests == second.record.requests
    assert len(first.log.lines) > 20


def test_a_small_case_in_full() -> None:
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
    assert run_case(case, wall_clock_driver).log.lines == [
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
