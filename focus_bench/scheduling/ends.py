"""Where a request's output ends: stop token, length, repetition, in that order at every length.

The output is scanned token by token over its decoded prefix without gaps, so the end does not
depend on how many tokens arrive in one step (algorithm sections 1 and 7; paper F.1).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.core.workload import TokenArray

REPETITION_WINDOW = 32
REPETITION_WINDOWS = 3


@dataclass(frozen=True, kw_only=True)
class End:
    """The output ends after `output_tokens` tokens for `reason`."""

    output_tokens: int
    reason: str


class RepetitionGuard:
    """Per-slot memory that finds three equal windows of 32 output tokens at the end of an output.

    It counts, token by token, how long the output has equalled itself 32 tokens earlier: three
    equal windows are a run of 64.
    """

    def __init__(self, num_slots: int) -> None:
        self._recent = np.full((num_slots, REPETITION_WINDOW), -1, dtype=np.int32)
        self._seen = np.zeros(num_slots, dtype=np.int64)
        self._run = np.zeros(num_slots, dtype=np.int64)

    def reset(self, slot: int, output: TokenArray) -> None:
        """A request takes the slot with that output so far."""
        self._recent[slot] = -1
        self._seen[slot] = 0
        self._run[slot] = 0
        self.extend(slot, output)

    def extend(self, slot: int, tokens: TokenArray) -> int | None:
        """Add output tokens; returns the output length at which a repetition is complete."""
        needed = REPETITION_WINDOW * (REPETITION_WINDOWS - 1)
        recent = self._recent[slot]
        seen, run = int(self._seen[slot]), int(self._run[slot])
        found = None
        for token in tokens.tolist():
            place = seen % REPETITION_WINDOW
            run = run + 1 if seen >= REPETITION_WINDOW and recent[place] == token else 0
            recent[place] = token
            seen += 1
            if found is None and run >= needed:
                found = seen
        self._seen[slot], self._run[slot] = seen, run
        return found


def first_end(
    *, stop_at: int | None, length_at: int | None, repetition_at: int | None
) -> End | None:
    """The earliest of the three output lengths; at equal lengths stop, then length, first."""
    candidates = [
        End(output_tokens=at, reason=reason)
        for at, reason in (
            (stop_at, "stop"),
            (length_at, "length"),
            (repetition_at, "repetition"),
        )
        if at is not None
    ]
    return min(candidates, key=lambda end: end.output_tokens, default=None)


def first_stop(
    tokens: npt.NDArray[np.int32], new: npt.NDArray[np.bool_], stop_ids: npt.NDArray[np.int32]
) -> npt.NDArray[np.int64]:
    """Column of the first stop token among the `new[n,B]` columns of `tokens[n,B]`; -1 if none."""
    hits = new & np.isin(tokens, stop_ids)
    return np.where(hits.any(axis=1), hits.argmax(axis=1), -1)
