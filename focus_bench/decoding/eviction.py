"""The FOCUS rule, whole: importance, budget, selection, constraints, progress (paper 3 and 4).

Pure array functions; they know neither where the scores come from nor how a forward uses the kept
positions. Rows are sequences (n), columns the B positions of their current blocks. Each deviation
from the paper's letter has its ADR: masked positions only, >= for >, N_avg per block.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from focus_bench.core.config import DecodeConfig
from focus_bench.core.rng import stream_key, uniform
from focus_bench.decoding.block_state import BlockState, BoolArray, FloatArray, IntArray
from focus_bench.decoding.caching import Feed
from focus_bench.decoding.masks import columns_below, count_true, last_true, right_neighbor
from focus_bench.decoding.policies import BY_SCORE_OF_CODE, FIXED_OF_CODE, IDEAL_OF_CODE
from focus_bench.decoding.ranking import largest

POOL_WINDOW = 3  # Eq. 2: max-pooling of attention scores along the keys, stride 1


@dataclass(frozen=True, kw_only=True)
class Eviction:
    """Outcome of one step's eviction: `kept[n,B]` positions go on past layer 1's K/V write;
    `progress[n]` is the block's progress after the step.
    """

    kept: BoolArray
    progress: IntArray


def importance(q: FloatArray, k: FloatArray) -> FloatArray:
    """Importance of one sequence's masked fed positions in one layer (paper Eq. 2), float32 [M].

    q is [M, query heads, head_dim], k is [M, KV heads, head_dim], both after QK-norm and rotary
    embedding, rows in ascending position order. Every masked position is query and key, without a
    causal mask; scores are max-pooled over neighbouring keys, then softmaxed over keys, and summed
    over heads and queries.
    """
    num_masked, num_q_heads, head_dim = q.shape
    keys = np.repeat(k, num_q_heads // k.shape[1], axis=1)
    scores = np.einsum("ihd,jhd->hij", q, keys).astype(np.float32) * np.float32(head_dim**-0.5)
    padded = np.full((num_q_heads, num_masked, num_masked + 2), -np.inf, dtype=np.float32)
    padded[:, :, 1:-1] = scores
    pooled = np.lib.stride_tricks.sliding_window_view(padded, POOL_WINDOW, axis=2).max(axis=-1)
    weights = np.exp(pooled - pooled.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.asarray(weights.sum(axis=(0, 1)), dtype=np.float32)


def base_budget(block: BlockState, num_masked: IntArray, config: DecodeConfig) -> IntArray:
    """K0 = min(M, max(1, ceil(alpha * N_avg))) of each row (Eq. 4), in exact arithmetic.

    N_avg is tokens decoded / decode steps over the current block (or the whole sequence), 1 before
    the first step.
    """
    per_block = config.budget_average == "block"
    tokens = block.block_decoded if per_block else block.request_decoded
    steps = block.block_steps if per_block else block.request_steps
    tokens = np.where(steps > 0, tokens, 1)
    steps = np.maximum(steps, 1)
    alpha: Fraction = config.alpha_fraction
    ceiling = -((-alpha.numerator * tokens) // (alpha.denominator * steps))
    return np.asarray(np.minimum(num_masked, np.maximum(1, ceiling)))


def outlier_count(delta: FloatArray, masked_fed: BoolArray) -> IntArray:
    """N_sigma of each row (Eq. 5): deltas >= mean + population std; 0 where the std is 0."""
    if not np.isfinite(delta).all():
        delta = np.where(masked_fed, delta, np.float32(0.0))
    return _finite_outliers(delta, masked_fed)


def _finite_outliers(delta: FloatArray, masked_fed: BoolArray) -> IntArray:
    """`outlier_count` of deltas that are finite everywhere."""
    # (Products, since `where` takes three times as long on masks without a pattern.)
    values = delta.astype(np.float64)
    values *= masked_fed
    count = np.maximum(count_true(masked_fed), 1)
    mean = np.add.reduce(values, axis=1) / count
    squares = values - mean[:, None]
    squares *= masked_fed
    squares *= squares
    std = np.sqrt(np.add.reduce(squares, axis=1) / count)
    above = values >= (mean + std)[:, None]
    above &= masked_fed
    return np.asarray(count_true(above) * (std > 0))


def rows_to_evict(block: BlockState, feed: Feed, config: DecodeConfig) -> BoolArray:
    """Rows [n] whose step needs importance deltas: a policy that evicts by score, and M > K0."""
    by_score = evicts_by_score(block)
    if not by_score.any():
        return by_score
    return by_score & (feed.num_decodable > row_budget(block, feed, config))


def row_budget(block: BlockState, feed: Feed, config: DecodeConfig) -> IntArray:
    """Masked positions [n] kept at least: K0, or what policy focus-fixed retains."""
    base = base_budget(block, feed.num_decodable, config)
    fixed = FIXED_OF_CODE[block.policy_code]
    if not fixed.any():
        return base
    return np.where(fixed, np.minimum(feed.num_decodable, config.retain), base)


def evict(
    block: BlockState,
    feed: Feed,
    delta: FloatArray,
    config: DecodeConfig,
    seed: int,
    *,
    evicting: BoolArray | None = None,
) -> Eviction:
    """Choose the positions that go on past layer 1 (algorithm 2, "Budget" and "Constraints").

    `delta[n,B]` float32 is the importance of layer 1 minus that of layer 0, read at masked fed
    positions. Rows that need no eviction, and rows with a non-finite delta, keep all they feed.
    `evicting[n]`: what `rows_to_evict` gave, where the caller has asked it.
    """
    masked_fed = feed.decodable
    active = rows_to_evict(block, feed, config) if evicting is None else evicting
    finite = np.isfinite(delta)
    if not finite.all():
        active = active & (finite | ~masked_fed).all(axis=1)
        delta = np.where(finite, delta, np.float32(0.0))
    ranked = masked_fed & active[:, None]
    fixed = FIXED_OF_CODE[block.policy_code]
    budget = row_budget(block, feed, config)
    if not fixed.all():
        outliers = _finite_outliers(delta, ranked)
        budget = np.maximum(budget, outliers * ~fixed)
    selected = largest(_selection_score(block, delta, fixed, config, seed), ranked, budget)
    constrained = enforce_constraints(block, feed, selected)
    return _finish(block, feed.positions & (constrained | ~active[:, None]))


def evict_ideal(block: BlockState, feed: Feed, decodable_now: BoolArray) -> Eviction:
    """Keep what the step decodes without eviction (`decodable_now[n,B]`) and constraints 1 and 3;
    rows of other policies, and commit passes, keep all they feed.
    """
    ideal = IDEAL_OF_CODE[block.policy_code] & ~feed.commit
    constrained = enforce_constraints(block, feed, decodable_now)
    return _finish(block, np.where(ideal[:, None], constrained, feed.positions))


def keep_all(block: BlockState, feed: Feed) -> Eviction:
    """A step without eviction: every fed position counts as kept."""
    return _finish(block, feed.positions)


def kept_as_given(block: BlockState, feed: Feed, kept: BoolArray) -> Eviction:
    """Kept positions as a trace recorded or a device selected them, of those fed."""
    return _finish(block, kept & feed.positions)


def enforce_constraints(block: BlockState, feed: Feed, selected: BoolArray) -> BoolArray:
    """Kept positions from selected ones (paper 4.2): AR context, placeholder integrity.

    1. A dropped masked p is kept if p + 1 is masked and was selected (one pass, no cascade).
    2. Every dropped masked p left of the rightmost kept mask that was never processed past layer 1
       (p > progress) comes back. Fed positions that are already decoded are always kept.
    """
    masked_fed = feed.decodable
    before_selected = right_neighbor(selected & ~block.decoded, at_end=False)
    kept_masked = selected | (masked_fed & before_selected)
    processed = columns_below(block.progress + 1, block.block_length)
    before_last = columns_below(last_true(kept_masked), block.block_length)
    kept_masked |= masked_fed & ~processed & before_last
    return np.asarray(kept_masked | (feed.positions & block.decoded))


def evicts_by_score(block: BlockState) -> BoolArray:
    """Rows [n] of policies that rank positions by their importance delta."""
    return np.asarray(BY_SCORE_OF_CODE[block.policy_code])


def _finish(block: BlockState, kept: BoolArray) -> Eviction:
    rightmost = last_true(kept)
    if (rightmost < 0).any():
        raise AssertionError("eviction kept nothing of a row")
    return Eviction(kept=kept, progress=np.maximum(block.progress, rightmost))


def _selection_score(
    block: BlockState, delta: FloatArray, fixed: BoolArray, config: DecodeConfig, seed: int
) -> npt.NDArray[np.floating]:
    """Scores whose largest are selected: the delta itself, or the fixed policy's alternative."""
    if config.select == "top" or not fixed.any():
        return delta
    alternative = -delta if config.select == "bottom" else random_scores(block, seed)
    return np.where(fixed[:, None], alternative, delta)


def random_scores(block: BlockState, seed: int) -> npt.NDArray[np.float64]:
    """What ``--select random`` ranks by, [n, B]: uniform in (seed, request, block, step, place)."""
    return uniform(
        stream_key(seed, "select-random"),
        block.request_key[:, None],
        block.block_index[:, None],
        block.block_steps[:, None],
        np.arange(block.block_length)[None, :],
    )
