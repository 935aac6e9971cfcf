"""Blocks for the tests of decoding: from strings, at random, and driven step by step."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from focus_bench.core.config import AcceptanceConfig, DecodeConfig, ImportanceConfig
from focus_bench.decoding.block_state import BlockState
from focus_bench.decoding.caching import Feed, freeze, plan_feed
from focus_bench.decoding.policies import POLICY_CODES
from focus_bench.decoding.rules import StepRules

BLOCK_POLICIES = (
    "baseline",
    "delayed-cache",
    "delayed-cache-neighbor",
    "focus",
    "focus-fixed",
    "ideal",
    "fast-dllm-v2",
)


def block_of(
    *rows: str,
    policy: str = "focus",
    uncached: tuple[str, ...] | None = None,
    progress: int = -1,
    steps: int = 0,
    decoded: int = 0,
) -> BlockState:
    """One row a string of D (decoded) and M (masked); `uncached` strings of x and . (default: all).

    `steps` and `decoded`: decode steps of the block so far and the tokens decoded in them.
    """
    state = BlockState.empty(len(rows), len(rows[0]))
    state.decoded[:] = [[c == "D" for c in row] for row in rows]
    state.uncached[:] = True
    if uncached is not None:
        state.uncached[:] = [[c == "x" for c in row] for row in uncached]
    state.progress[:] = progress
    state.block_steps[:] = state.request_steps[:] = steps
    state.block_decoded[:] = state.request_decoded[:] = decoded
    state.request_key[:] = np.arange(len(rows))
    state.policy_code[:] = POLICY_CODES[policy]
    return state


def positions(mask: np.ndarray) -> list[int]:
    """Positions that are set in one row."""
    return np.flatnonzero(mask).tolist()


def bits(draw: st.DrawFn, width: int) -> np.ndarray:
    """A random mask of that width."""
    word = draw(st.integers(0, 2**width - 1))
    return np.array([word >> p & 1 for p in range(width)], dtype=bool)


@st.composite
def random_blocks(
    draw: st.DrawFn, policies: tuple[str, ...] = ("focus", "focus-fixed"), max_rows: int = 4
) -> tuple[BlockState, Feed, np.ndarray]:
    """(block, feed, delta) with at least one mask a row; deltas on a grid of eighths, many ties."""
    length = draw(st.sampled_from((1, 2, 3, 4, 8, 13, 32, 64)))
    count = draw(st.integers(1, max_rows))
    block = BlockState.empty(count, length)
    delta = np.zeros((count, length), dtype=np.float32)
    for row in range(count):
        block.decoded[row] = bits(draw, length)
        block.decoded[row, draw(st.integers(0, length - 1))] = False
        block.uncached[row] = bits(draw, length) | ~block.decoded[row]
        block.progress[row] = draw(st.integers(-1, length - 1))
        steps = draw(st.integers(0, 6))
        block.block_steps[row] = block.request_steps[row] = steps
        block.block_decoded[row] = draw(st.integers(steps, 4 * steps))
        block.request_decoded[row] = block.block_decoded[row]
        block.request_key[row] = draw(st.integers(0, 2**40))
        block.block_index[row] = draw(st.integers(0, 100))
        block.policy_code[row] = POLICY_CODES[draw(st.sampled_from(policies))]
        grid = draw(st.lists(st.integers(-16, 16), min_size=length, max_size=length))
        delta[row] = np.array(grid, dtype=np.float32) / 8
    return block, plan_feed(block), delta


def kept_by_rule(
    masked: set[int],
    fed: set[int],
    progress: int,
    delta: dict[int, Fraction],
    *,
    base: int,
    outliers: bool,
) -> tuple[set[int], int]:
    """The budget and the three constraints of one row, stated slowly with sets and fractions.

    Returns (kept, progress after the step). `base`: K0, or the fixed K; `outliers`: whether
    N_sigma counts.
    """
    candidates = sorted(masked & fed)
    if len(candidates) <= base:
        kept = set(fed)
        return kept, max({progress} | kept)
    budget = base
    if outliers:
        mean = sum(delta[p] for p in candidates) / Fraction(len(candidates))
        variance = sum((delta[p] - mean) ** 2 for p in candidates) / Fraction(len(candidates))
        far = [p for p in candidates if delta[p] >= mean and (delta[p] - mean) ** 2 >= variance]
        budget = max(base, len(far) if variance > 0 else 0)
    selected = set(sorted(candidates, key=lambda p: (-delta[p], p))[:budget])
    kept = set(selected)
    for p in candidates:
        if p not in selected and p + 1 in masked and p + 1 in selected:
            kept.add(p)
    rightmost = max(kept)
    for p in candidates:
        if p < rightmost and p > progress:
            kept.add(p)
    kept |= fed - masked
    return kept, max({progress} | kept)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One forward of a batch: the block before it, what it fed, kept and decoded."""

    block: BlockState
    feed: Feed
    kept: np.ndarray
    progress: np.ndarray
    decoded: np.ndarray


def rules_for(
    policy: str,
    block_length: int,
    *,
    acceptance: AcceptanceConfig | None = None,
    importance: ImportanceConfig | None = None,
    seed: int = 0,
    **decode: object,
) -> StepRules:
    """Rules with synthetic importance and, unless given, acceptance by confidence."""
    return StepRules(
        decode=DecodeConfig(policy=policy, block_length=block_length, **decode),
        acceptance=acceptance or AcceptanceConfig(),
        importance=importance or ImportanceConfig(kind="synthetic", tau=2.0, noise=0.3),
        seed=seed,
    )


def step_block(rules: StepRules, block: BlockState, confidence: np.ndarray | None) -> Step:
    """One forward of the rows of `block`, applied to them in place."""
    before = block.take(np.arange(block.num_rows))
    feed = plan_feed(before)
    if rules.ideal_rows(before, feed).any():
        decoded = rules.decoded(before, feed, feed.positions, confidence)
        eviction = rules.evict_ideal(before, feed, decoded)
    else:
        eviction = rules.evict(before, feed, None)
        decoded = rules.decoded(before, feed, eviction.kept, confidence)
    block.record_forward(commit=feed.commit, uncached=freeze(before))
    tokens = np.ones(decoded.shape, dtype=np.int32)
    block.record_decoded(decoded, tokens, eviction.progress, commit=feed.commit)
    return Step(
        block=before, feed=feed, kept=eviction.kept, progress=eviction.progress, decoded=decoded
    )


def run_block(
    rules: StepRules,
    block: BlockState,
    *,
    known: int = 0,
    noise: np.random.Generator | None = None,
) -> list[Step]:
    """One whole block of the single row of `block`, its commit pass included.

    The block starts with `known` prompt tokens. Confidences come from `noise`, rounded to tenths so
    that ties and values at the threshold are common.
    """
    length = block.block_length
    code = POLICY_CODES[rules.decode.policy]
    block.start_block(0, block_start=0, policy_code=code, known_tokens=np.zeros(known, np.int32))
    steps = []
    while not steps or not steps[-1].feed.commit[0]:
        confidence = None
        if noise is not None:
            confidence = (noise.integers(1, 11, size=(1, length)) / 10).astype(np.float32)
        steps.append(step_block(rules, block, confidence))
        assert len(steps) <= length + 1, "a block takes at most B decode steps"
    return steps


def one_request(block_length: int, key: int = 0) -> BlockState:
    """State of a single request that has not started a block."""
    block = BlockState.empty(1, block_length)
    block.start_request(0, key)
    return block
