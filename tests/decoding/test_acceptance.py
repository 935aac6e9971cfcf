"""Synthetic acceptance and importance: distributions, presets, scatter, keys, simulated sizes."""

import math

import numpy as np
import pytest
from decoding_cases import (
    one_request,
    positions,
    random_blocks,
    rules_for,
    run_block,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from focus_bench.core.config import AcceptanceConfig, ImportanceConfig
from focus_bench.core.errors import UsageError
from focus_bench.decoding.acceptance import (
    PRESET_BLOCK_LENGTH,
    PRESET_MEANS,
    poisson_counts,
    synthetic_decoded,
    synthetic_delta,
    synthetic_steps_per_block,
)
from focus_bench.decoding.block_state import BlockState
from focus_bench.decoding.caching import Feed, plan_feed

# Paper, Table 5: positions processed per token decoded by the baseline, B = 32.
TABLE_5_BASELINE = {
    ("sdar", "sharegpt"): 15.02,
    ("sdar", "wildchat"): 14.83,
    ("sdar", "math"): 7.45,
    ("llada2", "sharegpt"): 19.73,
    ("llada2", "wildchat"): 21.47,
    ("llada2", "math"): 10.13,
}


def poisson_pmf(rate: float, size: int) -> np.ndarray:
    k = range(size)
    return np.array([math.exp(i * math.log(rate) - rate - math.lgamma(i + 1)) for i in k])


# -- counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [1.05, 1.587, 2.351, 5.363, 30.0, 64.0])
def test_counts_follow_the_shifted_poisson_distribution(mean: float) -> None:
    draws = 200_000
    request, step = np.divmod(np.arange(draws), 400)
    counts = poisson_counts(mean, 17, request, step)
    assert counts.dtype == np.int64
    assert counts.min() >= 1
    assert abs(counts.mean() - mean) < 5 * math.sqrt((mean - 1) / draws)
    expected = draws * poisson_pmf(mean - 1, 256)
    observed = np.bincount(counts - 1, minlength=256)[:256].astype(float)
    assert observed.sum() == draws
    common = expected >= 10
    chi2 = ((observed - expected)[common] ** 2 / expected[common]).sum()
    tail, tail_expected = observed[~common].sum(), expected[~common].sum()
    chi2 += (tail - tail_expected) ** 2 / max(tail_expected, 1e-9) if tail_expected > 1 else 0.0
    freedom = int(common.sum())
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom)


def test_mean_one_decodes_one_a_step() -> None:
    assert poisson_counts(1.0, 3, np.arange(50), np.arange(50)).tolist() == [1] * 50


def test_counts_of_steps_and_of_requests_are_independent() -> None:
    request, step = np.meshgrid(np.arange(300), np.arange(300), indexing="ij")
    counts = poisson_counts(2.351, 5, request, step).astype(float)
    z = (counts - counts.mean()) / counts.std()
    bound = 5 / math.sqrt(counts.size)
    assert abs((z[:, 1:] * z[:, :-1]).mean()) < bound
    assert abs((z[1:] * z[:-1]).mean()) < bound
    assert abs((z * z.T).mean()) < bound + 1 / 300  # the diagonal is the same numbers


def test_counts_are_a_function_of_seed_request_and_step() -> None:
    request, step = np.arange(64) % 8, np.arange(64) // 8
    counts = poisson_counts(4.0, 1, request, step)
    assert np.array_equal(counts, poisson_counts(4.0, 1, request, step))
    order = np.random.default_rng(0).permutation(64)
    assert np.array_equal(counts[order], poisson_counts(4.0, 1, request[order], step[order]))
    assert not np.array_equal(counts, poisson_counts(4.0, 2, request, step))
    assert not np.array_equal(counts, poisson_counts(4.0, 1, step, request))


# -- presets -------------------------------------------------------------------------------------


def renewal_steps(mean: float, block_length: int) -> float:
    """Expected steps in closed form: sum over t of P(t counts add up to less than B)."""
    total = 0.0
    for t in range(block_length):
        rate = t * (mean - 1.0)
        terms = range(block_length - t)
        if rate == 0.0:
            total += 1.0
        else:
            total += sum(math.exp(k * math.log(rate) - rate - math.lgamma(k + 1)) for k in terms)
    return total


