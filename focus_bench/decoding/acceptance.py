"""Injected decoding where confidence means nothing: synthetic counts and scores, and replays.

The engine and the simulator call these with the same keys, so they agree step by step (algorithm
section 4). Knows no model.
"""

from dataclasses import dataclass, field

import numpy as np

from focus_bench.core.config import AcceptanceConfig, DecodeConfig, ImportanceConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.rng import gumbel, normal, stream_key, uniform
from focus_bench.decoding.block_state import (
    BlockState,
    BoolArray,
    FloatArray,
    IntArray,
    unpack_masks,
)
from focus_bench.decoding.caching import Feed
from focus_bench.decoding.dynamics import DecodeDynamics, scattered
from focus_bench.decoding.trace import DecodeTrace
from focus_bench.decoding.unmask import leftmost

# Mean tokens decoded per decode step for which the baseline's processed/decoded, commit passes
# counted, is the paper's Table 5 at B = 32 (exact recursion; see synthetic_steps_per_block).
PRESET_MEANS: dict[str, dict[str, float]] = {
    "sdar": {"sharegpt": 2.351, "wildchat": 2.385, "math": 5.363},
    "llada2": {"sharegpt": 1.740, "wildchat": 1.587, "math": 3.692},
}
PRESET_BLOCK_LENGTH = 32
PRESET_ALPHA = 1.5

# Synthetic importance, `fitted`: with tau fixed at 2.0, this noise brings FOCUS's processed/decoded
# at mean 2.351, B = 32, alpha 1.5 and long outputs to 3.12, the paper's Table 5 for ShareGPT with
# SDAR, by simulation of these rules. Noise 0.03 gives 3.04, 0.1 gives 3.47 and 0.3 gives 4.6. Not
# used in the fit: 3.11 at WildChat's mean and 2.78 at MATH's, where the paper has 3.05 and 2.69.
DEFAULT_IMPORTANCE_TAU = 2.0
DEFAULT_IMPORTANCE_NOISE = 0.05


def poisson_counts(mean: float, seed: int, request: IntArray, step: IntArray) -> IntArray:
    """Counts 1 + Poisson(mean - 1) for each (request, step), by inversion of a 53-bit uniform."""
    rate = mean - 1.0
    u = uniform(stream_key(seed, "acceptance-count"), request, step)
    if rate <= 0.0:
        return np.ones_like(request)
    return 1 + np.searchsorted(_poisson_cdf(rate), u, side="right").astype(np.int64)


def _poisson_cdf(rate: float) -> np.ndarray:
    size = int(rate + 12.0 * np.sqrt(rate) + 30.0)
    k = np.arange(1, size)
    log_terms = np.concatenate(([-rate], -rate + np.cumsum(np.log(rate) - np.log(k))))
    return np.cumsum(np.exp(log_terms))


def fitted_decoded(
    block: BlockState,
    candidates: BoolArray,
    config: AcceptanceConfig,
    dynamics: DecodeDynamics,
    seed: int,
) -> BoolArray:
    """Positions decoded in this step, [n, B], under dynamics fitted on a model's traces.

    Counts depend on the masked positions of the output only. Those behind its end, which the model
    fills with stop tokens in the course of its last block, are decoded as soon as they are kept.
    """
    places = np.arange(block.block_length)
    behind = places[None, :] >= block.block_length - block.behind_end[:, None]
    masked = (block.masked & ~behind).sum(axis=1)
    count = dynamics.counts(seed, block.request_key, block.request_steps, masked)
    return _placed(block, candidates & ~behind, count, config, seed) | (candidates & behind)


def synthetic_decoded(
    block: BlockState, candidates: BoolArray, config: AcceptanceConfig, seed: int
) -> BoolArray:
    """Positions decoded in this step, [n, B]: the count's best of rank plus scatter.

    `candidates` are the kept masked positions; ranks 0, 1, ... count them from the left.
    """
    count = poisson_counts(config.mean, seed, block.request_key, block.request_steps)
    return _placed(block, candidates, count, config, seed)


def _placed(
    block: BlockState, candidates: BoolArray, count: IntArray, config: AcceptanceConfig, seed: int
) -> BoolArray:
    """`count[n]` of the candidates [n, B], scattered as the configuration says."""
    if config.scatter == 0.0:
        return leftmost(candidates, count[:, None])
    noise = gumbel(
        stream_key(seed, "acceptance-scatter"),
        block.request_key[:, None],
        block.request_steps[:, None],
        np.arange(block.block_length)[None, :],
    )
    return scattered(candidates, count, config.scatter * noise)


