"""The scheduler's decisions, one by one: prefill, admission, preemption, static batches, abort."""

import numpy as np
import pytest
from fakes import make_request
from scheduling_cases import harness

from focus_bench.core.config import AcceptanceConfig
from focus_bench.decoding.policies import POLICY_CODES
from focus_bench.scheduling.plan import Plan

ONE_A_STEP = AcceptanceConfig(kind="synthetic", mean=1.0)
ALL_AT_ONCE = AcceptanceConfig(kind="synthetic", mean=64.0)


def chunks(plan: Plan) -> list[tuple[int, int, int]]:
    return [(c.request_id, c.start, len(c.token_ids)) for c in plan.prefill]


# -- prefill -------------------------------------------------------------------------------------


def test_prefill_goes_in_whole_blocks_within_the_budget_first_come_first_served() -> None:
    run = harness(max_prefill_tokens=20, page_size=4)  # two blocks of 8
    run.submit(make_request(0, 8 * 5 + 3, 8), make_request(1, 7, 8), make_request(2, 17, 8))
    plans = [run.step() for _ in range(4)]
    assert [chunks(p) for p in plans] == [
        [(0, 0, 16)],
        [(0, 16, 16)],
        [(0, 32, 8), (2, 0, 8)],
        [(2, 8, 8)],
    ]
    # Request 1 has no full block: it decodes while the others' prompts are prefilled.
    assert [p.request_ids.tolist() for p in plans] == [[1], [1], [1], [0, 1]]
    assert [p.prefill_tokens for p in plans] == [16, 16, 16, 8]
    run.run()


def test_a_budget_below_a_block_still_prefills_a_block_a_step() -> None:
    run = harness(max_prefill_tokens=1)
    run.submit(make_request(0, 16, 4), make_request(1, 16, 4))
    assert [chunks(run.step()) for _ in range(4)] == [
        [(0, 0, 8)], [(0, 8, 8)], [(1, 0, 8)], [(1, 8, 8)],
    ]  # fmt: skip


def test_a_prompt_of_full_blocks_starts_an_empty_block() -> None:
    run = harness(acceptance=ALL_AT_ONCE)
    run.submit(make_request(0, 16, 3))
    run.step()
    plan = run.step()
    assert plan.history.tolist() == [16]
    assert not plan.block.decoded.any()


def test_the_rest_of_the_prompt_sits_decoded_in_the_first_block() -> None:
    run = harness()
    request = make_request(0, 21, 3)
    run.submit(request)
    run.step()
    plan = run.step()
    assert plan.history.tolist() == [16]
    assert plan.block.decoded[0].tolist() == [True] * 5 + [False] * 3
    assert plan.block.tokens[0, :5].tolist() == request.prompt_ids[16:].tolist()


def test_prefill_and_decoding_share_a_step() -> None:
    run = harness()
    run.submit(make_request(0, 3, 40))
    run.step()
    run.submit(make_request(1, 24, 4))
    plan = run.step()
    assert chunks(plan) == [(1, 0, 24)]
    assert plan.request_ids.tolist() == [0]
    assert run.step().request_ids.tolist() == [0, 1]


# -- admission and preemption --------------------------------------------------------------------


def test_admission_is_first_come_first_served_even_if_a_later_one_would_fit() -> None:
    run = harness(num_pages=6, acceptance=ONE_A_STEP)
    run.submit(make_request(0, 25, 7), make_request(1, 17, 7), make_request(2, 1, 7))
    plan = run.step()
    assert plan.num_waiting == 2
    assert run.scheduler.drain_admitted() == (0,)
    run.run()
    assert run.scheduler.drain_admitted() == (1, 2)
    assert run.finish_order[0] == 0


