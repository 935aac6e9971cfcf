"""Shifted logits in the scheduler: what a commit pass hands to the next block, and what it ends."""

import numpy as np
import pytest
from fakes import make_request, tokens_by_formula
from scheduling_cases import Harness, harness

from focus_bench.core.config import AcceptanceConfig

POLICIES = ("baseline", "fast-dllm-v2")
every_policy = pytest.mark.parametrize("policy", POLICIES)


def served(policy: str, prompt: int, output: int, **options: object) -> Harness:
    """One request, decoded position by position in blocks of 8."""
    acceptance = AcceptanceConfig(kind="synthetic", mean=1.0)
    run = harness(policy=policy, acceptance=acceptance, shifted_logits=True, **options)
    run.submit(make_request(0, prompt, output))
    return run.run()


def decoded_at(run: Harness) -> list[tuple[int, list[int]]]:
    """(block start, positions known when the step began) of every forward."""
    return [
        (int(plan.history[0]), np.flatnonzero(plan.block.decoded[0]).tolist()) for plan in run.plans
    ]


@every_policy
def test_a_block_begins_with_the_token_that_the_commit_pass_gave(policy: str) -> None:
    run = served(policy, prompt=6, output=12)
    known = decoded_at(run)
    # Prompt 0-5; 6 and 7 are decoded one by one, then the block is committed.
    assert known[:3] == [(0, [0, 1, 2, 3, 4, 5]), (0, list(range(7))), (0, list(range(8)))]
    assert [plan.feed.commit[0] for plan in run.plans[:4]] == [False, False, True, False]
    # The next block starts with position 0 known; nothing decoded it in a step.
    assert known[3] == (8, [0])
    assert run.plans[3].block.tokens[0, 0] == tokens_by_formula(0, np.array([8]))[0]
    assert run.plans[3].block.request_decoded[0] == 2
    # 12 output tokens end at position 17: 9 to 15 in steps, 16 from the commit pass, 17 in a step.
    assert len(run.plans) == 2 + 1 + 7 + 1 + 1
    assert run.finished[0].reason == "length"


@every_policy
@pytest.mark.parametrize("prompt", [8, 24])
def test_a_prompt_that_ends_with_a_block_has_its_last_block_committed(
    policy: str, prompt: int
) -> None:
    run = served(policy, prompt=prompt, output=2)
    prefilled = sum(count for _, count in run.prefilled[0])
    assert prefilled == prompt - 8
    forwards = [plan for plan in run.plans if len(plan.rows)]
    assert forwards[0].feed.commit.all()
    assert forwards[0].feed.positions.all()
    assert int(forwards[0].history[0]) == prompt - 8
    assert (int(forwards[1].history[0]), forwards[1].block.decoded[0].tolist()) == (
        prompt,
        [True] + [False] * 7,
    )
    assert len(forwards) == 2


@every_policy
def test_unshifted_models_prefill_the_whole_prompt(policy: str) -> None:
    run = harness(policy=policy)
    run.submit(make_request(0, 16, 2))
    run.run()
    assert sum(count for _, count in run.prefilled[0]) == 16
    assert run.plans[-1].block.decoded.sum() < 2


@every_policy
@pytest.mark.parametrize("prompt", [6, 8])
def test_the_last_output_token_may_be_a_carried_one(policy: str, prompt: int) -> None:
    run = served(policy, prompt=prompt, output=9 - prompt if prompt == 6 else 1)
    assert run.finished[0].reason == "length"
    assert run.finished[0].output_ids[-1] == tokens_by_formula(0, np.array([8]))[0]
    assert run.plans[-1].feed.commit.all()
    assert run.scheduler.pool.num_used == 0


@every_policy
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("prompt", [6, 8])
def test_a_carried_stop_token_ends_in_its_commit_pass(
    policy: str, include: bool, prompt: int
) -> None:
    stop = int(tokens_by_formula(0, np.array([8]))[0])
    run = served(policy, prompt, 20, stop_token_ids=(stop,), include_stop_token=include)
    end = run.finished[0]
    assert end.reason == "stop"
    assert end.ended_at == 9 - prompt
    assert end.num_output_tokens == 8 - prompt + include
    assert run.plans[-1].feed.commit.all()


@every_policy
def test_a_repetition_may_end_with_a_carried_token(policy: str) -> None:
    # Equal tokens from the first output position, 9, on: 96 of them end at position 104, which is
    # the first of a block and carried.
    run = harness(
        policy=policy,
        shifted_logits=True,
        acceptance=AcceptanceConfig(kind="synthetic", mean=4.0),
        tokens_of=lambda request, positions: np.full(len(positions), 5, dtype=np.int32),
    )
    run.submit(make_request(0, 9, 300))
    run.run()
    assert (run.finished[0].reason, run.finished[0].num_output_tokens) == ("repetition", 96)
    assert run.plans[-1].feed.commit.all()


@every_policy
def test_an_error_in_a_commit_pass_keeps_what_was_out(policy: str) -> None:
    run = harness(policy=policy, shifted_logits=True)
    run.submit(make_request(0, 5, 20))
    while not (run.plans and run.plans[-1].feed.commit.any()):
        run.executor.errors = {0: "confidence is not finite"} if run.visible[0] >= 3 else {}
        run.step()
    assert run.finished[0].reason == "error"
    assert run.finished[0].num_output_tokens == 3