def test_presets_cover_the_table() -> None:
    assert {(m, d) for m, means in PRESET_MEANS.items() for d in means} == set(TABLE_5_BASELINE)
    assert PRESET_BLOCK_LENGTH == 32
    assert PRESET_MEANS["sdar"] == {"sharegpt": 2.351, "wildchat": 2.385, "math": 5.363}
    assert PRESET_MEANS["llada2"] == {"sharegpt": 1.740, "wildchat": 1.587, "math": 3.692}


@pytest.mark.parametrize(("model", "dataset"), list(TABLE_5_BASELINE))
def test_presets_give_the_baseline_of_table_5(model: str, dataset: str) -> None:
    mean = PRESET_MEANS[model][dataset]
    ratio = synthetic_steps_per_block(mean, PRESET_BLOCK_LENGTH) + 1
    assert ratio == pytest.approx(TABLE_5_BASELINE[model, dataset], abs=0.05)


@pytest.mark.parametrize("mean", [1.0, 1.001, 1.74, 2.351, 5.363, 40.0])
@pytest.mark.parametrize("block_length", [1, 2, 8, 32, 64])
def test_recursion_equals_the_renewal_sum(mean: float, block_length: int) -> None:
    steps = synthetic_steps_per_block(mean, block_length)
    assert steps == pytest.approx(renewal_steps(mean, block_length), rel=1e-9)


def processed_per_decoded(policy: str, mean: float, scatter: float, blocks: int) -> float:
    acceptance = AcceptanceConfig(kind="synthetic", mean=mean, scatter=scatter)
    rules = rules_for(policy, 32, acceptance=acceptance, seed=4)
    block, total = one_request(32), 0
    for _ in range(blocks):
        total += sum(int(step.kept.sum()) for step in run_block(rules, block))
    return total / (32 * blocks)


def test_the_rules_reach_what_the_recursion_says() -> None:
    blocks = 400
    ratio = processed_per_decoded("baseline", 2.351, 0.0, blocks)
    assert ratio == pytest.approx(15.02, abs=5 * 1.9 / math.sqrt(blocks))


@pytest.mark.parametrize(("scatter", "ratio"), [(0.0, 8.8), (64.0, 10.7)])
def test_left_to_right_flatters_the_delayed_cache(scatter: float, ratio: float) -> None:
    measured = processed_per_decoded("delayed-cache-neighbor", 2.351, scatter, 300)
    assert measured == pytest.approx(ratio, abs=0.25)


# -- places --------------------------------------------------------------------------------------


@given(case=random_blocks(), mean=st.sampled_from((1.0, 1.5, 6.0)), seed=st.integers(0, 99))
def test_without_scatter_the_leftmost_candidates_are_decoded(
    case: tuple[BlockState, Feed, np.ndarray], mean: float, seed: int
) -> None:
    block, feed, _ = case
    config = AcceptanceConfig(kind="synthetic", mean=mean)
    chosen = synthetic_decoded(block, feed.decodable, config, seed)
    counts = poisson_counts(mean, seed, block.request_key, block.request_steps)
    for row in range(block.num_rows):
        assert positions(chosen[row]) == positions(feed.decodable[row])[: int(counts[row])]


@given(
    case=random_blocks(), scatter=st.sampled_from((0.0, 0.5, 5.0)), mean=st.floats(1, 8, width=16)
)
def test_decoded_positions_are_candidates_and_as_many_as_counted(
    case: tuple[BlockState, Feed, np.ndarray], scatter: float, mean: float
) -> None:
    block, feed, _ = case
    config = AcceptanceConfig(kind="synthetic", mean=mean, scatter=scatter)
    chosen = synthetic_decoded(block, feed.decodable, config, 1)
    counts = poisson_counts(mean, 1, block.request_key, block.request_steps)
    assert not (chosen & ~feed.decodable).any()
    assert chosen.sum(axis=1).tolist() == np.minimum(counts, feed.decodable.sum(axis=1)).tolist()


