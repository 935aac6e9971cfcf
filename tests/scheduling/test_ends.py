"""Where outputs end: order of reasons, repetitions, stops behind gaps, independence of steps."""

import numpy as np
import pytest
from fakes import make_request
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import Harness, harness

from focus_bench.core.config import AcceptanceConfig, DecodeConfig, SchedulerConfig
from focus_bench.core.records import StepTiming
from focus_bench.decoding.caching import plan_feed
from focus_bench.decoding.eviction import keep_all
from focus_bench.scheduling.ends import End, RepetitionGuard, first_end
from focus_bench.scheduling.plan import FinishedRequest, Outcome
from focus_bench.scheduling.scheduler import Scheduler

STOP = 7


def repeats_at(tokens: list[int]) -> int | None:
    """The first n >= 96 whose last 96 tokens are three equal windows of 32."""
    for n in range(96, len(tokens) + 1):
        if tokens[n - 96 : n - 64] == tokens[n - 64 : n - 32] == tokens[n - 32 : n]:
            return n
    return None


def end_by_scan(tokens: list[int], stops: set[int], length: int, guard: bool) -> tuple[int, str]:
    """Token by token: stop first, then length, then repetition."""
    for n in range(1, length + 1):
        if tokens[n - 1] in stops:
            return n, "stop"
        if n == length:
            return n, "length"
        if guard and repeats_at(tokens[:n]) == n:
            return n, "repetition"
    raise AssertionError("an output of at least one token ends")


# -- the parts -----------------------------------------------------------------------------------


def test_the_earliest_end_wins_and_ties_go_stop_length_repetition() -> None:
    def winner(stop: int | None, length: int | None, repetition: int | None) -> End | None:
        return first_end(stop_at=stop, length_at=length, repetition_at=repetition)

    assert winner(96, 96, 96) == End(output_tokens=96, reason="stop")
    assert winner(None, 96, 96) == End(output_tokens=96, reason="length")
    assert winner(97, 97, 96) == End(output_tokens=96, reason="repetition")
    assert winner(98, 97, None) == End(output_tokens=97, reason="length")
    assert winner(None, None, None) is None


def extend(guard: RepetitionGuard, slot: int, tokens: np.ndarray, seen: int) -> int | None:
    """Add tokens behind `seen` others, in portions; the output length at the first repetition."""
    for start in range(0, len(tokens), 96):
        part = tokens[start : start + 96]
        index = seen + start + np.arange(len(part))
        complete = guard.extend(np.full(len(part), slot), index, part)
        if complete.any():
            return int(index[complete.argmax()]) + 1
    return None


@pytest.mark.parametrize("period", [1, 2, 4, 8, 16, 32])
def test_a_repetition_is_complete_at_96_and_not_at_95(period: int) -> None:
    tokens = np.arange(96, dtype=np.int32) % period
    guard = RepetitionGuard(1)
    guard.reset(0, np.zeros(0, dtype=np.int32))
    assert extend(guard, 0, tokens[:95], 0) is None
    assert extend(guard, 0, tokens[95:], 95) == 96


@pytest.mark.parametrize("period", [3, 31, 33, 64])
def test_other_periods_are_no_equal_windows(period: int) -> None:
    tokens = np.arange(400, dtype=np.int32) % period
    guard = RepetitionGuard(1)
    guard.reset(0, tokens[:0])
    assert extend(guard, 0, tokens, 0) is None
    assert repeats_at(tokens.tolist()) is None


