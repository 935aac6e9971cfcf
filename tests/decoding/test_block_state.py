"""Block state: its transitions and copies of rows."""

import dataclasses

import numpy as np
from decoding_cases import positions, random_blocks
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.decoding.block_state import BlockState, row_index
from focus_bench.decoding.caching import Feed


@given(case=random_blocks())
def test_rows_taken_are_copies_and_come_back(case: tuple[BlockState, Feed, np.ndarray]) -> None:
    block = case[0]
    rows = np.arange(block.num_rows)[::-1]
    copy = block.take(rows)
    for f in dataclasses.fields(block):
        value = getattr(copy, f.name)
        assert np.array_equal(value, getattr(block, f.name)[rows])
        assert not np.shares_memory(value, getattr(block, f.name))
    target = BlockState.empty(block.num_rows + 2, block.block_length)
    target.put(rows + 2, copy)
    for f in dataclasses.fields(block):
        assert np.array_equal(getattr(target, f.name)[2:], getattr(block, f.name))
        assert not getattr(target, f.name)[:2].any()


@given(case=random_blocks(max_rows=6), bounds=st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_rows_that_follow_on_one_another_are_copied_alike(
    case: tuple[BlockState, Feed, np.ndarray], bounds: tuple[int, int]
) -> None:
    block = case[0]
    rows = np.arange(min(bounds), max(bounds) + 1)[: block.num_rows]
    rows = rows[rows < block.num_rows]
    index = row_index(rows)
    assert isinstance(index, slice) == (len(rows) > 0)
    for f in dataclasses.fields(block):
        value = getattr(block.take(index), f.name)
        assert np.array_equal(value, getattr(block, f.name)[rows])
        assert not np.shares_memory(value, getattr(block, f.name))


def test_rows_with_gaps_are_gathered() -> None:
    assert row_index(np.array([0, 2, 3])).tolist() == [0, 2, 3]
    assert row_index(np.array([4, 5, 6])) == slice(4, 7)


def test_blocks_start_in_several_rows_at_once() -> None:
    state = BlockState.empty(4, 4)
    for f in dataclasses.fields(state):
        getattr(state, f.name)[:] = 1
    state.start_blocks(
        np.array([3, 1]),
        block_start=np.array([8, 12]),
        policy_code=3,
        behind_end=np.array([0, 2]),
    )
    state.carry_over(np.array([3, 1]), np.array([-1, 9], dtype=np.int32))
    assert state.block_start.tolist() == [1, 12, 1, 8]
    assert state.block_index.tolist() == [1, 2, 1, 2]
    assert state.behind_end.tolist() == [1, 2, 1, 0]
    assert state.policy_code.tolist() == [1, 3, 1, 3]
    assert state.progress.tolist() == [1, -1, 1, -1]
    assert state.tokens[[1, 3]].tolist() == [[9, 0, 0, 0], [0, 0, 0, 0]]
    assert [positions(row) for row in state.decoded[[1, 3]]] == [[0], []]
    assert state.decoded[[0, 2]].all()


def test_a_slot_keeps_nothing_of_its_last_request() -> None:
    state = BlockState.empty(2, 4)
    for f in dataclasses.fields(state):
        getattr(state, f.name)[:] = 1
    state.start_request(1, 9)
    state.start_block(1, block_start=8, policy_code=3, known_tokens=np.array([5], np.int32))
    fresh = {
        "request_key": 9, "block_index": 0, "block_start": 8, "block_steps": 0, "block_decoded": 0,
        "request_steps": 0, "request_decoded": 0, "forwards": 0, "progress": -1, "policy_code": 3,
        "carried_token": -1,
    }  # fmt: skip
    for name, value in fresh.items():
        assert getattr(state, name).tolist() == [1, value], name
    assert state.tokens[1].tolist() == [5, 0, 0, 0]
    assert positions(state.decoded[1]) == [0]
    assert positions(state.masked[1]) == [1, 2, 3]
    assert state.uncached[1].all()
    assert state.tokens[0].tolist() == [1, 1, 1, 1]


def test_a_recorded_step_counts_and_writes_only_what_it_decoded() -> None:
    state = BlockState.empty(3, 4)
    for slot in range(3):
        state.start_request(slot, slot)
        state.start_block(
            slot, block_start=0, policy_code=0, known_tokens=np.array([7], dtype=np.int32)
        )
    decoded_now = np.array([[False, True, False, True], [False] * 4])
    uncached = np.array([[False, True, True, True], [True, False, True, True]])
    rows, commit = np.array([2, 0]), np.array([False, True])
    after = state.take(rows)
    after.record_forward(commit=commit, uncached=uncached)
    assert after.forwards.tolist() == [1, 1]
    assert not state.forwards.any()
    after.record_decoded(
        decoded_now,
        np.array([[91, 92, 93, 94], [95, 96, 97, 98]], dtype=np.int32),
        np.array([3, 1]),
        commit=commit,
    )
    state.put(rows, after)
    assert state.tokens.tolist() == [[7, 0, 0, 0], [7, 0, 0, 0], [7, 92, 0, 94]]
    assert [positions(row) for row in state.decoded] == [[0], [0], [0, 1, 3]]
    assert np.array_equal(state.uncached[[2, 0]], uncached)
    assert state.uncached[1].all()
    assert state.progress.tolist() == [-1, -1, 3]
    # A commit pass is a forward and no decode step.
    assert state.forwards.tolist() == [1, 0, 1]
    assert state.block_steps.tolist() == state.request_steps.tolist() == [0, 0, 1]
    assert state.block_decoded.tolist() == state.request_decoded.tolist() == [0, 0, 2]
