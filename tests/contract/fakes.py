"""A clock, an executor and a cache for the tests of schedulers and drivers; no model, no time.

The executor decides by the real decoding rules from numbers that are functions of request, step and
position; its tokens are functions of request and position. So every run of a request must give the
same masks and tokens, whatever ran beside it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from focus_bench.core.records import StepTiming
from focus_bench.core.rng import uniform
from focus_bench.core.workload import RequestSpec
from focus_bench.decoding.masks import pack_masks
from focus_bench.decoding.rules import StepRules
from focus_bench.scheduling.loop import nothing
from focus_bench.scheduling.plan import Outcome, Plan, Swap

TokensOf = Callable[[int, np.ndarray], np.ndarray]


def tokens_by_formula(request_id: int, positions: np.ndarray) -> np.ndarray:
    """Tokens 1 to 241 of absolute positions: no stop token, no repetition within 241 tokens."""
    p = np.asarray(positions, dtype=np.int64)
    return ((request_id * 7919 + p * 104729 + p * p * 31) % 241 + 1).astype(np.int32)


def make_request(
    request_id: int,
    prompt_tokens: int,
    max_new_tokens: int,
    *,
    arrival_s: float = 0.0,
    reply_tokens: int | None = None,
) -> RequestSpec:
    """A request whose prompt tokens go on with the formula's numbers."""
    return RequestSpec(
        request_id=request_id,
        prompt_ids=tokens_by_formula(request_id, np.arange(prompt_tokens)),
        max_new_tokens=max_new_tokens,
        arrival_s=arrival_s,
        reply_tokens=reply_tokens,
    )


class FakeClock:
    """A clock that moves only when told to; it notes what was slept for."""

    def __init__(self) -> None:
        self._now = 0.0
        self.slept_until: list[float] = []

    def now(self) -> float:
        return self._now

    def sleep_until(self, when_s: float) -> None:
        assert when_s > self._now, "a driver waits for something that is due"
        self.slept_until.append(when_s)
        self._now = when_s

    def advance(self, seconds: float) -> None:
        self._now += seconds


def describe_plan(plan: Plan) -> str:
    """Everything that a plan decides, on one line."""

    def swaps(entries: tuple[Swap, ...]) -> str:
        return " ".join(f"{s.request_id}:{','.join(map(str, s.pages))}" for s in entries)

    fed = pack_masks(plan.feed.positions)
    rows = zip(plan.rows, plan.request_ids, plan.history, plan.feed.commit, fed, strict=True)
    parts = {
        "out": swaps(plan.swap_out),
        "in": swaps(plan.swap_in),
        "drop": " ".join(map(str, plan.dropped_swaps)),
        "prefill": " ".join(f"{c.request_id}:{c.start}+{len(c.token_ids)}" for c in plan.prefill),
        "rows": " ".join(
            f"{slot}={request}@{history}{'c' if commit else ':'}{int(word):x}"
            for slot, request, history, commit, word in rows
        ),
        "waiting": str(plan.num_waiting),
        "pages": str(plan.pages_used),
    }
    return f"{plan.index} " + " | ".join(f"{k} {v}" for k, v in parts.items() if v not in {"", "0"})


@dataclass(kw_only=True)
class PlanLog:
    """The plans that an executor was given, as lines, and one digest of them all."""

    lines: list[str] = field(default_factory=list)

    def add(self, plan: Plan) -> None:
        self.lines.append(describe_plan(plan))

    def digest(self) -> str:
        return hashlib.blake2b("\n".join(self.lines).encode(), digest_size=8).hexdigest()


