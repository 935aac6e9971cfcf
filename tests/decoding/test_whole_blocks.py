"""Whole blocks, driven step by step: invariants that every policy keeps from start to commit."""

import dataclasses

import numpy as np
import pytest
from decoding_cases import (
    BLOCK_POLICIES,
    Step,
    one_request,
    positions,
    rules_for,
    run_block,
    step_block,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_bench.core.config import UNMASKING_STRATEGIES, AcceptanceConfig, ImportanceConfig
from focus_bench.decoding.block_state import BlockState
from focus_bench.decoding.policies import POLICIES, POLICY_CODES, EvictionKind, Freezing

LENGTHS = (1, 2, 4, 8, 13, 32)


def check_block(steps: list[Step], policy: str, known: int) -> None:
    """Everything that holds for one sequence's block under any policy."""
    length = steps[0].block.block_length
    freezing = POLICIES[policy].freezing
    decoded = set(range(known))
    frozen: set[int] = set()
    processed: set[int] = set()
    fed_when_ready = dict.fromkeys(range(length), 0)
    progress = -1
    assert len(steps) - 1 <= length - known
    assert [bool(s.feed.commit[0]) for s in steps] == [False] * (len(steps) - 1) + [True]
    for number, step in enumerate(steps):
        fed, kept = set(positions(step.feed.positions[0])), set(positions(step.kept[0]))
        now = set(positions(step.decoded[0]))
        masked = set(range(length)) - decoded
        assert set(positions(step.block.decoded[0])) == decoded
        if policy != "fast-dllm-v2":
            assert fed == set(range(length)) - frozen
            assert set(positions(step.feed.decodable[0])) == masked
        assert number > 0 or fed == set(range(length))
        assert kept <= fed
        assert fed & decoded <= kept
        assert now <= kept & masked & set(positions(step.feed.decodable[0]))
        if masked:
            assert kept & masked
            assert now, "every decode step decodes at least one position"
        else:
            assert kept == fed
        if POLICIES[policy].eviction is EvictionKind.NONE:
            assert kept == fed
        processed |= kept
        after = int(step.progress[0])
        assert after == max(progress, *kept)
        assert set(range(after + 1)) <= processed, "a position below progress was never processed"
        progress = after
        ready = {
            p
            for p in decoded
            if freezing is Freezing.DECODED or p == length - 1 or p + 1 in decoded
        }
        for p in fed & ready:
            fed_when_ready[p] += 1
        if freezing is not Freezing.NONE:
            frozen |= ready
        assert int(step.block.block_steps[0]) == number
        assert int(step.block.block_decoded[0]) == len(decoded) - known
        decoded |= now
    assert decoded == set(range(length))
    assert progress == length - 1
    if freezing is not Freezing.NONE:
        # Fed exactly once in its final state, its neighbour's included, and never again.
        assert set(fed_when_ready.values()) == {1}
    else:
        assert positions(steps[-1].feed.positions[0]) == list(range(length))


@settings(max_examples=60)
@given(
    length=st.sampled_from(LENGTHS),
    known=st.integers(0, 31),
    strategy=st.sampled_from(UNMASKING_STRATEGIES),
    alpha=st.sampled_from((1.0, 1.5, 2.1)),
    retain=st.integers(1, 8),
    select=st.sampled_from(("top", "random", "bottom")),
    seed=st.integers(0, 2**32),
)
@pytest.mark.parametrize("policy", BLOCK_POLICIES)
def test_blocks_under_acceptance_by_confidence(
    policy: str,
    length: int,
    known: int,
    strategy: str,
    alpha: float,
    retain: int,
    select: str,
    seed: int,
) -> None:
    known %= length
    rules = rules_for(
        policy,
        length,
        seed=seed,
        alpha=alpha,
        retain=retain,
        select=select,
        unmasking_strategy=strategy,
    )
    noise = np.random.default_rng(seed)
    block = one_request(length, key=seed)
    check_block(run_block(rules, block, known=known, noise=noise), policy, known)
    check_block(run_block(rules, block, noise=noise), policy, 0)


@settings(max_examples=60)
@given(
    length=st.sampled_from(LENGTHS),
    known=st.integers(0, 31),
    mean=st.sampled_from((1.0, 1.7, 2.351, 9.0)),
    scatter=st.sampled_from((0.0, 1.0, 8.0)),
    seed=st.integers(0, 2**32),
)
@pytest.mark.parametrize("policy", BLOCK_POLICIES)
def test_blocks_under_synthetic_acceptance(
    policy: str, length: int, known: int, mean: float, scatter: float, seed: int
) -> None:
    known %= length
    acceptance = AcceptanceConfig(kind="synthetic", mean=mean, scatter=scatter)
    rules = rules_for(policy, length, acceptance=acceptance, seed=seed)
    block = one_request(length, key=3)
    check_block(run_block(rules, block, known=known), policy, known)
    check_block(run_block(rules, block), policy, 0)


def test_each_step_of_the_baseline_feeds_the_whole_block() -> None:
    acceptance = AcceptanceConfig(kind="synthetic", mean=2.351)
    steps = run_block(rules_for("baseline", 32, acceptance=acceptance), one_request(32))
    assert {int(s.feed.positions.sum()) for s in steps} == {32}
    assert {int(s.kept.sum()) for s in steps} == {32}


def test_sequential_decoding_of_a_block_is_known_in_full() -> None:
    """DC and DC+ under `sequential`, B = 4: fed positions of each forward, by hand."""
    noise = np.random.default_rng(0)
    fed = {}
    for policy in ("delayed-cache", "delayed-cache-neighbor"):
        rules = rules_for(policy, 4, unmasking_strategy="sequential")
        steps = run_block(rules, one_request(4), noise=noise)
        fed[policy] = [positions(s.feed.positions[0]) for s in steps]
    assert fed["delayed-cache"] == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    # A token waits one forward more for its right neighbour, but for the last position.
    assert fed["delayed-cache-neighbor"] == [
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [1, 2, 3],
        [2, 3],
    ]


@settings(max_examples=40)
@given(
    keys=st.lists(st.integers(0, 1000), min_size=1, max_size=5, unique=True),
    scatter=st.sampled_from((0.0, 2.0)),
    steps=st.integers(1, 25),
)
@pytest.mark.parametrize("policy", [p for p in BLOCK_POLICIES if p != "ideal"])
def test_a_batch_decodes_each_request_as_alone(
    policy: str, keys: list[int], scatter: float, steps: int
) -> None:
    """Synthetic streams are keyed by request: the batch around a row changes nothing."""
    acceptance = AcceptanceConfig(kind="synthetic", mean=2.0, scatter=scatter)
    rules = rules_for(policy, 8, acceptance=acceptance, select="random", retain=2)

    def run(members: list[int]) -> list[list[tuple[bytes, ...]]]:
        state = BlockState.empty(len(members), 8)
        for row, key in enumerate(members):
            state.start_request(row, key)
            state.start_block(
                row,
                block_start=0,
                policy_code=POLICY_CODES[policy],
                known_tokens=np.zeros(key % 8, dtype=np.int32),
            )
        logs: list[list[tuple[bytes, ...]]] = [[] for _ in members]
        for _ in range(steps):
            step = step_block(rules, state, None)
            for row in range(len(members)):
                masks = (step.feed.positions[row], step.kept[row], step.decoded[row])
                logs[row].append(tuple(m.tobytes() for m in masks))
                if step.feed.commit[row]:
                    state.start_block(
                        row,
                        block_start=int(state.block_start[row]) + 8,
                        policy_code=POLICY_CODES[policy],
                        known_tokens=np.zeros(0, dtype=np.int32),
                    )
        return logs

    together = run(keys)
    for row, key in enumerate(keys):
        assert run([key])[0] == together[row]


def test_eviction_processes_fewer_positions_than_the_delayed_cache() -> None:
    """Shallow layers feed the same positions; deep ones get fewer, the baseline's most."""
    acceptance = AcceptanceConfig(kind="synthetic", mean=2.351)
    importance = ImportanceConfig(kind="synthetic", tau=1.0, noise=0.1)
    deep = {}
    for policy in ("baseline", "delayed-cache-neighbor", "focus", "ideal"):
        rules = rules_for(policy, 32, acceptance=acceptance, importance=importance)
        block, total = one_request(32), 0
        for _ in range(50):
            total += sum(int(s.kept.sum()) for s in run_block(rules, block))
        deep[policy] = total / (50 * 32)
    ordered = [deep[p] for p in ("ideal", "focus", "delayed-cache-neighbor", "baseline")]
    assert ordered == sorted(ordered)
    assert deep["focus"] < deep["delayed-cache-neighbor"] / 2


def test_steps_do_not_touch_the_block_they_are_given() -> None:
    rules = rules_for("focus", 8, acceptance=AcceptanceConfig(kind="synthetic", mean=2.0))
    block = one_request(8)
    block.start_block(0, block_start=0, policy_code=3, known_tokens=np.zeros(2, np.int32))
    before = block.take(np.array([0]))
    step = step_block(rules, block.take(np.array([0])), None)
    assert step.decoded.any()
    for f in dataclasses.fields(block):
        assert np.array_equal(getattr(block, f.name), getattr(before, f.name))