@pytest.mark.parametrize("policy", ["baseline", "focus"])
def test_the_youngest_is_preempted_and_goes_on_where_it_stopped(policy: str) -> None:
    run = harness(policy=policy, num_pages=8, acceptance=ONE_A_STEP, batch_size=3)
    run.submit(make_request(0, 8, 17), make_request(1, 9, 16), make_request(2, 1, 16))
    run.run()
    assert [run.finished[i].preemptions for i in (0, 1, 2)] == [0, 0, 1]
    swaps_out = [s.request_id for p in run.plans for s in p.swap_out]
    swaps_in = [s.request_id for p in run.plans for s in p.swap_in]
    assert sum(p.preemptions for p in run.plans) == 1
    if policy == "baseline":
        assert (swaps_out, swaps_in) == ([], [])  # recomputed
    else:
        assert (swaps_out, swaps_in) == ([2], [2])
    for request_id in range(3):
        run.check_equals_alone(request_id)


def test_recomputation_prefills_prompt_and_closed_blocks() -> None:
    run = harness(policy="baseline", num_pages=7, acceptance=ONE_A_STEP, batch_size=2)
    run.submit(make_request(0, 11, 29), make_request(1, 11, 29))
    run.run()
    assert run.finished[1].preemptions == 1
    assert run.prefilled[0] == [(0, 8)]
    # Preempted with one prompt block and closed blocks behind it; the harness compares the tokens.
    assert run.prefilled[1][0] == (0, 8)
    assert run.prefilled[1][1][0] == 0
    assert run.prefilled[1][1][1] > 8
    run.check_equals_alone(1)


@pytest.mark.parametrize("policy", ["baseline", "focus"])
def test_a_repetition_is_found_across_a_preemption(policy: str) -> None:
    run = harness(
        policy=policy,
        num_pages=22,
        batch_size=2,
        acceptance=ONE_A_STEP,
        tokens_of=lambda request, at: np.asarray(at * request % 8 + 1, dtype=np.int32),
    )
    run.submit(make_request(0, 8, 90), make_request(1, 8, 150))
    run.run()
    assert run.finished[1].preemptions >= 1
    assert (run.finished[1].reason, run.finished[1].num_output_tokens) == ("repetition", 96)
    run.check_equals_alone(1)


def test_copies_of_a_preempted_request_are_dropped_when_it_is_aborted() -> None:
    run = harness(num_pages=5, acceptance=ONE_A_STEP, batch_size=3)
    run.submit(make_request(0, 8, 17), make_request(1, 9, 16), make_request(2, 1, 16))
    while not (run.plans and run.plans[-1].swap_out):
        run.step()
    assert run.cache.num_host_copies == 1
    visible = run.visible[2]
    assert run.abort(2)
    assert run.finished[2].reason == "aborted"
    assert run.finished[2].num_output_tokens == visible > 0
    assert run.step().dropped_swaps == (2,)
    assert run.cache.num_host_copies == 0
    run.run()


def test_nothing_is_admitted_in_a_step_that_copies_out() -> None:
    run = harness(num_pages=5, acceptance=ONE_A_STEP, batch_size=4)
    run.submit(make_request(0, 8, 17), make_request(1, 9, 16), make_request(2, 1, 16))
    run.run()
    assert all(not p.swap_in for p in run.plans if p.swap_out)


def test_pages_are_taken_block_by_block() -> None:
    run = harness(policy="baseline", page_size=4, acceptance=ALL_AT_ONCE)
    run.submit(make_request(0, 8, 24))
    used = []
    while (plan := run.step()) is not None:
        used.append((int(plan.history[0]) if len(plan.rows) else 0, plan.pages_used))
    # Prefill; then decode and commit of each block, two pages more a block.
    assert used == [(0, 4), (8, 4), (8, 4), (16, 6), (16, 6), (24, 8)]


def test_large_pages_serve_several_blocks() -> None:
    run = harness(policy="baseline", page_size=20, num_pages=2, acceptance=ALL_AT_ONCE)
    run.submit(make_request(0, 8, 32))
    used = [(int(p.history.sum()), p.pages_used) for p in iter(run.step, None)]
    assert used == [(0, 1), (8, 1), (8, 1), (16, 2), (16, 2), (24, 2), (24, 2), (32, 2)]