class CheckedCache:
    """A KV cache that holds names instead of keys and values, and asserts what a forward reads.

    Every token slot of every page notes whose token, which position and whether the layers after
    layer 1 wrote it too. Reading a slot that holds anything else is a fault of the scheduler.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._page_size = page_size
        self._owner = np.full(num_pages * page_size, -1, dtype=np.int64)
        self._position = np.full(num_pages * page_size, -1, dtype=np.int64)
        self._deep = np.zeros(num_pages * page_size, dtype=np.bool_)
        self._host: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def apply(self, plan: Plan, kept: np.ndarray, progress: np.ndarray) -> None:
        """Everything that the plan moves, writes and reads."""
        for request in plan.dropped_swaps:
            del self._host[request]
        for swap in plan.swap_out:
            at = self._slots_of_pages(swap)
            assert swap.request_id not in self._host
            self._host[swap.request_id] = tuple(
                part[at].copy() for part in (self._owner, self._position, self._deep)
            )
            self._owner[at] = -1
        for swap in plan.swap_in:
            at = self._slots_of_pages(swap)
            owner, position, deep = self._host.pop(swap.request_id)
            self._owner[at] = -1
            count = len(owner)
            self._owner[at[:count]] = owner
            self._position[at[:count]] = position
            self._deep[at[:count]] = deep
        for chunk in plan.prefill:
            at = self._slots(plan, chunk.slot, chunk.start + len(chunk.token_ids))
            self._check_read(chunk.request_id, at[: chunk.start])
            self._write(chunk.request_id, at, np.arange(chunk.start, len(at)), deep=True)
        length = plan.block.block_length
        columns = np.arange(length)
        for row, (slot, request) in enumerate(zip(plan.rows, plan.request_ids, strict=True)):
            start = int(plan.history[row])
            at = self._slots(plan, int(slot), start + length)
            fed = plan.feed.positions[row]
            if plan.block.block_steps[row] == 0 and not plan.feed.commit[row]:
                assert fed.all()
                self._owner[at[start:]] = -1
            frozen = np.concatenate([np.arange(start), start + columns[~fed]])
            self._check_read(int(request), at, frozen)
            self._write(int(request), at, start + columns[fed], deep=False)
            self._deep[at[start + columns[kept[row]]]] = True
            self._check_read(int(request), at[: start + int(progress[row]) + 1])

    @property
    def num_host_copies(self) -> int:
        """Preempted requests whose pages are on the host."""
        return len(self._host)

    def _slots_of_pages(self, swap: Swap) -> np.ndarray:
        pages = np.array(swap.pages, dtype=np.int64)
        return (pages[:, None] * self._page_size + np.arange(self._page_size)).ravel()

    def _slots(self, plan: Plan, slot: int, count: int) -> np.ndarray:
        positions = np.arange(count)
        pages = plan.page_table[slot, positions // self._page_size].astype(np.int64)
        return pages * self._page_size + positions % self._page_size

    def _check_read(
        self, request: int, at: np.ndarray, positions: np.ndarray | None = None
    ) -> None:
        positions = np.arange(len(at)) if positions is None else positions
        at = at[positions]
        assert (self._owner[at] == request).all(), f"request {request} reads another's K/V or none"
        assert (self._position[at] == positions).all(), f"request {request} reads a wrong position"
        assert self._deep[at].all(), f"request {request} reads K/V that no deep layer wrote"

    def _write(self, request: int, at: np.ndarray, positions: np.ndarray, *, deep: bool) -> None:
        at = at[positions]
        same = (self._owner[at] == request) & (self._position[at] == positions)
        self._deep[at] = deep | (self._deep[at] & same)
        self._owner[at] = request
        self._position[at] = positions


@dataclass(kw_only=True)
class FakeExecutor:
    """Decodes by the rules, without a model; a step takes the time that its plan's sizes give.

    With a clock it moves that clock, as a real step takes real time; a simulator's driver reads
    `Outcome.timing.duration_s` instead. `errors`: request id -> message, raised in its first row.
    """

    rules: StepRules
    clock: FakeClock | None = None
    tokens_of: TokensOf = tokens_by_formula
    cache: CheckedCache | None = None
    log: PlanLog = field(default_factory=PlanLog)
    errors: dict[int, str] = field(default_factory=dict)

    def execute(self, plan: Plan, meanwhile: Callable[[], None] = nothing) -> Outcome:
        meanwhile()
        self.log.add(plan)
        rules, block, feed = self.rules, plan.block, plan.feed
        confidence = None
        if rules.needs_confidence:
            confidence = uniform(
                77,
                block.request_key[:, None],
                block.forwards[:, None],
                np.arange(block.block_length)[None, :],
            ).astype(np.float32)
        if rules.ideal_rows(block, feed).any():
            decoded = rules.decoded(block, feed, feed.positions, confidence)
            eviction = rules.evict_ideal(block, feed, decoded)
        else:
            eviction = rules.evict(block, feed, None)
            decoded = rules.decoded(block, feed, eviction.kept, confidence)
        errors = {
            row: self.errors[request]
            for row, request in enumerate(plan.request_ids.tolist())
            if request in self.errors
        }
        decoded[list(errors)] = False
        if self.cache is not None:
            self.cache.apply(plan, eviction.kept, eviction.progress)
        duration_s = 0.010 + 0.001 * len(plan.rows) + 1e-5 * plan.prefill_tokens
        if self.clock is not None:
            self.clock.advance(duration_s)
        return Outcome(
            kept=eviction.kept,
            progress=eviction.progress,
            decoded=decoded,
            tokens=self._tokens(plan),
            evicting=rules.rows_to_evict(block, feed),
            read_timing=lambda: StepTiming(duration_s=duration_s),
            errors=errors,
            ends=rules.traced_ends(block),
            carried_tokens=self._carried(plan) if plan.shifted_logits else None,
        )

    def _carried(self, plan: Plan) -> np.ndarray:
        """The token behind the block of each commit pass."""
        behind = (plan.history + plan.block.block_length).tolist()
        rows = zip(plan.feed.commit.tolist(), plan.request_ids.tolist(), behind, strict=True)
        tokens = [int(self.tokens_of(r, np.array([p]))[0]) if c else -1 for c, r, p in rows]
        return np.array(tokens, dtype=np.int32)

    def _tokens(self, plan: Plan) -> np.ndarray:
        columns = np.arange(plan.block.block_length)
        rows = [
            self.tokens_of(request, start + columns)
            for request, start in zip(plan.request_ids.tolist(), plan.history.tolist(), strict=True)
        ]
        return np.array(rows, dtype=np.int32).reshape(len(rows), len(columns))
