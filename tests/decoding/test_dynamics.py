"""Dynamics fitted on traces: the fit finds what made the traces, and draws follow the table."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from decoding_cases import one_request, positions, rules_for, step_block

from focus_bench.core.config import AcceptanceConfig
from focus_bench.core.errors import UsageError
from focus_bench.decoding.acceptance import fitted_decoded
from focus_bench.decoding.block_state import BlockState
from focus_bench.decoding.dynamics import (
    DecodeDynamics,
    dynamics_of_model,
    fit_dynamics,
    mean_excess_rank,
    scattered,
    whole_blocks,
)
from focus_bench.decoding.masks import pack_masks
from focus_bench.decoding.policies import POLICY_CODES
from focus_bench.decoding.rules import StepRules
from focus_bench.decoding.trace import DecodeTrace, TraceWriter

LENGTH = 8


def bursty(scatter: float = 2.0, length: int = LENGTH) -> DecodeDynamics:
    """Mostly one position a step, now and then half of what is left."""
    table = np.zeros((length + 1, length + 1), dtype=np.int64)
    for m in range(1, length + 1):
        table[m, 1] += 70
        table[m, -(-m // 2)] += 20
        table[m, m] += 10
    return DecodeDynamics(block_length=length, threshold=0.9, scatter=scatter, steps=table)


def rules_of(dynamics: DecodeDynamics, policy: str = "baseline", seed: int = 3) -> StepRules:
    acceptance = AcceptanceConfig(
        kind="synthetic", mean=dynamics.mean, scatter=dynamics.scatter, preset="focus-tiny"
    )
    rules = rules_for(policy, dynamics.block_length, acceptance=acceptance, seed=seed)
    rules.dynamics = dynamics
    return rules


def traced(
    rules: StepRules, *, blocks: int, known: int = 0, policy: str = "baseline"
) -> DecodeTrace:
    """A request that closes `blocks` blocks, the first with `known` prompt tokens, and ends."""
    writer = TraceWriter(
        policy=policy, block_length=rules.decode.block_length, alpha=1.5, threshold=0.9
    )
    block = one_request(rules.decode.block_length, key=7)
    for number in range(blocks + 1):
        block.start_block(
            0,
            block_start=number * block.block_length,
            policy_code=POLICY_CODES[policy],
            known_tokens=np.zeros(known if number == 0 else 0, dtype=np.int32),
        )
        while True:
            step = step_block(rules, block, None)
            writer.add_step(step.block, step.feed, step.kept, step.decoded)
            if step.feed.commit[0] or number == blocks:  # the last block is left after one step
                break
    writer.add_end(7, 1, "stop")
    return writer.finish()


def test_the_fit_finds_the_dynamics_that_made_the_trace() -> None:
    truth = bursty(scatter=2.0)
    trace = traced(rules_of(truth), blocks=1500)
    fitted = fit_dynamics(trace)
    assert fitted.threshold == 0.9
    assert fitted.scatter == pytest.approx(2.0, rel=0.1)
    for m in range(1, LENGTH + 1):
        share = truth.steps[m] / truth.steps[m].sum()
        count = fitted.steps[m].sum()
        bound = 5 * np.sqrt(share * (1 - share) / count) + 1e-12
        assert (np.abs(fitted.steps[m] / count - share) <= bound).all()
    steps = whole_blocks(trace).steps_per_block
    assert len(steps) == 1500
    spread = steps.std() / math.sqrt(len(steps))
    assert abs(steps.mean() - truth.expected_steps(LENGTH)) < 5 * spread


def test_left_to_right_traces_have_no_scatter() -> None:
    assert fit_dynamics(traced(rules_of(bursty(scatter=0.0)), blocks=20)).scatter == 0.0


def trace_of(*forwards: tuple[int, str]) -> DecodeTrace:
    """(request, decoded positions as x and .) for every forward; "" is a commit pass."""
    width = max(len(text) for _, text in forwards)
    masks = np.array([[c == "x" for c in text.ljust(width, ".")] for _, text in forwards])
    request = np.array([r for r, _ in forwards], dtype=np.int64)
    forward = np.concatenate([np.arange((request == r).sum()) for r in np.unique(request)])
    words = pack_masks(masks)
    return DecodeTrace(
        policy="baseline",
        block_length=width,
        alpha=1.5,
        threshold=0.9,
        request_id=request,
        forward=forward,
        fed=words,
        kept=words,
        decoded=words,
        ended_request=np.unique(request),
        ended_output_tokens=np.ones(len(np.unique(request)), dtype=np.int64),
        ended_reason=np.array(["stop"] * len(np.unique(request))),
    )


def test_only_whole_blocks_count() -> None:
    trace = trace_of(
        (0, "..x."),  # a first block with two prompt tokens, closed
        (0, "...x"),
        (0, ""),
        (0, "xx.."),  # left open: the request ended
        (1, "x..x"),
        (1, ".xx."),
        (1, ""),
        (2, "xxxx"),  # left open
    )
    blocks = whole_blocks(trace)
    assert blocks.steps_per_block.tolist() == [2, 2]
    assert blocks.masked.tolist() == [2, 1, 4, 2]
    assert blocks.decoded.tolist() == [1, 1, 2, 2]
    assert [positions(row) for row in blocks.candidates] == [[2, 3], [3], [0, 1, 2, 3], [1, 2]]
    # Position 3 is two ranks right of the leftmost two; six positions were decoded.
    assert mean_excess_rank(blocks.candidates, blocks.chosen) == pytest.approx(2 / 6)
    fitted = fit_dynamics(trace)
    assert fitted.steps[4].tolist() == [0, 0, 1, 0, 0]
    assert fitted.steps[3].tolist() == [0, 0, 1, 0, 0]  # never seen: as with one more
    assert fitted.steps[2].tolist() == [0, 1, 1, 0, 0]


def test_traces_that_say_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="baseline, which evicts nothing"):
        fit_dynamics(dataclasses.replace(trace_of((0, "xx"), (0, "")), policy="focus"))
    with pytest.raises(UsageError, match="full blocks"):
        fit_dynamics(trace_of((0, "xx")))


def test_counts_follow_the_row_of_what_is_masked() -> None:
    dynamics, draws = bursty(), 20_000
    keys = np.arange(draws)
    for m in (1, 3, LENGTH, LENGTH + 5):  # a longer block draws from the full row
        counts = dynamics.counts(1, keys, keys * 0, np.full(draws, m))
        row = dynamics.steps[min(m, LENGTH)]
        share = row / row.sum()
        seen = np.bincount(counts, minlength=LENGTH + 1) / draws
        assert (np.abs(seen - share) <= 5 * np.sqrt(share * (1 - share) / draws) + 1e-12).all()


def test_a_row_draws_the_same_in_any_batch() -> None:
    dynamics = bursty()
    rng = np.random.default_rng(1)
    block = BlockState.empty(40, LENGTH)
    block.request_key[:] = rng.permutation(40)
    block.request_steps[:] = rng.integers(0, 9, 40)
    block.decoded[:] = rng.random((40, LENGTH)) < 0.4
    block.decoded[:, 5] = False
    block.behind_end[:] = rng.integers(0, 3, 40)
    config = AcceptanceConfig(kind="synthetic", mean=1.5, scatter=2.0, preset="focus-tiny")
    together = fitted_decoded(block, block.masked, config, dynamics, 9)
    for row in range(40):
        alone = block.take(np.array([row]))
        again = fitted_decoded(alone, alone.masked, config, dynamics, 9)
        assert np.array_equal(again[0], together[row])


def test_what_lies_behind_the_end_is_filled_and_counts_as_no_decoded_text() -> None:
    table = np.zeros((LENGTH + 1, LENGTH + 1), dtype=np.int64)
    table[np.arange(1, LENGTH + 1), np.arange(1, LENGTH + 1)] = 1  # everything at once ...
    table[LENGTH] = 0
    table[LENGTH, 1] = 1  # ... unless the whole block is masked
    dynamics = DecodeDynamics(block_length=LENGTH, threshold=0.9, scatter=0.0, steps=table)
    block = BlockState.empty(3, LENGTH)
    block.request_key[:] = np.arange(3)
    block.behind_end[:] = [0, 3, 3]
    kept = block.masked
    kept[2, 6:] = False  # evicted
    config = AcceptanceConfig(kind="synthetic", mean=1.0, preset="focus-tiny")
    chosen = fitted_decoded(block, kept, config, dynamics, 0)
    assert [positions(row) for row in chosen] == [
        [0],
        [0, 1, 2, 3, 4, 5, 6, 7],
        [0, 1, 2, 3, 4, 5],
    ]


@pytest.mark.parametrize("policy", ["baseline", "delayed-cache-neighbor", "focus"])
def test_every_policy_closes_its_blocks(policy: str) -> None:
    trace = traced(rules_of(bursty(), policy), blocks=30, known=3, policy=policy)
    assert len(whole_blocks(trace).steps_per_block) == 30


def test_scattered_takes_all_where_there_are_fewer() -> None:
    candidates = np.array([[True, False, True], [False, False, True]])
    noise = np.array([[0.0, 9.0, 3.0], [0.0, 0.0, 0.0]])
    chosen = scattered(candidates, np.array([1, 2]), noise)
    assert [positions(row) for row in chosen] == [[2], [2]]


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    file = tmp_path / "dynamics.json"
    saved = dataclasses.replace(bursty(scatter=1.25), importance_noise=0.5)
    saved.save(file, provenance={"fitted_on": "a test", "table": [1, 2]})
    read = DecodeDynamics.load(file)
    assert np.array_equal(read.steps, saved.steps)
    assert (read.block_length, read.threshold, read.scatter) == (LENGTH, 0.9, 1.25)
    assert read.importance_noise == 0.5
    assert json.loads(file.read_text())["provenance"]["fitted_on"] == "a test"
    good = json.loads(file.read_text())
    bad_rows: list[dict[str, object]] = [
        {"schema_version": 2},
        {"scatter": -1},
        {"importance_noise": -1},
        {"steps": good["steps"][:-1]},
        {"steps": [[0] * (LENGTH + 1)] * (LENGTH + 1)},
        {"steps": np.ones((LENGTH + 1, LENGTH + 1), dtype=int).tolist()},
        {"steps": "many"},
        {"block_length": None},
    ]
    for change in bad_rows:
        file.write_text(json.dumps(good | change))
        with pytest.raises(UsageError, match=r"allowed: ."):
            DecodeDynamics.load(file)
    with pytest.raises(UsageError, match=r"nowhere\.json"):
        DecodeDynamics.load(tmp_path / "nowhere.json")


def test_the_bundled_models_dynamics_are_those_of_its_traces() -> None:
    dynamics = dynamics_of_model("focus-tiny")
    assert (dynamics.block_length, dynamics.threshold) == (32, 0.9)
    assert 1.5 < dynamics.mean < 3.0
    assert dynamics.importance_noise is not None
    assert dynamics.steps[32].sum() > 300  # blocks that began with no token known
    assert dynamics.steps[32].sum() >= dynamics.steps[31].sum()
