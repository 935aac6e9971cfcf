"""Rounds: several decode steps from one look at the queue to the next."""

import pytest
from fakes import make_request
from scheduling_cases import Harness, harness

from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    PointConfig,
    SchedulerConfig,
)
from focus_bench.core.errors import UsageError
from focus_bench.scheduling.plan import Plan

ONE_A_STEP = AcceptanceConfig(kind="synthetic", mean=1.0)
ALL_AT_ONCE = AcceptanceConfig(kind="synthetic", mean=64.0)


def what_runs(run: Harness) -> list[tuple[list[int], list[int], int]]:
    """(requests that prefill, requests that decode, requests that wait) of each step to the end."""
    return [
        ([c.request_id for c in plan.prefill], plan.request_ids.tolist(), plan.num_waiting)
        for plan in iter(run.step, None)
    ]


def test_a_freed_slot_stays_empty_until_the_next_round() -> None:
    run = harness(policy="baseline", batch_size=2, steps_per_round=4, acceptance=ONE_A_STEP)
    run.submit(make_request(0, 1, 2), make_request(1, 1, 7), make_request(2, 1, 3))
    assert what_runs(run) == [
        ([], [0, 1], 1), ([], [0, 1], 1), ([], [1], 1), ([], [1], 1),
        ([], [2, 1], 0), ([], [2, 1], 0), ([], [2, 1], 0),
    ]  # fmt: skip


def test_only_the_first_step_of_a_round_prefills() -> None:
    run = harness(policy="baseline", steps_per_round=3, max_prefill_tokens=8, acceptance=ONE_A_STEP)
    run.submit(make_request(0, 1, 7), make_request(1, 17, 5))
    assert what_runs(run) == [
        ([1], [0], 0), ([], [0], 0), ([], [0], 0),
        ([1], [0], 0), ([], [0, 1], 0), ([], [0, 1], 0),
        ([], [0, 1], 0), ([], [1], 0), ([], [1], 0),
    ]  # fmt: skip


def test_requests_that_arrive_in_a_round_wait_for_its_end() -> None:
    run = harness(policy="baseline", steps_per_round=3, acceptance=ONE_A_STEP)
    run.submit(make_request(0, 1, 7))
    plans = [run.step()]
    run.submit(make_request(1, 1, 7))
    plans += [run.step() for _ in range(3)]
    assert [p.request_ids.tolist() for p in plans] == [[0], [0], [0], [0, 1]]
    assert [p.num_waiting for p in plans] == [0, 1, 1, 0]


def test_a_round_ends_when_no_row_decodes() -> None:
    run = harness(policy="baseline", batch_size=1, steps_per_round=8, acceptance=ALL_AT_ONCE)
    run.submit(make_request(0, 1, 5), make_request(1, 20, 3))
    # Request 0 ends in the round's first step; request 1 prefills, which is no decode step either.
    assert what_runs(run) == [([], [0], 1), ([1], [], 0), ([], [1], 0)]


def test_a_round_goes_on_behind_a_prefill() -> None:
    run = harness(policy="baseline", batch_size=1, steps_per_round=3, acceptance=ONE_A_STEP)
    run.submit(make_request(0, 8, 3), make_request(1, 1, 1))
    assert what_runs(run) == [([0], [], 1), ([], [0], 1), ([], [0], 1), ([], [0], 1), ([], [1], 0)]


def test_new_blocks_take_free_pages_within_a_round() -> None:
    run = harness(policy="baseline", steps_per_round=16, acceptance=ALL_AT_ONCE)
    run.submit(make_request(0, 8, 24))
    plans = [plan for plan in iter(run.step, None)]
    assert [p.pages_used for p in plans] == [2, 2, 2, 3, 3, 4]
    assert sum(p.preemptions for p in plans) == 0


def test_a_round_ends_when_a_new_block_finds_no_page() -> None:
    """Two requests of three blocks on five pages, in step: both take a second page in the round,
    one a third, for which the other is preempted.
    """
    run = harness(
        policy="baseline",
        batch_size=2,
        num_pages=5,
        steps_per_round=1000,
        acceptance=ALL_AT_ONCE,
    )
    run.submit(make_request(0, 1, 23), make_request(1, 1, 23))
    plans: list[Plan] = list(iter(run.step, None))
    preempting = [p.index for p in plans if p.preemptions]
    assert preempting == [4]
    assert plans[3].request_ids.tolist() == [0, 1]
    assert plans[4].request_ids.tolist() == [0]
    assert [run.finished[i].preemptions for i in (0, 1)] == [0, 1]
    for request_id in (0, 1):
        run.check_equals_alone(request_id)


def test_a_round_that_found_no_page_is_followed_by_a_whole_one() -> None:
    run = harness(
        policy="baseline", batch_size=2, num_pages=5, steps_per_round=10, acceptance=ONE_A_STEP
    )
    run.submit(make_request(0, 1, 23), make_request(1, 1, 23))
    plans = [run.step() for _ in range(18)]
    assert [p.index for p in plans if p.preemptions] == [17]
    run.abort(1)
    run.submit(make_request(2, 1, 1))
    # The queue was looked at in steps 0, 10 and 17: not in 20, and in 25 because request 0 ended.
    assert [p.request_ids.tolist() for p in iter(run.step, None)] == [[0]] * 7 + [[2]]


@pytest.mark.parametrize("num_pages", [64, 9])
@pytest.mark.parametrize("mean", [1.0, 2.5])
def test_tokens_and_masks_do_not_depend_on_the_round(num_pages: int, mean: float) -> None:
    def served(steps_per_round: int) -> Harness:
        run = harness(
            policy="baseline",
            num_pages=num_pages,
            batch_size=3,
            max_prefill_tokens=16,
            steps_per_round=steps_per_round,
            acceptance=AcceptanceConfig(kind="synthetic", mean=mean, scatter=1.0),
        )
        run.submit(*(make_request(i, 3 + 7 * i, 30 - 2 * i) for i in range(7)))
        return run.run()

    single = served(1)
    for steps_per_round in (2, 4, 7):
        rounds = served(steps_per_round)
        assert rounds.masks == single.masks
        for request_id, end in single.finished.items():
            assert end.output_ids.tolist() == rounds.finished[request_id].output_ids.tolist()
            assert end.reason == rounds.finished[request_id].reason
        assert len(rounds.plans) > len(single.plans)  # slots stay empty for a while


def point(policy: str, steps_per_round: int) -> PointConfig:
    return PointConfig(
        decode=DecodeConfig(policy=policy),
        scheduler=SchedulerConfig(steps_per_round=steps_per_round),
        engine=EngineConfig(model="sdar-8b"),
    )


@pytest.mark.parametrize("policy", ["focus", "delayed-cache", "adaptive"])
def test_rounds_are_refused_for_other_policies_by_name(policy: str) -> None:
    with pytest.raises(UsageError, match=rf"--steps-per-round: 4 .*--policy {policy}; more: base"):
        point(policy, 4)
    assert point(policy, 1).scheduler.steps_per_round == 1
    assert point("baseline", 4).scheduler.steps_per_round == 4


def test_a_round_has_at_least_one_step() -> None:
    with pytest.raises(UsageError, match="--steps-per-round: 0"):
        SchedulerConfig(steps_per_round=0)
