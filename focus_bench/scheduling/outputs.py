"""How much of each running request's output is visible, and which outputs end in a step.

Slot by slot; knows no queue, no pages and no K/V. What ends an output is in ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from focus_bench.core.workload import TokenArray
from focus_bench.decoding.block_state import BlockState, BoolArray, IntArray
from focus_bench.scheduling.ends import End, RepetitionGuard, first_end, first_stop


@dataclass(frozen=True, kw_only=True)
class Scan:
    """One step's rows: output tokens `before` it, `visible` after it (both [n]), and rows' ends."""

    before: IntArray
    visible: IntArray
    ends: dict[int, End]


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

    def scan(
        self, rows: IntArray, state: BlockState, traced: Mapping[int, tuple[int, str]]
    ) -> Scan:
        """Scan what became visible in the blocks of `rows` (slots [n]).

        `traced`: row -> (output tokens, reason) at which a replayed request ends.
        """
        decoded = state.decoded[rows]
        prefix = np.where(decoded.all(axis=1), state.block_length, decoded.argmin(axis=1))
        offset = state.block_start[rows] - self._prompt_tokens[rows]
        before = self._visible[rows]
        visible = np.maximum(offset + prefix, before)
        self._visible[rows] = visible
        target = self._target_tokens[rows]
        length_ends = visible >= target
        stop_column = np.full(len(rows), -1, dtype=np.int64)
        if len(self._stop_ids) and len(rows):
            columns = np.arange(state.block_length)
            first_new = (before - offset)[:, None]
            new: BoolArray = (columns >= first_new) & (columns < prefix[:, None])
            stop_column = first_stop(state.tokens[rows], new, self._stop_ids)
        repetition = self._repetitions(rows, state, before - offset, visible - offset)
        ends: dict[int, End] = {}
        suspects = np.flatnonzero(length_ends | (stop_column >= 0)).tolist()
        for row in sorted({*suspects, *repetition, *traced}):
            end = first_end(
                stop_at=int(offset[row] + stop_column[row]) + 1 if stop_column[row] >= 0 else None,
                length_at=int(target[row]) if length_ends[row] else None,
                repetition_at=repetition.get(row),
            )
            if row in traced and traced[row][0] <= visible[row]:
                replayed = End(output_tokens=traced[row][0], reason=traced[row][1])
                end = min(replayed, end or replayed, key=lambda e: e.output_tokens)
            if end is not None:
                ends[row] = end
        return Scan(before=before, visible=visible, ends=ends)

    def _repetitions(
        self, rows: IntArray, state: BlockState, first: IntArray, last: IntArray
    ) -> dict[int, int]:
        """Rows whose new columns `first` to `last` complete a repetition -> at which length."""
        found: dict[int, int] = {}
        if self._guard is None:
            return found
        for row in np.flatnonzero(last > first).tolist():
            slot = int(rows[row])
            length = self._guard.extend(slot, state.tokens[slot, int(first[row]) : int(last[row])])
            if length is not None:
                found[row] = length
        return found
