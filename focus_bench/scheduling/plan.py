"""What one step does (Plan) and what came of it (Outcome): the contract between scheduler and
executors. Holds arrays; decides nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from focus_bench.core.records import StepTiming
from focus_bench.decoding.block_state import BlockState, BoolArray, IntArray, TokenArray
from focus_bench.decoding.caching import Feed, plan_feed
from focus_bench.decoding.masks import count_true


@dataclass(frozen=True, kw_only=True)
class PrefillChunk:
    """Whole blocks of one request to prefill: tokens `start` to `start + len(token_ids)`."""

    request_id: int
    slot: int
    start: int
    token_ids: TokenArray


@dataclass(frozen=True, kw_only=True)
class Swap:
    """Copy a preempted request's pages to the host (out) or back (in), in token order."""

    request_id: int
    pages: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One step, in this order: swap out, swap in, prefill chunks, one forward of the decode rows.

    `rows[n]`: slots of the decode rows, ascending; `request_ids[n]`; `block`: their block state as
    the step begins (a copy). `refresh_prompt`: as in DecodeConfig. `page_table[slots, pages]`
    int32: row `slot` lists the request's pages in token order (read the entries that its length
    needs). `dropped_swaps`: requests whose host copies are no longer needed. `shifted_logits`: the
    logits of row i decode position i + 1 (Fast-dLLM v2). `history[n]`: tokens before the block.
    `preemptions`: requests that lost slot and pages for this step, those to recompute included.
    """

    index: int
    swap_out: tuple[Swap, ...]
    swap_in: tuple[Swap, ...]
    dropped_swaps: tuple[int, ...]
    prefill: tuple[PrefillChunk, ...]
    rows: IntArray
    request_ids: IntArray
    block: BlockState
    refresh_prompt: bool
    page_table: npt.NDArray[np.int32]
    shifted_logits: bool
    num_waiting: int
    pages_used: int
    preemptions: int

    @cached_property
    def feed(self) -> Feed:
        """What the decode rows feed: not asked for before prefill is under way."""
        return plan_feed(self.block, refresh_prompt=self.refresh_prompt)

    @property
    def history(self) -> IntArray:
        """Tokens before each row's block, [n]."""
        return self.block.block_start

    @property
    def prefill_tokens(self) -> int:
        """Tokens of all prefill chunks."""
        return sum(len(chunk.token_ids) for chunk in self.prefill)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an executor did with a plan; arrays follow the plan's rows.

    `kept[n,B]`: positions that went on past layer 1; `progress[n]`: block progress after the step;
    `decoded[n,B]`: positions decoded now, with `tokens[n,B]` read there; `evicting[n]`: rows for
    which importance was computed. `errors`: row -> why its request cannot go on (named in the
    report). `ends`: row -> (output tokens, reason) at which a replayed request ends.
    `carried_tokens[n]`: of a plan with shifted logits, the token that each commit pass gives the
    next block to begin with; -1 in other rows. `read_timing` may be asked until the step after the
    next begins.
    """

    kept: BoolArray
    progress: IntArray
    decoded: BoolArray
    tokens: TokenArray
    evicting: BoolArray
    read_timing: Callable[[], StepTiming]
    errors: Mapping[int, str] = field(default_factory=dict)
    ends: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    carried_tokens: TokenArray | None = None

    @cached_property
    def timing(self) -> StepTiming:
        """How long the step took, and its parts."""
        return self.read_timing()

    @cached_property
    def num_kept(self) -> IntArray:
        """Positions kept, [n]."""
        return count_true(self.kept)

    @cached_property
    def num_decoded(self) -> IntArray:
        """Positions decoded, [n]; carried tokens are none of them."""
        return count_true(self.decoded)

    @cached_property
    def num_carried(self) -> IntArray:
        """Tokens handed to next blocks, [n]."""
        if self.carried_tokens is None:
            return np.zeros_like(self.progress)
        return (self.carried_tokens >= 0).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class FinishedRequest:
    """A request that ended in this step, with its output (cut, as the user sees it).

    `read_output`: puts the output together, which is not needed before the next step.
    `ended_at`: output tokens up to the end; one more than in the output if a stop token ended it
    and is excluded.
    """

    request_id: int
    reason: str
    error: str
    num_output_tokens: int
    read_output: Callable[[], TokenArray]
    ended_at: int
    prompt_tokens: int
    max_new_tokens: int
    preemptions: int

    @cached_property
    def output_ids(self) -> TokenArray:
        """The output's tokens, [num_output_tokens]."""
        return self.read_output()


@dataclass(frozen=True, kw_only=True)
class CommitReport:
    """What a step meant for the requests: for recorders and progress displays.

    `visible_tokens[n]`: output tokens of each row that became visible (gapless prefix) in this
    step, cut at the request's end; `closed_rows[c]`: rows whose block closed, with the decode steps
    that it took, `closed_steps[c]`.
    """

    visible_tokens: IntArray
    closed_rows: IntArray
    closed_steps: IntArray
