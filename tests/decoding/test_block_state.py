"""Block state: its transitions, copies of rows, and masks as words."""

import dataclasses

import numpy as np
from decoding_cases import positions, random_blocks
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.decoding.block_state import BlockState, pack_masks, unpack_masks
from focus_bench.decoding.caching import Feed


@given(length=st.integers(1, 64), rows=st.integers(0, 5), seed=st.integers(0, 2**32))
def test_packed_masks_come_back(length: int, rows: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random((rows, length)) < 0.5
    words = pack_masks(mask)
    assert words.dtype == np.uint64
    assert words.shape == (rows,)
    assert [int(w) for w in words] == [sum(1 << p for p in positions(row)) for row in mask]
    assert np.array_equal(unpack_masks(words, length), mask)


def test_the_highest_bit_of_a_word() -> None:
    mask = np.zeros((1, 64), dtype=bool)
    mask[0, 63] = True
    assert int(pack_masks(mask)[0]) == 2**63
    assert int(pack_masks(np.ones((1, 64), dtype=bool))[0]) == 2**64 - 1


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
    state.record_step(
        np.array([2, 0]),
        commit=np.array([False, True]),
        decoded_now=decoded_now,
        tokens=np.array([[91, 92, 93, 94], [95, 96, 97, 98]], dtype=np.int32),
        uncached=uncached,
        progress=np.array([3, 1]),
    )
    assert state.tokens.tolist() == [[7, 0, 0, 0], [7, 0, 0, 0], [7, 92, 0, 94]]
    assert [positions(row) for row in state.decoded] == [[0], [0], [0, 1, 3]]
    assert np.array_equal(state.uncached[[2, 0]], uncached)
    assert state.uncached[1].all()
    assert state.progress.tolist() == [1, -1, 3]
    # A commit pass is a forward and no decode step.
    assert state.forwards.tolist() == [1, 0, 1]
    assert state.block_steps.tolist() == state.request_steps.tolist() == [0, 0, 1]
    assert state.block_decoded.tolist() == state.request_decoded.tolist() == [0, 0, 2]
