"""The scheduler: which requests run, on which pages, and what a step's outcome means for them.

First come first served, by iteration (algorithm section 5). Knows no tensors, no time model and no
scores: executors turn its plans into outcomes.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from focus_bench.core.config import DecodeConfig, SchedulerConfig
from focus_bench.core.workload import RequestSpec
from focus_bench.decoding.block_state import BlockState, IntArray, TokenArray, row_index
from focus_bench.decoding.caching import freeze
from focus_bench.decoding.masks import leading_true
from focus_bench.decoding.policies import code_at_block_start, get_policy
from focus_bench.scheduling.outputs import OutputScanner
from focus_bench.scheduling.pages import PagePool
from focus_bench.scheduling.plan import (
    CommitReport,
    FinishedRequest,
    Outcome,
    Plan,
    PrefillChunk,
    Swap,
)
from focus_bench.scheduling.request import Phase, Request, target_tokens, why_impossible
from focus_bench.scheduling.slots import Slots

_Positions = TypeVar("_Positions", int, IntArray)
_NO_TOKENS = np.zeros(0, dtype=np.int32)


class Scheduler:
    """Continuous (or static) batching of block-diffusion requests over a page pool.

    Call `submit`, then alternate `schedule` and `commit`; `drain_finished` hands out what ended.
    Every running request is older than every waiting one, and each request alone fits the pool, so
    the oldest can always go on by preempting the youngest: admission cannot deadlock.

    `lengths_from_data`: under synthetic acceptance a request's output length is its data set
    reply's, capped by its max_new_tokens; stop tokens and the repetition guard are then off.
    `shifted_logits`: of the model; each commit pass then also gives the next block's first token.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        decode: DecodeConfig,
        *,
        num_pages: int,
        stop_token_ids: tuple[int, ...] = (),
        max_positions: int | None = None,
        lengths_from_data: bool = False,
        shifted_logits: bool = False,
    ) -> None:
        self.config = config
        self.policy = get_policy(decode.policy)
        self.block_length = decode.block_length
        self.pool = PagePool(num_pages, config.page_size)
        self._decode = decode
        self._max_positions = max_positions
        self._lengths_from_data = lengths_from_data
        self._shifted_logits = shifted_logits
        use_stops = config.stop_tokens and not lengths_from_data
        self._outputs = OutputScanner(
            config.batch_size,
            stop_token_ids=stop_token_ids if use_stops else (),
            repetition_guard=config.repetition_guard and not lengths_from_data,
        )
        self.state = BlockState.empty(config.batch_size, decode.block_length)
        self._slots = Slots(config.batch_size, self.pool)
        self._requests: dict[int, Request] = {}  # those not finished
        self._waiting: deque[Request] = deque()
        self._finished: list[FinishedRequest] = []
        self._dropped_swaps: list[int] = []
        self._admitted: list[int] = []
        self._next_order = 0
        self._step = 0
        self._round_left = 0  # steps until the queue is looked at again
        self._in_flight: Plan | None = None
        self._after: BlockState | None = None  # the blocks in flight, once prepared for the commit
        self._abort_after_step: set[int] = set()

    # -- what is asked -------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return self._slots.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot, preempted ones included."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether any submitted request has not ended."""
        return bool(self._requests)

    def submit(self, spec: RequestSpec) -> None:
        """Queue a request. One that can never fit ends at once with reason `error`, by name."""
        if spec.request_id in self._requests:
            raise ValueError(f"request {spec.request_id} is already being served")
        block_length = self.block_length
        target = target_tokens(spec, from_data=self._lengths_from_data)
        first_block = spec.num_prompt_tokens // block_length * block_length
        if self._shifted_logits and first_block == spec.num_prompt_tokens:
            # The prompt's last block is not prefilled but committed, for the token that follows it.
            first_block = max(0, first_block - block_length)
        request = Request(
            spec=spec,
            order=self._next_order,
            target_tokens=target,
            first_block_start=first_block,
            prefill_target=first_block,
        )
        self._next_order += 1
        problem = why_impossible(request, block_length, self.pool, self._max_positions)
        if problem:
            self._report_finished(
                request, "error", problem, lambda: _NO_TOKENS, num_output_tokens=0, ended_at=0
            )
            return
        self._slots.widen(request.max_tokens(block_length))
        self._requests[spec.request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: int) -> bool:
        """End a request with reason `aborted`, keeping what it has put out; False if it is not
        being served. During a step it takes effect when the step is committed.
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        if self._in_flight is not None and request.slot >= 0:
            self._abort_after_step.add(request_id)
        else:
            self._finish(request, self._visible_tokens(request), "aborted")
        return True

    def drain_finished(self) -> tuple[FinishedRequest, ...]:
        """Requests that ended since the last call."""
        finished = tuple(self._finished)
        self._finished.clear()
        return finished

    def drain_admitted(self) -> tuple[int, ...]:
        """Ids of requests that were given a slot for the first time since the last call."""
        admitted = tuple(self._admitted)
        self._admitted.clear()
        return admitted

    # -- before a step -------------------------------------------------------------------------

    def schedule(self) -> Plan | None:
        """The next step, or None if nothing can run (no request, or all wait for arrivals)."""
        if self._in_flight is not None:
            raise RuntimeError("the previous plan was not committed")
        missing = self._missing_pages()
        visits = self._visits(missing)
        swap_out, preemptions = self._make_room(missing)
        swap_in = self._admit() if visits and not swap_out else []
        prefill = self._plan_prefill() if visits else ()
        rows = np.flatnonzero(self._slots.decoding)
        if not len(rows) and not prefill:
            if self._waiting:
                raise AssertionError("requests wait although nothing runs")
            return None
        block = self.state.take(row_index(rows))
        plan = Plan(
            index=self._step,
            swap_out=tuple(swap_out),
            swap_in=tuple(swap_in),
            dropped_swaps=tuple(self._dropped_swaps),
            prefill=prefill,
            rows=rows,
            request_ids=block.request_key,
            block=block,
            refresh_prompt=self._decode.refresh_prompt,
            page_table=self._slots.page_table,
            shifted_logits=self._shifted_logits,
            num_waiting=self.num_waiting,
            pages_used=self.pool.num_used,
            preemptions=preemptions,
        )
        self._dropped_swaps.clear()
        self._step += 1
        self._round_left = (self.config.steps_per_round if visits else self._round_left) - 1
        self._in_flight = plan
        return plan

    def _visits(self, missing: IntArray) -> bool:
        """Whether the next step looks at the queue: the first of a round, and every one that cannot
        go on without (algorithm section 5). The others decode what runs and nothing else.
        """
        shortage = int(missing.sum()) > self.pool.num_free
        return self._round_left == 0 or shortage or not self._slots.decoding.any()

    def _make_room(self, missing: IntArray) -> tuple[list[Swap], int]:
        """Give each row the `missing[slots]` pages of its new block, oldest first; preempt the
        youngest if short. Returns what is copied to the host, and how many were preempted.
        """
        swaps: list[Swap] = []
        preemptions = 0
        growing = [self._slots.at(slot) for slot in np.flatnonzero(missing).tolist()]
        for request in sorted(growing, key=lambda r: r.order):
            if request.phase is not Phase.DECODE:  # preempted for an older one
                continue
            count = int(missing[request.slot])
            while count > self.pool.num_free:
                victim = max(self._slots.running(), key=lambda r: r.order)
                swap = self._preempt(victim)
                swaps.extend([swap] if swap else [])
                preemptions += 1
                if victim is request:
                    break
            else:
                self._slots.grow(request, count)
        return swaps, preemptions

    def _missing_pages(self) -> IntArray:
        """Pages [slots] that the blocks of decoding requests lack."""
        return self._slots.missing_pages(self.state.block_start + self.block_length)

    def _admit(self) -> list[Swap]:
        """Give slots and pages to waiting requests in order, while both last."""
        swaps: list[Swap] = []
        starting: list[Request] = []
        static = self.config.kind == "static"
        if static and self.num_running:
            return swaps
        while self._waiting and self._slots.has_free:
            request = self._waiting[0]
            start = request.prefill_target
            if request.saved is not None:
                start = int(request.saved.block_start[0])
            tokens = request.max_tokens(self.block_length) if static else start + self.block_length
            if not self.pool.can_allocate(self.pool.pages_for(tokens)):
                break
            self._slots.admit(self._waiting.popleft(), tokens)
            if request.phase is Phase.SWAPPED:
                pages = self.pool.pages_of(request.request_id)
                swaps.append(Swap(request_id=request.request_id, pages=tuple(pages)))
                starting.append(request)
                continue
            if not request.preemptions:
                self._admitted.append(request.request_id)
            request.phase = Phase.PREFILL
            if request.prefill_target == 0:
                starting.append(request)
        for request in starting:  # now that the running batch, which adaptive looks at, is known
            self._start_decoding(request)
        return swaps

    def _plan_prefill(self) -> tuple[PrefillChunk, ...]:
        """Whole blocks of requests in their prefill phase, oldest first, within the budget."""
        budget = max(self.config.max_prefill_tokens, self.block_length)
        chunks = []
        for request in sorted(self._slots.in_prefill(), key=lambda r: r.order):
            count = min(request.prefill_target - request.prefilled, budget)
            count = count // self.block_length * self.block_length
            if count == 0:
                break
            chunks.append(
                PrefillChunk(
                    request_id=request.request_id,
                    slot=request.slot,
                    start=request.prefilled,
                    token_ids=request.prefill_tokens(request.prefilled, count),
                )
            )
            budget -= count
        return tuple(chunks)

    # -- after a step --------------------------------------------------------------------------

    def prepare_commit(self) -> None:
        """Do what the plan in flight means whatever its outcome is: for the time in which a device
        is busy with it. `commit` does the rest, or all.
        """
        plan = self._in_flight
        if plan is None or self._after is not None:
            return
        self._after = plan.block.take(slice(None))
        self._after.record_forward(commit=plan.feed.commit, uncached=freeze(plan.block))
        closing = np.flatnonzero(plan.feed.commit)
        if len(closing):
            self._close_blocks(closing, plan, self._after)
        if not self.policy.adaptive:  # which looks at the batch that the step leaves
            self._end_prefills(plan)

    def commit(self, plan: Plan, outcome: Outcome) -> CommitReport:
        """Apply what a step did: tokens, freezing, ends, new blocks, finished prefills."""
        if plan is not self._in_flight:
            raise RuntimeError("only the plan in flight can be committed")
        self.prepare_commit()
        after, self._after = self._after, None
        assert after is not None
        self._in_flight = None
        rows = plan.rows
        after.record_decoded(
            outcome.decoded, outcome.tokens, outcome.progress, commit=plan.feed.commit
        )
        self.state.put(row_index(rows), after)
        scan = self._outputs.scan(rows, after, outcome.ends)
        visible_now = scan.visible - scan.before
        ends = {row: end for row, end in scan.ends.items() if row not in outcome.errors}
        for row, message in outcome.errors.items():
            visible_now[row] = 0
            self._finish(self._slots.at(int(rows[row])), int(scan.before[row]), "error", message)
        for row, end in ends.items():
            visible_now[row] = self._shown_tokens(end.output_tokens, end.reason) - scan.before[row]
            self._finish(self._slots.at(int(rows[row])), end.output_tokens, end.reason)
        closes = plan.feed.commit.copy()
        closes[[*ends, *outcome.errors]] = False
        closed = np.flatnonzero(closes)
        if len(closed):
            slots = rows[closed]
            if self.policy.adaptive:
                self.state.policy_code[slots] = self._code_of_new_blocks()
            if self._shifted_logits:
                visible_now[closed] = self._scan_carried(closed, plan, outcome)
            # A prompt's last block is none of the output's.
            closed = closed[plan.history[closed] + self.block_length > self._outputs.starts(slots)]
        if self.policy.adaptive:
            self._end_prefills(plan)
        for request_id in self._abort_after_step & self._requests.keys():
            request = self._requests[request_id]
            self._finish(request, self._visible_tokens(request), "aborted")
        self._abort_after_step.clear()
        return CommitReport(
            visible_tokens=visible_now,
            closed_rows=closed,
            closed_steps=plan.block.block_steps[closed],
        )

    # -- transitions of one request -------------------------------------------------------------

    def _end_prefills(self, plan: Plan) -> None:
        """The plan's prompt chunks are prefilled; requests without another one decode from now."""
        for chunk in plan.prefill:
            request = self._requests[chunk.request_id]
            request.prefilled += len(chunk.token_ids)
            if request.prefilled == request.prefill_target:
                self._start_decoding(request)

    def _start_decoding(self, request: Request) -> None:
        """The request's K/V up to its current block is in the cache: it decodes from now on."""
        slot = request.slot
        output = _NO_TOKENS
        if request.saved is not None:
            self.state.put(np.array([slot]), request.saved)
            visible = self._visible_tokens(request)
            output = request.output_tokens(request.saved.tokens[0], visible)
            request.saved = None
        else:
            self.state.start_request(slot, request.request_id)
            start = request.first_block_start
            end = request.spec.num_prompt_tokens + request.target_tokens
            self.state.start_block(
                slot,
                block_start=start,
                policy_code=self._code_of_new_blocks(),
                known_tokens=request.prompt_remainder,
                behind_end=self._behind_end(start, end),
            )
        request.phase = Phase.DECODE
        request.prefilled = int(self.state.block_start[slot])
        self._slots.decoding[slot] = True
        self._outputs.start(
            slot,
            prompt_tokens=request.spec.num_prompt_tokens,
            target_tokens=request.target_tokens,
            output=output,
        )

    def _close_blocks(self, rows: IntArray, plan: Plan, after: BlockState) -> None:
        """These rows of the plan are commit passes: keep their blocks' tokens, and start their next
        blocks in `after`. An output that ends all the same is cut where it ended.
        """
        slots = plan.rows[rows]
        for slot, tokens in zip(slots.tolist(), after.tokens[rows], strict=True):
            self._slots.at(slot).closed_blocks.append(tokens)
        start = after.block_start[rows] + self.block_length
        after.start_blocks(
            rows,
            block_start=start,
            policy_code=self._code_of_new_blocks(),
            behind_end=self._behind_end(start, self._outputs.end_positions(slots)),
        )

    def _scan_carried(self, rows: IntArray, plan: Plan, outcome: Outcome) -> IntArray:
        """Give these rows' new blocks the tokens that they begin with, which may end their outputs;
        returns how many became visible.
        """
        slots = plan.rows[rows]
        if outcome.carried_tokens is None:
            raise AssertionError("a commit pass with shifted logits without the next token")
        self.state.carry_over(slots, outcome.carried_tokens[rows])
        ends = {i: outcome.ends[row] for i, row in enumerate(rows.tolist()) if row in outcome.ends}
        scan = self._outputs.scan(slots, self.state.take(slots), ends)
        visible_now = scan.visible - scan.before
        for row, end in scan.ends.items():
            visible_now[row] = self._shown_tokens(end.output_tokens, end.reason) - scan.before[row]
            self._finish(self._slots.at(int(slots[row])), end.output_tokens, end.reason)
        return visible_now

    def _preempt(self, request: Request) -> Swap | None:
        """Take slot and pages from a request. Policies that freeze copy them to the host, since
        recomputing would change their K/V and so their tokens; the baseline recomputes.
        """
        swap = None
        was_decoding = request.phase is Phase.DECODE
        if was_decoding:
            request.saved = self.state.take(np.array([request.slot]))
        if was_decoding and not self.policy.may_recompute:
            pages = tuple(self.pool.pages_of(request.request_id))
            swap = Swap(request_id=request.request_id, pages=pages)
            request.phase = Phase.SWAPPED
        else:
            request.phase = Phase.WAITING
            if was_decoding:
                request.prefill_target = int(self.state.block_start[request.slot])
            request.prefilled = 0
        request.preemptions += 1
        self._slots.release(request)
        self._waiting.appendleft(request)
        return swap

    def _finish(self, request: Request, count: int, reason: str, error: str = "") -> None:
        """End a request with its first `count` output tokens."""
        block, row = self._block_of(request)
        current = None if block is None else block.tokens[row].copy()
        shown = self._shown_tokens(count, reason)
        if request.phase is Phase.SWAPPED:
            self._dropped_swaps.append(request.request_id)
        if request.slot >= 0:
            self._slots.release(request)
        else:
            self._waiting.remove(request)
        request.phase = Phase.FINISHED
        del self._requests[request.request_id]
        self._report_finished(
            request,
            reason,
            error,
            partial(request.output_tokens, current, shown),
            num_output_tokens=shown,
            ended_at=count,
        )

    def _report_finished(
        self,
        request: Request,
        reason: str,
        error: str,
        read_output: Callable[[], TokenArray],
        *,
        num_output_tokens: int,
        ended_at: int,
    ) -> None:
        self._finished.append(
            FinishedRequest(
                request_id=request.request_id,
                reason=reason,
                error=error,
                num_output_tokens=num_output_tokens,
                read_output=read_output,
                ended_at=ended_at,
                prompt_tokens=request.spec.num_prompt_tokens,
                max_new_tokens=request.spec.max_new_tokens,
                preemptions=request.preemptions,
            )
        )

    # -- small facts ---------------------------------------------------------------------------

    def _code_of_new_blocks(self) -> int:
        return code_at_block_start(
            self.policy,
            running_batch=self.num_running,
            focus_min_batch=self._decode.focus_min_batch,
        )

    def _behind_end(self, start: _Positions, end: _Positions) -> _Positions:
        """Positions of blocks at `start` that lie behind outputs' `end`, where that is known."""
        behind = start + self.block_length - end
        return behind * (behind > 0) * self._lengths_from_data

    def _shown_tokens(self, count: int, reason: str) -> int:
        """Output tokens that the user sees of an output that ended after `count`."""
        return count - (reason == "stop" and not self.config.include_stop_token)

    def _visible_tokens(self, request: Request) -> int:
        """Output tokens without gaps so far, from the request's own state."""
        block, row = self._block_of(request)
        if block is None:
            return 0
        prefix = int(leading_true(block.decoded[row : row + 1])[0])
        return int(block.block_start[row]) + prefix - request.spec.num_prompt_tokens

    def _block_of(self, request: Request) -> tuple[BlockState | None, int]:
        """The arrays and the row that hold a request's current block; None if it has none."""
        if request.phase is Phase.DECODE:
            return self.state, request.slot
        return request.saved, 0

    def check_integrity(self) -> None:
        """Assert the invariants of pool, slots, queue and page table (tests call it every step)."""
        self._slots.check_integrity()
        running = self._slots.running()
        assert {r.request_id for r in [*running, *self._waiting]} == self._requests.keys()
        orders = [r.order for r in self._waiting]
        assert orders == sorted(orders)
        assert not running or not orders or max(r.order for r in running) < orders[0]
        if self._in_flight is not None:
            assert not self._missing_pages().any()
