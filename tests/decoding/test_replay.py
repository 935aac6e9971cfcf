"""Decode traces: written, saved, read back, replayed; and what is refused."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from decoding_cases import BLOCK_POLICIES, Step, one_request, positions, rules_for, step_block

from focus_bench.core.config import AcceptanceConfig, DecodeConfig
from focus_bench.core.errors import UsageError
from focus_bench.decoding.acceptance import Replay
from focus_bench.decoding.block_state import BlockState
from focus_bench.decoding.policies import POLICY_CODES
from focus_bench.decoding.rules import StepRules
from focus_bench.decoding.trace import DecodeTrace, TraceWriter

LENGTH = 8
KEYS = (5, 2, 9)  # not in order: a trace is sorted
KNOWN = {5: 0, 2: 3, 9: 7}


def start(key: int, policy: str, known: int) -> BlockState:
    block = one_request(LENGTH, key)
    block.start_block(
        0,
        block_start=0,
        policy_code=POLICY_CODES[policy],
        known_tokens=np.zeros(known, dtype=np.int32),
    )
    return block


def drive(
    rules: StepRules, policy: str, writer: TraceWriter | None = None, known: dict = KNOWN
) -> dict[int, list[Step]]:
    """Two blocks of three requests, interleaved step by step."""
    blocks = {key: start(key, policy, known[key]) for key in KEYS}
    steps: dict[int, list[Step]] = {key: [] for key in KEYS}
    closed = dict.fromkeys(KEYS, 0)
    while min(closed.values()) < 2:
        for key, block in blocks.items():
            if closed[key] == 2:
                continue
            step = step_block(rules, block, None)
            steps[key].append(step)
            if writer is not None:
                writer.add_step(step.block, step.feed, step.kept, step.decoded)
            if step.feed.commit[0]:
                closed[key] += 1
                block.start_block(
                    0,
                    block_start=LENGTH * closed[key],
                    policy_code=POLICY_CODES[policy],
                    known_tokens=np.zeros(0, dtype=np.int32),
                )
    return steps


def recorded(policy: str = "focus") -> tuple[DecodeTrace, dict[int, list[Step]]]:
    acceptance = AcceptanceConfig(kind="synthetic", mean=2.0, scatter=1.0)
    rules = rules_for(policy, LENGTH, acceptance=acceptance, seed=8)
    writer = TraceWriter(policy=policy, block_length=LENGTH, alpha=1.5, threshold=0.9)
    steps = drive(rules, policy, writer)
    writer.add_end(9, 9, "length")
    writer.add_end(2, 13, "stop")
    return writer.finish(), steps


def masks(steps: dict[int, list[Step]]) -> dict[int, list[tuple[list[int], ...]]]:
    return {
        key: [
            (positions(s.feed.positions[0]), positions(s.kept[0]), positions(s.decoded[0]))
            for s in of_request
        ]
        for key, of_request in steps.items()
    }


def replaying(path: Path, policy: str, **decode: object) -> StepRules:
    acceptance = AcceptanceConfig(kind="replay", path=str(path))
    return rules_for(policy, LENGTH, acceptance=acceptance, **decode)


def assert_equal_traces(first: DecodeTrace, second: DecodeTrace) -> None:
    for f in dataclasses.fields(DecodeTrace):
        a, b = getattr(first, f.name), getattr(second, f.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, f.name
        assert np.array_equal(a, b), f.name


def test_a_trace_is_sorted_and_holds_every_forward() -> None:
    trace, steps = recorded()
    assert trace.request_id.tolist() == sorted(k for k in KEYS for _ in steps[k])
    for key in KEYS:
        rows = np.flatnonzero(trace.request_id == key)
        assert trace.forward[rows].tolist() == list(range(len(rows)))
        for row, (fed, kept, decoded) in zip(rows, masks(steps)[key], strict=True):
            assert int(trace.fed[row]) == sum(1 << p for p in fed)
            assert int(trace.kept[row]) == sum(1 << p for p in kept)
            assert int(trace.decoded[row]) == sum(1 << p for p in decoded)
    assert trace.ended_request.tolist() == [2, 9]
    assert trace.ended_output_tokens.tolist() == [13, 9]
    assert trace.ended_reason.tolist() == ["stop", "length"]


@pytest.mark.parametrize("name", ["run.npz", "run.trace", "run"])
def test_a_saved_trace_comes_back_under_its_name(tmp_path: Path, name: str) -> None:
    trace, _ = recorded()
    trace.save(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert_equal_traces(DecodeTrace.load(tmp_path / name), trace)


def test_an_empty_trace_comes_back(tmp_path: Path) -> None:
    trace = TraceWriter(policy="baseline", block_length=4, alpha=1.0, threshold=0.5).finish()
    trace.save(tmp_path / "t.npz")
    loaded = DecodeTrace.load(tmp_path / "t.npz")
    assert_equal_traces(loaded, trace)
    assert loaded.request_id.shape == (0,)


@pytest.mark.parametrize("policy", BLOCK_POLICIES)
def test_exact_replay_repeats_every_mask(policy: str, tmp_path: Path) -> None:
    trace, steps = recorded(policy)
    trace.save(tmp_path / "t.npz")
    rules = replaying(tmp_path / "t.npz", policy)
    assert rules.exact_replay
    assert not rules.needs_confidence
    writer = TraceWriter(policy=policy, block_length=LENGTH, alpha=1.5, threshold=0.9)
    assert masks(drive(rules, policy, writer)) == masks(steps)
    again = writer.finish()
    for name in ("request_id", "forward", "fed", "kept", "decoded"):
        assert np.array_equal(getattr(again, name), getattr(trace, name))


def test_exact_replay_of_a_batch_equals_its_rows(tmp_path: Path) -> None:
    trace, steps = recorded()
    trace.save(tmp_path / "t.npz")
    rules = replaying(tmp_path / "t.npz", "focus")
    first = [steps[key][0] for key in KEYS]
    batch = BlockState.empty(len(first), LENGTH)
    for row, single in enumerate(first):
        batch.put(np.array([row]), single.block)
    step = step_block(rules, batch, None)
    for row, single in enumerate(first):
        assert np.array_equal(step.kept[row], single.kept[0])
        assert np.array_equal(step.decoded[row], single.decoded[0])
        assert step.progress[row] == single.progress[0]


def test_a_replayed_request_ends_where_the_trace_says(tmp_path: Path) -> None:
    trace, _ = recorded()
    trace.save(tmp_path / "t.npz")
    replay = replaying(tmp_path / "t.npz", "focus").replay
    assert replay is not None
    assert replay.ends == {2: (13, "stop"), 9: (9, "length")}


@pytest.mark.parametrize(
    "change",
    [{"policy": "delayed-cache-neighbor"}, {"alpha": 2.0}, {"threshold": 0.8}],
    ids=["policy", "alpha", "threshold"],
)
def test_a_trace_for_something_else_is_approximate(change: dict, tmp_path: Path) -> None:
    trace, steps = recorded()
    trace.save(tmp_path / "t.npz")
    policy = change.get("policy", "focus")
    rules = replaying(tmp_path / "t.npz", **({"policy": "focus"} | change))
    assert rules.replay is not None
    assert rules.replay.approximate
    assert not rules.exact_replay
    replayed = drive(rules, policy)
    for key in KEYS:
        traced = [len(d) for _, _, d in masks(steps)[key] if d]
        for number, step in enumerate(s for s in replayed[key] if not s.feed.commit[0]):
            candidates = positions(step.kept[0] & step.feed.decodable[0])
            count = traced[number % len(traced)]
            assert positions(step.decoded[0]) == candidates[:count]


def test_approximate_replay_of_an_unknown_request_uses_the_first_traced_one() -> None:
    trace, steps = recorded()
    config = DecodeConfig(policy="baseline", block_length=LENGTH)
    replay = Replay(trace=trace, config=config)
    block = start(77, "baseline", 0)
    counts = [len(d) for _, _, d in masks(steps)[min(KEYS)] if d]
    everything = np.ones((1, LENGTH), dtype=bool)
    for step in range(2 * len(counts)):
        block.request_steps[0] = step
        chosen = replay.approximate_decoded(block, everything)
        assert positions(chosen[0]) == list(range(counts[step % len(counts)]))


def test_another_block_length_is_refused(tmp_path: Path) -> None:
    trace, _ = recorded()
    with pytest.raises(UsageError, match=r"--block-length: 16 .* 8, that of the replayed"):
        Replay(trace=trace, config=DecodeConfig(block_length=16))


def test_a_request_that_the_trace_lacks_is_refused(tmp_path: Path) -> None:
    trace, _ = recorded()
    replay = Replay(trace=trace, config=DecodeConfig(block_length=LENGTH))
    block = start(77, "focus", 0)
    rules = rules_for("focus", LENGTH)
    rules.replay = replay
    with pytest.raises(UsageError, match="request 77, forward 0"):
        step_block(rules, block, None)


def test_a_trace_that_ends_early_is_refused(tmp_path: Path) -> None:
    trace, steps = recorded()
    trace.save(tmp_path / "t.npz")
    rules = replaying(tmp_path / "t.npz", "focus")
    block = start(5, "focus", 0)
    block.forwards[0] = len(steps[5])
    allowed = f"forwards 0 to {len(steps[5]) - 1}"
    with pytest.raises(UsageError, match=f"request 5, forward {len(steps[5])}' .*{allowed}"):
        step_block(rules, block, None)


def test_a_trace_of_another_workload_is_refused(tmp_path: Path) -> None:
    trace, _ = recorded()
    trace.save(tmp_path / "t.npz")
    rules = replaying(tmp_path / "t.npz", "focus")
    with pytest.raises(UsageError, match=r"request \d+, forward \d+.*fed positions"):
        drive(rules, "focus", known={5: 1, 2: 0, 9: 2})


# -- damaged files -------------------------------------------------------------------------------


def refused(path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        DecodeTrace.load(path)
    assert path.name in str(caught.value)


def test_files_that_are_no_traces_are_refused_by_name(tmp_path: Path) -> None:
    refused(tmp_path / "missing.npz")
    refused(tmp_path)
    for name, content in {
        "empty": b"",
        "text.npz": b"policy,block\n",
        "zip.npz": b"PK\3\4",
    }.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name)
    np.save(tmp_path / "array.npy", np.arange(3))
    refused(tmp_path / "array.npy")
    np.savez(tmp_path / "other.npz", schema_version=1, policy="focus")
    refused(tmp_path / "other.npz")
    objects = np.empty(1, dtype=object)
    np.savez(tmp_path / "objects.npz", schema_version=objects)
    refused(tmp_path / "objects.npz")


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "future.npz", schema_version=99)
    with pytest.raises(UsageError, match=r"future.npz schema_version: 99 .* allowed: 1"):
        DecodeTrace.load(tmp_path / "future.npz")


def test_a_cut_or_flipped_trace_is_refused_or_whole(tmp_path: Path) -> None:
    trace, _ = recorded()
    path = tmp_path / "t.npz"
    trace.save(path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 197):
        path.write_bytes(whole[:size])
        refused(path)
    harmless = 0
    for at in range(0, len(whole), 13):
        for flip in (0x01, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= flip
            path.write_bytes(damaged)
            try:
                loaded = DecodeTrace.load(path)
            except UsageError:
                continue
            harmless += 1  # a byte that the archive does not need, such as a time stamp
            assert_equal_traces(loaded, trace)
    assert harmless < len(whole) // 13
