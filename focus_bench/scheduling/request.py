"""A request while it is being served: its phase, its tokens so far and how it ended."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from focus_bench.core.workload import RequestSpec, TokenArray
from focus_bench.decoding.block_state import BlockState
from focus_bench.scheduling.pages import PagePool


class Phase(Enum):
    """Where a request stands."""

    WAITING = "waiting"  # holds nothing; `saved` is set if it was preempted while decoding
    PREFILL = "prefill"
    DECODE = "decode"
    SWAPPED = "swapped"  # preempted, pages and block state copied to the host
    FINISHED = "finished"


@dataclass(kw_only=True, eq=False)
class Request:
    """One request in the scheduler, equal to itself only.

    `order`: place in the queue (first come first served; a preempted request keeps it).
    `target_tokens`: output tokens it may have. `first_block_start`: absolute position of its first
    decode block. `closed_blocks`: token arrays [B] of its closed decode blocks. `prefilled` and
    `prefill_target`: tokens prefilled, and to prefill before decoding. `saved`: its block row while
    it holds no slot.
    """

    spec: RequestSpec
    order: int
    target_tokens: int
    first_block_start: int
    prefill_target: int
    phase: Phase = Phase.WAITING
    slot: int = -1
    prefilled: int = 0
    closed_blocks: list[TokenArray] = field(default_factory=list)
    saved: BlockState | None = None
    preemptions: int = 0

    @property
    def request_id(self) -> int:
        """The workload's id of this request."""
        return self.spec.request_id

    @property
    def prompt_remainder(self) -> TokenArray:
        """The P mod B prompt tokens that sit in the first decode block."""
        return self.spec.prompt_ids[self.first_block_start :]

    def max_tokens(self, block_length: int) -> int:
        """Cache positions that it can come to hold: whole blocks."""
        total = self.spec.num_prompt_tokens + self.target_tokens
        return -(-total // block_length) * block_length

    def prefill_tokens(self, start: int, count: int) -> TokenArray:
        """Tokens `start` to `start + count` of the full prompt blocks and the closed blocks."""
        if start + count <= self.first_block_start:
            return self.spec.prompt_ids[start : start + count]
        known = [self.spec.prompt_ids[: self.first_block_start], *self.closed_blocks]
        return np.concatenate(known)[start : start + count].astype(np.int32)

    def output_tokens(self, current_block: TokenArray | None, count: int) -> TokenArray:
        """The first `count` output tokens; `current_block` is the block not closed yet, [B]."""
        blocks = [*self.closed_blocks, *([] if current_block is None else [current_block])]
        if not blocks:
            return np.zeros(0, dtype=np.int32)
        skip = len(self.prompt_remainder)
        return np.concatenate(blocks)[skip : skip + count].astype(np.int32)


def target_tokens(request: RequestSpec, *, from_data: bool) -> int:
    """Output tokens that a request may have; `from_data`: its data set reply's length, capped
    (synthetic acceptance, algorithm section 4).
    """
    if from_data and request.reply_tokens is not None:
        return min(request.max_new_tokens, request.reply_tokens)
    return request.max_new_tokens


def why_impossible(
    request: Request, block_length: int, pool: PagePool, max_positions: int | None
) -> str:
    """Why a request can never be served, with the numbers; "" if it can be."""
    if request.spec.num_prompt_tokens < 1:
        return "the prompt is empty; allowed: at least 1 token"
    if request.target_tokens < 1:
        return f"max_new_tokens is {request.target_tokens}; allowed: at least 1"
    tokens = request.max_tokens(block_length)
    if max_positions is not None and tokens > max_positions:
        return f"needs {tokens} positions; allowed: {max_positions} of the model"
    pages = pool.pages_for(tokens)
    if pages > pool.num_pages:
        return (
            f"needs {pages} pages of {pool.page_size} tokens; allowed: "
            f"{pool.num_pages}, the whole pool"
        )
    return ""
