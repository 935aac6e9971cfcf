"""Drives a scheduler with the fake executor and asserts, at every step, what must always hold."""

import dataclasses
from collections.abc import Callable

import numpy as np
from fakes import CheckedCache, FakeExecutor, TokensOf, tokens_by_formula

from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    ImportanceConfig,
    SchedulerConfig,
)
from focus_bench.core.workload import RequestSpec
from focus_bench.decoding.rules import StepRules
from focus_bench.scheduling.plan import CommitReport, FinishedRequest, Outcome, Plan
from focus_bench.scheduling.scheduler import Scheduler

Masks = tuple[bytes, bytes, bytes]


def rules_of(
    decode: DecodeConfig, acceptance: AcceptanceConfig | None = None, seed: int = 0
) -> StepRules:
    """Rules with synthetic importance; acceptance is synthetic (mean 2) unless given."""
    return StepRules(
        decode=decode,
        acceptance=acceptance or AcceptanceConfig(kind="synthetic", mean=2.0),
        importance=ImportanceConfig(kind="synthetic", tau=1.5, noise=0.3),
        seed=seed,
    )


class Harness:
    """A scheduler, a fake executor and a checked cache, stepped together.

    After each step it knows, per request: the masks of its forwards (`masks`), its visible tokens
    (`visible`), its prefilled ranges (`prefilled`), and how it ended (`finished`).
    """

    def __init__(
        self,
        config: SchedulerConfig,
        decode: DecodeConfig,
        *,
        num_pages: int,
        acceptance: AcceptanceConfig | None = None,
        stop_token_ids: tuple[int, ...] = (),
        max_positions: int | None = None,
        lengths_from_data: bool = False,
        shifted_logits: bool = False,
        tokens_of: TokensOf = tokens_by_formula,
        errors: dict[int, str] | None = None,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.decode = decode
        self.shifted_logits = shifted_logits
        self.scheduler = Scheduler(
            config,
            decode,
            num_pages=num_pages,
            stop_token_ids=stop_token_ids,
            max_positions=max_positions,
            lengths_from_data=lengths_from_data,
            shifted_logits=shifted_logits,
        )
        self.cache = CheckedCache(num_pages, config.page_size)
        self.executor = FakeExecutor(
            rules=rules_of(decode, acceptance, seed),
            cache=self.cache,
            tokens_of=tokens_of,
            errors=errors or {},
        )
        self._single = {
            "acceptance": acceptance,
            "stop_token_ids": stop_token_ids,
            "max_positions": max_positions,
            "lengths_from_data": lengths_from_data,
            "shifted_logits": shifted_logits,
            "tokens_of": tokens_of,
            "seed": seed,
        }
        self.specs: dict[int, RequestSpec] = {}
        self.masks: dict[int, list[Masks]] = {}
        self.visible: dict[int, int] = {}
        self.prefilled: dict[int, list[tuple[int, int]]] = {}
        self.finished: dict[int, FinishedRequest] = {}
        self.finish_order: list[int] = []
        self.plans: list[Plan] = []
        self.oldest_idle = 0  # steps in a row in which the oldest request did nothing
        self.failed = False  # a check failed: nothing more can be said of this run

    # -- driving -------------------------------------------------------------------------------

    def submit(self, *specs: RequestSpec) -> None:
        for spec in specs:
            self.specs[spec.request_id] = spec
            self.masks[spec.request_id] = []
            self.visible[spec.request_id] = 0
            self.prefilled[spec.request_id] = []
            self.scheduler.submit(spec)
        self._drain()

    def abort(self, request_id: int) -> bool:
        known = self.scheduler.abort(request_id)
        self._drain()
        return known

    def step(self, during: Callable[[], object] | None = None) -> Plan | None:
        """One step; `during` is called between schedule and commit."""
        self.failed = True
        plan = self._step(during)
        self.failed = False
        return plan

    def _step(self, during: Callable[[], object] | None) -> Plan | None:
        self.scheduler.check_integrity()
        plan = self.scheduler.schedule()
        self.scheduler.check_integrity()
        if plan is None:
            assert not self.scheduler.has_work
            return None
        self._check_plan(plan)
        if plan.index % 2:
            self.scheduler.prepare_commit()
            self.scheduler.check_integrity()
        outcome = self.executor.execute(plan)
        if during is not None:
            during()
        report = self.scheduler.commit(plan, outcome)
        self.scheduler.check_integrity()
        self._note(plan, outcome, report)
        self._drain()
        return plan

    def run(self, limit: int | None = None) -> "Harness":
        """Step until nothing is left; a request may take at most its share of steps."""
        limit = self.steps_left() if limit is None else limit
        for _ in range(limit):
            if self.step() is None:
                return self
        assert not self.scheduler.has_work, f"not done after {limit} steps"
        return self

    def steps_left(self) -> int:
        """An upper bound on the steps to the end, whatever the pool: in each step, or at least one
        of each round, the oldest request prefills at least a block, decodes at least a position or
        commits a block.
        """
        total = 1
        for request_id, spec in self.specs.items():
            if request_id not in self.finished:
                length = self.decode.block_length
                tokens = spec.num_prompt_tokens + spec.max_new_tokens
                total += 2 * (-(-tokens // length)) + spec.max_new_tokens + 2 * length
        return total * self.config.steps_per_round

    # -- what must always hold -----------------------------------------------------------------

    @property
    def live(self) -> list[int]:
        """Requests that have not ended, oldest first."""
        return [r for r in self.specs if r not in self.finished]

    def _check_plan(self, plan: Plan) -> None:
        length = self.decode.block_length
        rows, ids = plan.rows.tolist(), plan.request_ids.tolist()
        assert rows == sorted(set(rows))
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(self.live)
        chunk_ids = [c.request_id for c in plan.prefill]
        assert len(set(chunk_ids)) == len(chunk_ids)
        assert not set(chunk_ids) & set(ids), "a request decodes before its prefill is done"
        assert len(ids) + len(chunk_ids) <= self.config.batch_size
        # In a round's later steps nothing is prefilled, not even the oldest request.
        goes_on = self.live[0] in {*ids, *chunk_ids}
        self.oldest_idle = 0 if goes_on else self.oldest_idle + 1
        assert self.oldest_idle < self.config.steps_per_round, "the oldest request does not go on"
        assert plan.prefill_tokens <= max(self.config.max_prefill_tokens, length)
        for chunk in plan.prefill:
            count = len(chunk.token_ids)
            assert count > 0
            assert chunk.start % length == count % length == 0
            expected = self.sequence(chunk.request_id)[chunk.start : chunk.start + count]
            assert np.array_equal(chunk.token_ids, expected)
            ranges = self.prefilled[chunk.request_id]
            assert chunk.start in {0, ranges[-1][0] + ranges[-1][1] if ranges else 0}
            ranges.append((chunk.start, count))
        for row, request_id in enumerate(ids):
            ranges = self.prefilled[request_id]
            start = int(plan.history[row])
            assert start % length == 0
            first = self.first_block(request_id)
            assert start >= first
            assert not ranges or ranges[-1][0] + ranges[-1][1] >= first
        assert plan.pages_used == self.scheduler.pool.num_used
        self.plans.append(plan)

    def _note(self, plan: Plan, outcome: Outcome, report: CommitReport) -> None:
        assert (report.visible_tokens >= 0).all()
        for row, request_id in enumerate(plan.request_ids.tolist()):
            self.masks[request_id].append(
                (
                    plan.feed.positions[row].tobytes(),
                    outcome.kept[row].tobytes(),
                    outcome.decoded[row].tobytes(),
                )
            )
            self.visible[request_id] += int(report.visible_tokens[row])
        closed = set(report.closed_rows.tolist())
        assert closed <= set(np.flatnonzero(plan.feed.commit).tolist())

    def _drain(self) -> None:
        for end in self.scheduler.drain_finished():
            request_id = end.request_id
            assert request_id not in self.finished, "a request ended twice"
            self.finished[request_id] = end
            self.finish_order.append(request_id)
            assert len(end.output_ids) == end.num_output_tokens == self.visible[request_id]
            assert end.num_output_tokens <= max(0, end.max_new_tokens)
            prompt = self.specs[request_id].num_prompt_tokens
            expected = self.sequence(request_id)[prompt : prompt + end.num_output_tokens]
            assert np.array_equal(end.output_ids, expected)

    def sequence(self, request_id: int) -> np.ndarray:
        """Prompt and output tokens of a request, as they must come out."""
        spec = self.specs[request_id]
        prompt = spec.num_prompt_tokens
        rest = np.arange(prompt, prompt + max(0, spec.max_new_tokens) + self.decode.block_length)
        return np.concatenate([spec.prompt_ids, self.executor.tokens_of(request_id, rest)])

    def first_block(self, request_id: int) -> int:
        """Where a request's first decode block starts. With shifted logits, a prompt that ends with
        a block has this block committed, not prefilled: the commit pass gives the first token.
        """
        prompt, length = self.specs[request_id].num_prompt_tokens, self.decode.block_length
        return (prompt - self.shifted_logits) // length * length

    def check_prefill(self, request_id: int) -> None:
        """Full prompt blocks were prefilled in order and once, unless the request was preempted."""
        full = self.first_block(request_id)
        ranges = self.prefilled[request_id]
        restarts = sum(start == 0 for start, _ in ranges[1:])
        assert restarts <= self.finished[request_id].preemptions
        if not self.finished[request_id].preemptions and self.masks[request_id]:
            assert sum(count for _, count in ranges) == full

    # -- comparison with a run of its own ------------------------------------------------------

    def alone(self, request_id: int) -> "Harness":
        """The same request in a scheduler of its own, with room for everything."""
        spec = self.specs[request_id]
        tokens = spec.num_prompt_tokens + spec.max_new_tokens + self.decode.block_length
        config = dataclasses.replace(
            self.config, kind="continuous", batch_size=1, max_prefill_tokens=1 << 20
        )
        single = Harness(
            config, self.decode, num_pages=-(-tokens // self.config.page_size), **self._single
        )
        single.submit(spec)
        return single.run()

    def check_equals_alone(self, request_id: int) -> int:
        """Masks, tokens and end of a request equal those of its run alone; returns its steps."""
        end, single = self.finished[request_id], self.alone(request_id)
        other = single.finished[request_id]
        masks, expected = self.masks[request_id], single.masks[request_id]
        if end.reason == "aborted":
            assert masks == expected[: len(masks)]
            assert end.num_output_tokens <= other.num_output_tokens
        else:
            assert masks == expected
            assert (end.reason, end.num_output_tokens) == (other.reason, other.num_output_tokens)
            assert np.array_equal(end.output_ids, other.output_ids)
        return len(single.plans)


def harness(
    *,
    policy: str = "focus",
    block_length: int = 8,
    page_size: int = 8,
    num_pages: int = 64,
    batch_size: int = 4,
    kind: str = "continuous",
    max_prefill_tokens: int = 8192,
    steps_per_round: int = 1,
    acceptance: AcceptanceConfig | None = None,
    include_stop_token: bool = True,
    repetition_guard: bool = True,
    **options: object,
) -> Harness:
    """A harness by keywords."""
    config = SchedulerConfig(
        kind=kind,
        batch_size=batch_size,
        page_size=page_size,
        max_prefill_tokens=max_prefill_tokens,
        steps_per_round=steps_per_round,
        include_stop_token=include_stop_token,
        repetition_guard=repetition_guard,
    )
    decode = DecodeConfig(policy=policy, block_length=block_length)
    return Harness(config, decode, num_pages=num_pages, acceptance=acceptance, **options)
