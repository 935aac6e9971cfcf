"""Where a request's output ends: stop token, length, repetition, in that order at every length.

The output is scanned token by token over its decoded prefix without gaps, so the end does not
depend on how many tokens arrive in one step (algorithm sections 1 and 7; paper F.1).
"""

from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from focus_bench.core.workload import TokenArray
from focus_bench.decoding.block_state import BoolArray, IntArray

REPETITION_WINDOW = 32
REPETITION_WINDOWS = 3
_REMEMBERED = 128  # tokens of an output: a window, and those that one step can add to it


@dataclass(frozen=True, kw_only=True)
class End:
    """The output ends after `output_tokens` tokens for `reason`."""

    output_tokens: int
    reason: str


class RepetitionGuard:
    """Per-slot memory that finds three equal windows of 32 output tokens at the end of an output.

    It knows of each output the last tokens, and where it last differed from itself 32 tokens
    earlier: three equal windows are 64 tokens without such a difference.
    """

    def __init__(self, num_slots: int) -> None:
        self._recent = np.full((num_slots, _REMEMBERED), -1, dtype=np.int32)
        self._differed = np.full(num_slots, -1, dtype=np.int64)

    def reset(self, slot: int, output: TokenArray) -> None:
        """A request takes the slot with that output so far."""
        index = np.arange(len(output))
        last = index[-_REMEMBERED:]
        self._recent[slot, last % _REMEMBERED] = output[last]
        window = REPETITION_WINDOW
        differs = index[window:][output[window:] != output[:-window]]
        self._differed[slot] = differs[-1] if len(differs) else min(len(output), window) - 1

    def extend(self, slots: IntArray, index: IntArray, tokens: TokenArray) -> BoolArray:
        """Add output tokens; says of each [t] whether a repetition is complete with it.

        `slots[t]`, ascending, and `index[t]`, each token's place in its slot's output: those of one
        slot follow on what it has, at most 96 in a call.
        """
        self._recent[slots, index % _REMEMBERED] = tokens
        earlier = self._recent[slots, (index - REPETITION_WINDOW) % _REMEMBERED]
        same = (earlier == tokens) & (index >= REPETITION_WINDOW)
        # The last difference up to each token: a running maximum that starts anew in each slot.
        of_slot = slots << 32
        differed = np.where(same, self._differed[slots], index)
        differed = np.maximum.accumulate(of_slot + differed) - of_slot
        self._differed[slots] = differed  # a slot's last token comes last, and stays
        return np.asarray(index - differed >= REPETITION_WINDOW * (REPETITION_WINDOWS - 1))


def first_end(
    *, stop_at: int | None, length_at: int | None, repetition_at: int | None
) -> End | None:
    """The earliest of the three output lengths; at equal lengths stop, then length, first."""
    named = ((stop_at, "stop"), (length_at, "length"), (repetition_at, "repetition"))
    candidates = [(at, reason) for at, reason in named if at is not None]
    if not candidates:
        return None
    output_tokens, reason = min(candidates, key=itemgetter(0))
    return End(output_tokens=output_tokens, reason=reason)