# -- static batches ------------------------------------------------------------------------------


def test_a_static_batch_admits_no_one_until_it_ends() -> None:
    run = harness(policy="baseline", kind="static", batch_size=2, acceptance=ALL_AT_ONCE)
    run.submit(*(make_request(i, 3, 4 + 8 * (i % 2)) for i in range(5)))
    seen = []
    while (plan := run.step()) is not None:
        seen.append((sorted(plan.request_ids.tolist()), plan.num_waiting))
    assert seen == [
        ([0, 1], 3), ([1], 3), ([1], 3),
        ([2, 3], 1), ([3], 1), ([3], 1),
        ([4], 0),
    ]  # fmt: skip


def test_a_static_request_holds_contiguous_pages_for_all_it_can_become() -> None:
    run = harness(kind="static", batch_size=2, page_size=4, num_pages=13)
    run.submit(make_request(0, 3, 20), make_request(1, 5, 19), make_request(2, 1, 1))
    plan = run.step()
    assert plan.pages_used == 6 + 6
    assert plan.page_table[plan.rows[0], :6].tolist() == list(range(6))
    assert plan.page_table[plan.rows[1], :6].tolist() == list(range(6, 12))
    run.run()
    assert all(e.preemptions == 0 for e in run.finished.values())


# -- abort ---------------------------------------------------------------------------------------


def test_abort_keeps_the_output_so_far() -> None:
    run = harness(acceptance=ONE_A_STEP)
    run.submit(make_request(0, 3, 20))
    for _ in range(4):
        run.step()
    assert run.abort(0)
    end = run.finished[0]
    assert (end.reason, end.num_output_tokens, end.error) == ("aborted", 4, "")
    assert run.scheduler.pool.num_used == 0
    assert not run.abort(0)
    assert not run.abort(99)


@pytest.mark.parametrize("prompt", [3, 80])
def test_abort_of_waiting_and_prefilling_requests(prompt: int) -> None:
    run = harness(batch_size=1, max_prefill_tokens=8)
    run.submit(make_request(0, prompt, 8), make_request(1, 9, 8))
    run.step()
    assert run.abort(1)
    assert run.abort(0)
    assert run.finish_order == [1, 0]
    assert run.finished[1].num_output_tokens == 0
    assert run.step() is None


def test_abort_during_a_step_waits_for_its_commit() -> None:
    run = harness(acceptance=ONE_A_STEP, batch_size=1)
    run.submit(make_request(0, 3, 20), make_request(1, 3, 20))

    def abort_both() -> None:
        assert run.scheduler.abort(0)
        assert run.scheduler.abort(1)

    run.step(abort_both)
    assert {i: (e.reason, e.num_output_tokens) for i, e in run.finished.items()} == {
        0: ("aborted", 1),
        1: ("aborted", 0),
    }


def test_abort_in_the_step_that_ends_its_prefill_leaves_nothing() -> None:
    run = harness(batch_size=1)
    run.submit(make_request(0, 16, 8), make_request(1, 3, 8))

    def abort_prepared() -> None:
        run.scheduler.prepare_commit()
        assert run.scheduler.abort(0)

    run.step(abort_prepared)
    assert (run.finished[0].reason, run.finished[0].num_output_tokens) == ("aborted", 0)
    assert run.scheduler.pool.num_used == 0
    run.run()
    run.check_equals_alone(1)


def test_a_request_that_ends_in_the_step_of_its_abort_ends_once_and_well() -> None:
    run = harness(policy="baseline", acceptance=ALL_AT_ONCE)
    run.submit(make_request(0, 3, 4))
    run.step(lambda: run.scheduler.abort(0))
    assert run.finished[0].reason == "length"