@given(outputs=st.lists(st.integers(0, 150), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_guard_keeps_the_slots_of_a_step_apart(outputs: list[int], seed: int) -> None:
    """Slots whose outputs grow together, by different numbers of tokens, as each does alone."""
    random = np.random.default_rng(seed)
    tokens = [np.arange(n, dtype=np.int32) % random.choice((1, 32, 33)) for n in outputs]
    together = RepetitionGuard(len(outputs))
    for slot in range(len(outputs)):
        together.reset(slot, tokens[slot][:0])
    found: dict[int, int] = {}
    seen = np.zeros(len(outputs), dtype=np.int64)
    while (seen < outputs).any():
        new = np.minimum(random.integers(0, 65, len(outputs)), outputs - seen)
        slots = np.repeat(np.arange(len(outputs)), new)
        index = np.concatenate([a + np.arange(k) for a, k in zip(seen, new, strict=True)])
        values = np.array([tokens[s][i] for s, i in zip(slots, index, strict=True)], np.int32)
        for at in np.flatnonzero(together.extend(slots, index, values)).tolist():
            found.setdefault(int(slots[at]), int(index[at]) + 1)
        seen += new
    expected = {slot: repeats_at(t.tolist()) for slot, t in enumerate(tokens)}
    assert found == {slot: at for slot, at in expected.items() if at is not None}


def repetitive(draw: st.DrawFn) -> list[int]:
    """Tokens in which windows of 32 repeat often, almost, or not at all."""
    tokens: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        period = draw(st.sampled_from((1, 4, 16, 32, 32, 33, 5)))
        count = draw(st.sampled_from((1, 31, 32, 64, 95, 96, 97, 130)))
        base = draw(st.integers(0, 2))
        tokens += [base + i % period for i in range(count)]
    return tokens


repetitive_tokens = st.composite(repetitive)


@given(tokens=repetitive_tokens(), chunks=st.lists(st.integers(1, 70), min_size=1), taken=st.data())
def test_guard_equals_comparing_windows(
    tokens: list[int], chunks: list[int], taken: st.DataObject
) -> None:
    """However the tokens arrive, also across a reset that hands over the output so far."""
    guard = RepetitionGuard(2)
    array = np.array(tokens, dtype=np.int32)
    expected = repeats_at(tokens)
    resume = taken.draw(st.integers(0, len(tokens) - 1))
    at, found, number = 0, None, 0
    extend(guard, 1, np.ones(64, dtype=np.int32), 0)  # the slot's last request leaves nothing
    guard.reset(1, array[:0])
    while at < len(tokens) and found is None:
        size = chunks[number % len(chunks)]
        found = extend(guard, 1, array[at : at + size], at)
        at, number = at + size, number + 1
        if found is None and at - size <= resume < at <= len(tokens):
            guard.reset(1, array[:at])
    assert found == expected


# -- the whole -----------------------------------------------------------------------------------


def scripted(tokens: list[int], prompt: int) -> object:
    """Tokens of absolute positions: the script from the first output position on."""

    def tokens_of(_: int, positions: np.ndarray) -> np.ndarray:
        at = np.clip(np.asarray(positions) - prompt, 0, len(tokens) - 1)
        return np.array(tokens, dtype=np.int32)[at]

    return tokens_of


def served(
    tokens: list[int],
    *,
    prompt: int,
    length: int,
    block_length: int,
    acceptance: AcceptanceConfig,
    policy: str = "focus",
    include: bool = True,
    guard: bool = True,
) -> FinishedRequest:
    run = harness(
        policy=policy,
        block_length=block_length,
        num_pages=128,
        acceptance=acceptance,
        stop_token_ids=(STOP, 250),
        include_stop_token=include,
        repetition_guard=guard,
        tokens_of=scripted(tokens, prompt),
    )
    run.submit(make_request(0, prompt, length))
    return run.run().finished[0]


@st.composite
def outputs_with_stops(draw: st.DrawFn) -> list[int]:
    tokens = repetitive(draw)
    for at in draw(st.lists(st.integers(0, len(tokens) - 1), max_size=2)):
        tokens[at] = STOP
    return [t if t != STOP or draw(st.booleans()) else 8 for t in tokens]


@settings(max_examples=120)
@given(
    tokens=outputs_with_stops(),
    prompt=st.integers(1, 40),
    cut=st.integers(1, 300),
    block_length=st.sampled_from((4, 8, 32)),
    mean=st.sampled_from((1.0, 2.5, 64.0)),
    scatter=st.sampled_from((0.0, 6.0)),
    policy=st.sampled_from(("baseline", "delayed-cache", "focus")),
    include=st.booleans(),
    guard=st.booleans(),
)
def test_the_end_does_not_depend_on_how_tokens_arrive(
    tokens: list[int],
    prompt: int,
    cut: int,
    block_length: int,
    mean: float,
    scatter: float,
    policy: str,
    include: bool,
    guard: bool,
) -> None:
    length = min(cut, len(tokens))
    end = served(
        tokens,
        prompt=prompt,
        length=length,
        block_length=block_length,
        acceptance=AcceptanceConfig(kind="synthetic", mean=mean, scatter=scatter),
        policy=policy,
        include=include,
        guard=guard,
    )
    count, reason = end_by_scan(tokens, {STOP, 250}, length, guard)
    shown = count - (reason == "stop" and not include)
    assert (end.num_output_tokens, end.reason, end.ended_at) == (shown, reason, count)
    assert end.output_ids.tolist() == tokens[:shown]


@pytest.mark.parametrize(
    ("at", "length", "count", "reason"),
    [
        (95, 96, 96, "stop"),  # the last token that the length allows is a stop token
        (None, 96, 96, "length"),
        (None, 97, 96, "repetition"),
        (96, 200, 96, "repetition"),
        (94, 200, 95, "stop"),
        (96, 96, 96, "length"),  # the stop token lies behind the cut
    ],
)
@pytest.mark.parametrize("mean", [1.0, 64.0])
def test_reasons_at_equal_lengths(
    at: int | None, length: int, count: int, reason: str, mean: float
) -> None:
    tokens = [i % 4 for i in range(300)]
    if at is not None:
        tokens[at] = STOP
    acceptance = AcceptanceConfig(kind="synthetic", mean=mean)
    end = served(tokens, prompt=3, length=length, block_length=32, acceptance=acceptance)
    assert (end.num_output_tokens, end.reason) == (count, reason)


# -- stop tokens behind gaps ---------------------------------------------------------------------


class ScriptedSteps:
    """One request, baseline, decoded in the order given: position lists step by step."""

    def __init__(self, tokens: list[int], *, prompt: int, length: int, **options: object) -> None:
        decode = DecodeConfig(policy="baseline", block_length=8)
        config = SchedulerConfig(batch_size=1, page_size=8, **options)
        self.scheduler = Scheduler(config, decode, num_pages=8, stop_token_ids=(STOP,))
        self.scheduler.submit(make_request(0, prompt, length))
        self.tokens = np.array(tokens, dtype=np.int32)

    def decode(self, *positions: int) -> tuple[int, FinishedRequest | None]:
        """One step; returns how many tokens became visible and how the request ended."""
        plan = self.scheduler.schedule()
        assert plan is not None
        decoded = np.zeros((1, 8), dtype=bool)
        decoded[0, list(positions)] = True
        eviction = keep_all(plan.block, plan_feed(plan.block))
        outcome = Outcome(
            kept=eviction.kept,
            progress=eviction.progress,
            decoded=decoded,
            tokens=self.tokens[None, :],
            evicting=np.zeros(1, dtype=bool),
            read_timing=lambda: StepTiming(duration_s=0.0),
        )
        report = self.scheduler.commit(plan, outcome)
        finished = self.scheduler.drain_finished()
        return int(report.visible_tokens[0]), finished[0] if finished else None


@pytest.mark.parametrize("include", [True, False])
def test_a_stop_token_behind_a_gap_ends_nothing_until_the_gap_is_closed(include: bool) -> None:
    #                      prompt | output
    run = ScriptedSteps(
        [1, 2, 10, 11, STOP, 12, STOP, 13], prompt=2, length=6, include_stop_token=include
    )
    assert run.decode(4, 5, 6) == (0, None)  # both stop tokens are decoded, nothing is visible
    assert run.decode(2) == (1, None)
    visible, end = run.decode(3)
    assert end is not None
    assert end.reason == "stop"
    assert visible == (2 if include else 1)
    assert end.output_ids.tolist() == [10, 11, STOP][: 3 if include else 2]
    assert end.ended_at == 3
    assert not run.scheduler.has_work


def test_stop_tokens_in_the_prompt_are_not_output() -> None:
    run = ScriptedSteps([STOP, STOP, 10, 11, 12, 13, 14, 15], prompt=2, length=6)
    run.scheduler.state.tokens[0, :2] = STOP
    assert run.decode(*range(2, 7)) == (5, None)
    visible, end = run.decode(7)
    assert end is not None
    assert (visible, end.reason, end.num_output_tokens) == (1, "length", 6)


def test_a_stop_token_before_the_length_in_the_same_step_wins() -> None:
    run = ScriptedSteps([1, 10, STOP, 12, 13, 14, 15, 16], prompt=1, length=4)
    visible, end = run.decode(*range(1, 8))
    assert end is not None
    assert (visible, end.reason, end.output_ids.tolist()) == (2, "stop", [10, STOP])


def test_length_needs_the_first_positions_only() -> None:
    run = ScriptedSteps([1, 10, 11, 12, 13, 14, 15, 16], prompt=1, length=3)
    assert run.decode(2, 3, 6) == (0, None)
    visible, end = run.decode(1)
    assert end is not None
    assert (visible, end.reason, end.output_ids.tolist()) == (3, "length", [10, 11, 12])


def test_an_excluded_stop_token_at_once_leaves_no_output() -> None:
    run = ScriptedSteps([1] + [STOP] * 7, prompt=1, length=7, include_stop_token=False)
    visible, end = run.decode(1)
    assert end is not None
    assert (visible, end.reason, end.num_output_tokens, end.ended_at) == (0, "stop", 0, 1)


def test_without_stop_tokens_the_output_goes_on() -> None:
    run = ScriptedSteps([1] + [STOP] * 7, prompt=1, length=7, stop_tokens=False)
    visible, end = run.decode(*range(1, 8))
    assert end is not None
    assert (visible, end.reason) == (7, "length")


def test_synthetic_lengths_turn_stops_and_repetitions_off() -> None:
    tokens = [5] * 100 + [STOP] * 200
    run: Harness = harness(
        block_length=32,
        stop_token_ids=(STOP,),
        lengths_from_data=True,
        tokens_of=scripted(tokens, 1),
        batch_size=8,
    )
    run.submit(
        make_request(0, 1, 150, reply_tokens=120),
        make_request(1, 1, 90, reply_tokens=120),
        make_request(2, 1, 130),
    )
    ends = run.run().finished
    assert {i: (e.num_output_tokens, e.reason) for i, e in ends.items()} == {
        0: (120, "length"),
        1: (90, "length"),
        2: (130, "length"),
    }
