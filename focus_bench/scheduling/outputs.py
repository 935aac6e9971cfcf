"""How much of each running request's output is visible, and which outputs end in a step.

Slot by slot; knows no queue, no pages and no K/V. What ends an output is in ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from focus_bench.core.workload import TokenArray
from focus_bench.decoding.block_state import BlockState, BoolArray, IntArray, row_index
from focus_bench.decoding.masks import leading_true
from focus_bench.scheduling.ends import End, RepetitionGuard, first_end


@dataclass(frozen=True, kw_only=True)
class Scan:
    """One step's rows: output tokens `before` it, `visible` after it (both [n]), and rows' ends."""

    before: IntArray
    visible: IntArray
    ends: dict[int, End]


@dataclass(frozen=True, kw_only=True)
class _NewTokens:
    """Output tokens [t] that became visible, row after row: their rows, places and ids."""

    row: IntArray
    index: IntArray
    tokens: TokenArray

    def first(self, hits: BoolArray) -> dict[int, int]:
        """Row -> output tokens up to and including the first of its tokens among `hits[t]`."""
        at = np.flatnonzero(hits)[::-1]  # from the back, so that a row's first one stays
        return dict(zip(self.row[at].tolist(), (self.index[at] + 1).tolist(), strict=True))


class OutputScanner:
    """Scans each slot's output as its gapless decoded prefix grows, every token once."""

    def __init__(
        self, num_slots: int, *, stop_token_ids: tuple[int, ...], repetition_guard: bool
    ) -> None:
        self._stop_ids = np.array(stop_token_ids, dtype=np.int32)
        self._guard = RepetitionGuard(num_slots) if repetition_guard else None
        self._prompt_tokens = np.zeros(num_slots, dtype=np.int64)
        self._target_tokens = np.zeros(num_slots, dtype=np.int64)
        self._visible = np.zeros(num_slots, dtype=np.int64)

    def start(
        self, slot: int, *, prompt_tokens: int, target_tokens: int, output: TokenArray
    ) -> None:
        """A request takes the slot, with that output scanned already."""
        self._prompt_tokens[slot] = prompt_tokens
        self._target_tokens[slot] = target_tokens
        self._visible[slot] = len(output)
        if self._guard is not None:
            self._guard.reset(slot, output)

    def starts(self, slots: IntArray) -> IntArray:
        """Absolute positions of the slots' first output tokens."""
        return np.asarray(self._prompt_tokens[slots])

    def end_positions(self, slots: IntArray) -> IntArray:
        """Absolute positions behind the last output token that the slots' requests may have."""
        return np.asarray(self._prompt_tokens[slots] + self._target_tokens[slots])

    def scan(
        self, slots: IntArray, block: BlockState, traced: Mapping[int, tuple[int, str]]
    ) -> Scan:
        """Scan what became visible in the blocks [n] of the slots [n], ascending.

        `traced`: row -> (output tokens, reason) at which a replayed request ends.
        """
        index = row_index(slots)
        prefix = leading_true(block.decoded)
        offset = block.block_start - self._prompt_tokens[index]
        before = self._visible[index].copy()
        visible = np.maximum(offset + prefix, before)
        self._visible[index] = visible
        target = self._target_tokens[index]
        long = np.flatnonzero(visible >= target).tolist()
        length_at = {row: int(target[row]) for row in long}
        stop_at: dict[int, int] = {}
        repetition_at: dict[int, int] = {}
        if len(self._stop_ids) or self._guard is not None:
            new = _new_tokens(block, before, visible, offset)
            # (For a few ids a fifth of the time of `isin`.)
            stop_at = new.first((self._stop_ids[:, None] == new.tokens).any(axis=0))
            if self._guard is not None:
                repeats = self._guard.extend(slots[new.row], new.index, new.tokens)
                repetition_at = new.first(repeats)
        ends: dict[int, End] = {}
        for row in sorted({*length_at, *stop_at, *repetition_at, *traced}):
            end = first_end(
                stop_at=stop_at.get(row),
                length_at=length_at.get(row),
                repetition_at=repetition_at.get(row),
            )
            if row in traced and traced[row][0] <= visible[row]:
                replayed = End(output_tokens=traced[row][0], reason=traced[row][1])
                end = min(replayed, end or replayed, key=lambda e: e.output_tokens)
            if end is not None:
                ends[row] = end
        return Scan(before=before, visible=visible, ends=ends)


def _new_tokens(
    block: BlockState, before: IntArray, visible: IntArray, offset: IntArray
) -> _NewTokens:
    """Output tokens `before[n]` to `visible[n]` of each row, of whose blocks the first position is
    output token `offset[n]`.
    """
    count = visible - before
    row = np.repeat(np.arange(len(count)), count)
    index = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - before, count)
    tokens = block.tokens[row, index - offset[row]]
    return _NewTokens(row=row, index=index, tokens=tokens)
