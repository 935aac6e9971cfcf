"""Feeding and freezing: worked vectors, sub-blocks, and the policy table."""

import numpy as np
import pytest
from decoding_cases import bits, block_of, positions
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.core.config import POLICY_NAMES
from focus_bench.core.errors import UsageError
from focus_bench.decoding.block_state import BlockState
from focus_bench.decoding.caching import freeze, plan_feed
from focus_bench.decoding.policies import (
    POLICIES,
    POLICY_CODES,
    code_at_block_start,
    get_policy,
)

NEIGHBOR_POLICIES = ("delayed-cache-neighbor", "focus", "focus-fixed", "ideal")


def uncached_after(row: str, policy: str, uncached: str | None = None) -> list[int]:
    block = block_of(row, policy=policy, uncached=None if uncached is None else (uncached,))
    return positions(freeze(block)[0])


@pytest.mark.parametrize("policy", NEIGHBOR_POLICIES)
def test_worked_vector_of_freezing(policy: str) -> None:
    assert uncached_after("DDMDMMDD", policy) == [1, 2, 3, 4, 5]


def test_delayed_cache_freezes_without_a_neighbour() -> None:
    assert uncached_after("DDMDMMDD", "delayed-cache") == [2, 4, 5]


@pytest.mark.parametrize("policy", ["baseline", "fast-dllm-v2"])
def test_policies_without_cache_freeze_nothing(policy: str) -> None:
    assert uncached_after("DDDDDDDD", policy) == list(range(8))


@pytest.mark.parametrize("policy", ["delayed-cache", *NEIGHBOR_POLICIES])
def test_the_last_position_has_no_neighbour_to_wait_for(policy: str) -> None:
    assert uncached_after("MMMD", policy) == [0, 1, 2]
    assert uncached_after("DDDD", policy) == []
    assert uncached_after("D", policy) == []


def test_frozen_positions_stay_frozen() -> None:
    assert uncached_after("DDMM", "focus", uncached=".xxx") == [1, 2, 3]


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("delayed-cache", [3, 4, 5, 6, 7]),
        ("delayed-cache-neighbor", [2, 3, 4, 5, 6, 7]),
        ("baseline", list(range(8))),
    ],
)
def test_prompt_tokens_of_the_first_block_freeze_in_its_first_step(
    policy: str, left: list[int]
) -> None:
    block = BlockState.empty(1, 8)
    block.start_request(0, 7)
    block.start_block(
        0,
        block_start=16,
        policy_code=POLICY_CODES[policy],
        known_tokens=np.array([5, 6, 7], dtype=np.int32),
    )
    assert positions(plan_feed(block).positions[0]) == list(range(8))
    assert positions(plan_feed(block).decodable[0]) == [3, 4, 5, 6, 7]
    assert positions(freeze(block)[0]) == left


def test_commit_pass_feeds_what_is_not_frozen() -> None:
    block = block_of("DDDDDDDD", "DDDDDDDM", uncached=("..x....x", "......xx"))
    feed = plan_feed(block)
    assert feed.commit.tolist() == [True, False]
    assert positions(feed.positions[0]) == [2, 7]
    assert not feed.decodable[0].any()
    assert positions(feed.decodable[1]) == [7]


def test_nothing_left_to_feed_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="no position left"):
        plan_feed(block_of("DDDD", uncached=("....",)))


def test_rows_of_one_batch_follow_their_own_policies() -> None:
    row, policies = "DDMD", ("baseline", "delayed-cache", "focus")
    block = block_of(*[row] * 3)
    block.policy_code[:] = [POLICY_CODES[p] for p in policies]
    assert [positions(mask) for mask in freeze(block)] == [[0, 1, 2, 3], [2], [1, 2]]


# -- sub-blocks (Fast-dLLM v2) -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "steps", "fed", "decodable"),
    [
        # The block's first forward takes the whole block, whatever is decoded in it.
        ("M" * 24, 0, range(24), range(8)),
        ("DD" + "M" * 22, 0, range(24), range(2, 8)),
        # A sub-block whose first position is a mask still takes the whole block.
        ("MD" + "M" * 22, 1, range(24), [0, *range(2, 8)]),
        # Otherwise the sub-block alone.
        ("DM" + "M" * 22, 1, range(8), range(1, 8)),
        ("D" * 7 + "M" * 17, 2, range(8), [7]),
        # The next sub-block in order, although a later one could go on.
        ("D" * 8 + "M" * 16, 3, range(24), range(8, 16)),
        ("D" * 8 + "DMMMMMMM" + "D" * 8, 3, range(8, 16), range(9, 16)),
        ("D" * 16 + "DDDMDDDD", 4, range(16, 24), [19]),
        # Commit pass.
        ("D" * 24, 5, range(24), []),
    ],
)
def test_sub_block_feeding(row: str, steps: int, fed: range, decodable: range) -> None:
    block = block_of(row, policy="fast-dllm-v2", steps=steps, decoded=steps)
    feed = plan_feed(block)
    assert positions(feed.positions[0]) == list(fed)
    assert positions(feed.decodable[0]) == list(decodable)
    assert feed.commit.tolist() == ["M" not in row]


@given(data=st.data())
def test_sub_blocks_of_any_block(data: st.DataObject) -> None:
    length = data.draw(st.sampled_from((4, 8, 13, 32)))
    decoded = bits(data.draw, length)
    steps = data.draw(st.integers(0, 3))
    row = "".join("D" if d else "M" for d in decoded)
    other = block_of(row, row, policy="fast-dllm-v2", steps=steps)
    other.policy_code[1] = POLICY_CODES["baseline"]
    feed = plan_feed(other)
    masked = [p for p, c in enumerate(row) if c == "M"]
    if masked:
        start = masked[0] - masked[0] % 8
        sub = [p for p in range(start, start + 8) if p < length]
        alone = steps > 0 and row[start] == "D"
        assert positions(feed.positions[0]) == (sub if alone else list(range(length)))
        assert positions(feed.decodable[0]) == [p for p in sub if p in masked]
    else:
        assert positions(feed.positions[0]) == list(range(length))
    # A row of another policy in the same batch is not touched.
    assert positions(feed.positions[1]) == list(range(length))
    assert positions(feed.decodable[1]) == masked


# -- the table -----------------------------------------------------------------------------------


def test_the_table_has_the_policies_that_the_configuration_allows() -> None:
    assert set(POLICIES) == set(POLICY_NAMES)
    assert len(set(POLICY_CODES.values())) == len(POLICIES)


def test_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"--policy: 'fokus' .* allowed: baseline, .*focus"):
        get_policy("fokus")


def test_only_the_policy_that_feeds_whole_blocks_may_recompute() -> None:
    assert {name for name, p in POLICIES.items() if p.may_recompute} == {"baseline"}


@pytest.mark.parametrize(("batch", "chosen"), [(1, "baseline"), (15, "baseline"), (16, "focus")])
def test_adaptive_chooses_by_the_running_batch(batch: int, chosen: str) -> None:
    code = code_at_block_start(get_policy("adaptive"), running_batch=batch, focus_min_batch=16)
    assert code == POLICY_CODES[chosen]


def test_other_policies_do_not_look_at_the_batch() -> None:
    for name in set(POLICIES) - {"adaptive"}:
        codes = {
            code_at_block_start(get_policy(name), running_batch=n, focus_min_batch=16)
            for n in (1, 100)
        }
        assert codes == {POLICY_CODES[name]}