def synthetic_delta(
    block: BlockState, feed: Feed, config: ImportanceConfig, seed: int
) -> FloatArray:
    """Importance deltas [n, B]: exp(-rank / tau) + noise * N(0, 1) over masked fed positions."""
    rank = np.cumsum(feed.decodable, axis=1) - 1
    score = np.exp(-np.maximum(rank, 0) / config.tau)
    if config.noise > 0.0:
        score = score + config.noise * normal(
            stream_key(seed, "importance-noise"),
            block.request_key[:, None],
            block.request_steps[:, None],
            np.arange(block.block_length)[None, :],
        )
    return np.where(feed.decodable, score, 0.0).astype(np.float32)


def synthetic_steps_per_block(mean: float, block_length: int) -> float:
    """Expected decode steps of a full block under synthetic acceptance, by exact recursion.

    E(m) = 1 + sum over n of P(count = n) * E(m - n), E(m <= 0) = 0; the baseline's
    processed/decoded is E(B) + 1 (the commit pass).
    """
    cdf = np.minimum(_poisson_cdf(mean - 1.0), 1.0) if mean > 1.0 else np.ones(1)
    probability = np.diff(np.concatenate(([0.0], cdf)))
    expected = np.zeros(block_length + 1)
    for m in range(1, block_length + 1):
        reach = min(m, len(probability))
        remaining = m - 1 - np.arange(reach)
        expected[m] = 1.0 + float(probability[:reach] @ expected[remaining])
    return float(expected[block_length])


@dataclass(kw_only=True)
class Replay:
    """Reads a decode trace in place of a model.

    A trace recorded for the very policy, B, alpha and threshold is replayed exactly: the fed
    positions are recomputed and must equal the trace's. Used for another policy, alpha or
    threshold it is `approximate`: its counts of decoded positions, request by request and decode
    step by decode step, are applied to the leftmost candidates. Another B is refused.
    """

    trace: DecodeTrace
    config: DecodeConfig
    approximate: bool = field(init=False)
    _first: dict[int, tuple[int, int]] = field(init=False)
    _counts: dict[int, IntArray] = field(init=False)
    ends: dict[int, tuple[int, str]] = field(init=False)

    def __post_init__(self) -> None:
        trace, config = self.trace, self.config
        if trace.block_length != config.block_length:
            raise UsageError(
                "--block-length",
                config.block_length,
                f"{trace.block_length}, that of the replayed decode trace",
            )
        self.approximate = (trace.policy, trace.alpha, trace.threshold) != (
            config.policy,
            config.alpha,
            config.threshold,
        )
        ids, first, count = np.unique(trace.request_id, return_index=True, return_counts=True)
        self._first = {int(i): (int(f), int(c)) for i, f, c in zip(ids, first, count, strict=True)}
        self._counts = {}
        if self.approximate:
            sizes = unpack_masks(trace.decoded, trace.block_length).sum(axis=1)
            for request, (start, length) in self._first.items():
                per_step = sizes[start : start + length]
                self._counts[request] = per_step[per_step > 0].astype(np.int64)
        self.ends = {
            int(r): (int(n), str(reason))
            for r, n, reason in zip(
                trace.ended_request,
                trace.ended_output_tokens,
                trace.ended_reason,
                strict=True,
            )
        }

    def rows(self, block: BlockState, feed: Feed) -> tuple[BoolArray, BoolArray]:
        """(kept, decoded) masks [n, B] of an exact replay, for the block's rows.

        Raises UsageError if the trace ends early or its fed positions are not those recomputed.
        """
        index = np.empty(block.num_rows, dtype=np.int64)
        for row, (request, forward) in enumerate(
            zip(block.request_key.tolist(), block.forwards.tolist(), strict=True)
        ):
            start, length = self._first.get(request, (0, 0))
            if forward >= length:
                raise UsageError(
                    "--acceptance replay",
                    f"request {request}, forward {forward}",
                    f"forwards 0 to {length - 1} of that request, as traced",
                )
            index[row] = start + forward
        fed = unpack_masks(self.trace.fed[index], block.block_length)
        if not np.array_equal(fed, feed.positions):
            row = int(np.argmax((fed != feed.positions).any(axis=1)))
            raise UsageError(
                "--acceptance replay",
                f"request {int(block.request_key[row])}, forward {int(block.forwards[row])}",
                "a trace whose fed positions are those of this workload and configuration",
            )
        kept = unpack_masks(self.trace.kept[index], block.block_length)
        decoded = unpack_masks(self.trace.decoded[index], block.block_length)
        return kept, decoded

    def approximate_decoded(self, block: BlockState, candidates: BoolArray) -> BoolArray:
        """Decoded positions [n, B] from the traced counts; a request that outlives its trace (or
        has none) goes on with the counts from their beginning (of the first traced request).
        """
        count = np.ones(block.num_rows, dtype=np.int64)
        fallback = next(iter(self._counts.values()), np.ones(1, dtype=np.int64))
        for row, (request, step) in enumerate(
            zip(block.request_key.tolist(), block.request_steps.tolist(), strict=True)
        ):
            counts = self._counts.get(request, fallback)
            if len(counts):
                count[row] = counts[step % len(counts)]
        return leftmost(candidates, count[:, None])