def test_an_id_can_be_used_again_once_its_request_ended() -> None:
    run = harness()
    run.submit(make_request(0, 3, 4))
    with pytest.raises(ValueError, match="request 0 is already being served"):
        run.scheduler.submit(make_request(0, 3, 4))
    run.run()
    run.scheduler.submit(make_request(0, 3, 4))
    assert run.scheduler.has_work


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "output", "message"),
    [
        (0, 4, "the prompt is empty"),
        (4, 0, "max_new_tokens is 0"),
        (4, -1, "max_new_tokens is -1"),
        (40, 9, "needs 56 positions; allowed: 48"),
        (30, 15, "needs 6 pages of 8 tokens; allowed: 5"),
    ],
)
def test_impossible_requests_end_at_once_by_name(prompt: int, output: int, message: str) -> None:
    run = harness(num_pages=5, max_positions=48)
    run.submit(make_request(0, prompt, output), make_request(1, 4, 4))
    assert run.finished[0].reason == "error"
    assert message in run.finished[0].error
    run.run()
    assert run.finished[1].reason == "length"


def test_a_failing_row_ends_its_request_and_no_other() -> None:
    run = harness(acceptance=ONE_A_STEP, errors={1: "confidence is not finite"})
    run.submit(*(make_request(i, 3, 6) for i in range(3)))
    run.run()
    assert (run.finished[1].reason, run.finished[1].error) == ("error", "confidence is not finite")
    assert run.finished[1].num_output_tokens == 0
    for request_id in (0, 2):
        assert run.finished[request_id].reason == "length"
        run.check_equals_alone(request_id)


def test_plans_and_commits_alternate() -> None:
    run = harness()
    run.submit(make_request(0, 3, 6))
    plan = run.scheduler.schedule()
    with pytest.raises(RuntimeError, match="was not committed"):
        run.scheduler.schedule()
    outcome = run.executor.execute(plan)
    run.scheduler.commit(plan, outcome)
    with pytest.raises(RuntimeError, match="only the plan in flight"):
        run.scheduler.commit(plan, outcome)


@pytest.mark.parametrize("policy", ["baseline", "focus", "adaptive", "fast-dllm-v2"])
def test_steps_prepared_for_their_commits_are_the_same(policy: str) -> None:
    def plans(prepare: bool) -> tuple[list[list[list[int]]], dict[int, list[int]]]:
        run = harness(policy=policy, batch_size=17, num_pages=60)
        run.submit(*(make_request(i, 3 + 5 * i % 40, 4 + 7 * i % 30) for i in range(24)))
        steps = []
        while plan := run.step(run.scheduler.prepare_commit if prepare else None):
            block = plan.block
            arrays = (plan.rows, block.block_start, block.policy_code, plan.feed.num_fed)
            steps.append([array.tolist() for array in arrays])
        return steps, {i: end.output_ids.tolist() for i, end in run.finished.items()}

    assert plans(prepare=True) == plans(prepare=False)


def test_an_idle_scheduler_plans_nothing() -> None:
    run = harness()
    assert run.scheduler.schedule() is None
    assert not run.scheduler.has_work


# -- adaptive and ends of replayed requests -----------------------------------------------------


def test_adaptive_chooses_at_the_start_of_each_block() -> None:
    run = harness(policy="adaptive", batch_size=20, acceptance=ALL_AT_ONCE, num_pages=200)
    run.submit(*(make_request(i, 1, 7 if i else 31) for i in range(16)))
    plan = run.step()
    # Sixteen come at once: the batch is 16 for each of them, the first one too.
    assert plan.block.policy_code.tolist() == [POLICY_CODES["focus"]] * 16
    alone = [p for p in iter(run.step, None) if len(p.rows) == 1 and p.history[0] > 8]
    assert {int(p.block.policy_code[0]) for p in alone} == {POLICY_CODES["baseline"]}


def test_a_slot_is_reused_without_traces_of_its_last_request() -> None:
    run = harness(batch_size=1, acceptance=ONE_A_STEP)
    run.submit(*(make_request(i, 5 + i, 9) for i in range(4)))
    run.run()
    assert run.finish_order == [0, 1, 2, 3]
    for request_id in range(4):
        run.check_equals_alone(request_id)
    assert np.unique([int(p.rows[0]) for p in run.plans if len(p.rows)]).tolist() == [0]