@settings(max_examples=60)
@given(case=random_blocks(), scatter=st.sampled_from((0.0, 2.0)), noise=st.sampled_from((0.0, 1.0)))
def test_a_row_draws_the_same_in_any_batch(
    case: tuple[BlockState, Feed, np.ndarray], scatter: float, noise: float
) -> None:
    block, feed, _ = case
    acceptance = AcceptanceConfig(kind="synthetic", mean=3.0, scatter=scatter)
    ranking = ImportanceConfig(kind="synthetic", tau=1.5, noise=noise)
    decoded = synthetic_decoded(block, feed.decodable, acceptance, 9)
    delta = synthetic_delta(block, feed, ranking, 9)
    for row in range(block.num_rows):
        alone = block.take(np.array([row]))
        single = plan_feed(alone)
        again = synthetic_decoded(alone, single.decodable, acceptance, 9)
        assert np.array_equal(again[0], decoded[row])
        assert np.array_equal(synthetic_delta(alone, single, ranking, 9)[0], delta[row])


def test_much_scatter_decodes_uniformly_and_little_nearly_in_order() -> None:
    count = 6000
    block = BlockState.empty(count, 16)
    block.request_key[:] = np.arange(count)
    block.uncached[:] = True
    candidates = np.ones((count, 16), dtype=bool)

    def places(scatter: float) -> np.ndarray:
        config = AcceptanceConfig(kind="synthetic", mean=1.0, scatter=scatter)
        return synthetic_decoded(block, candidates, config, 2).sum(axis=0)

    # The best of (-rank + s * Gumbel) falls on rank r with probability softmax(-r / s).
    for scatter in (0.5, 2.0, 64.0):
        weights = np.exp(-np.arange(16) / scatter)
        expected = count * weights / weights.sum()
        spread = np.sqrt(expected) + 1
        assert (np.abs(places(scatter) - expected) < 5 * spread).all()


def test_ranks_count_candidates_not_positions() -> None:
    """Only the kept masked positions have ranks: gaps do not make a position less likely."""
    count = 4000
    block = BlockState.empty(count, 16)
    block.request_key[:] = np.arange(count)
    candidates = np.zeros((count, 16), dtype=bool)
    candidates[:, [0, 15]] = True
    config = AcceptanceConfig(kind="synthetic", mean=1.0, scatter=1.0)
    second = int(synthetic_decoded(block, candidates, config, 2)[:, 15].sum())
    share = 1 / (1 + math.e)
    assert abs(second - count * share) < 5 * math.sqrt(count * share)


# -- importance ----------------------------------------------------------------------------------


def test_synthetic_importance_falls_with_the_rank_among_masked_fed_positions() -> None:
    block = BlockState.empty(1, 6)
    block.uncached[:] = True
    block.decoded[0, [0, 2]] = True
    config = ImportanceConfig(kind="synthetic", tau=2.0)
    delta = synthetic_delta(block, plan_feed(block), config, 0)
    assert delta.dtype == np.float32
    expected = [0, 1, 0, math.exp(-0.5), math.exp(-1), math.exp(-1.5)]
    np.testing.assert_allclose(delta[0], expected, rtol=1e-6)


def test_noise_of_synthetic_importance_is_standard_normal_and_keyed() -> None:
    count = 3000
    block = BlockState.empty(count, 32)
    block.request_key[:] = np.arange(count)
    block.uncached[:] = True
    feed = plan_feed(block)
    plain = synthetic_delta(block, feed, ImportanceConfig(kind="synthetic", tau=1.0), 0)
    noisy = ImportanceConfig(kind="synthetic", tau=1.0, noise=0.5)
    noise = (synthetic_delta(block, feed, noisy, 0) - plain) / 0.5
    size = noise.size
    assert abs(noise.mean()) < 5 / math.sqrt(size)
    assert abs(noise.var() - 1) < 5 * math.sqrt(2 / size)
    inside = (np.abs(noise) < 1).mean()
    assert abs(inside - math.erf(1 / math.sqrt(2))) < 5 * math.sqrt(0.22 / size)
    assert abs((noise[:, 1:] * noise[:, :-1]).mean()) < 5 / math.sqrt(size)
    other = (synthetic_delta(block, feed, noisy, 1) - plain) / 0.5
    assert abs((noise * other).mean()) < 5 / math.sqrt(size)
    block.request_steps[:] = 1
    assert not np.array_equal(synthetic_delta(block, feed, noisy, 0), noise * 0.5 + plain)


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "synthetic", "mean": 0.5},
        {"kind": "synthetic", "mean": float("nan")},
        {"kind": "synthetic", "mean": 2.0, "scatter": -1.0},
        {"kind": "replay"},
        {"kind": "guess"},
    ],
)
def test_bad_acceptance_is_refused_by_name(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="--acceptance"):
        AcceptanceConfig(**bad)
