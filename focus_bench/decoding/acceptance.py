"""Injected decoding where confidence means nothing: synthetic counts and scores, and replays.

The engine and the simulator call these with the same keys, so they agree step by step (algorithm
section 4). Knows no model.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from focus_bench.core.config import AcceptanceConfig, DecodeConfig, ImportanceConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.rng import gumbel, hash_u64, normal, stream_key, uniform
from focus_bench.decoding.block_state import BlockState, BoolArray, FloatArray, IntArray
from focus_bench.decoding.caching import Feed
from focus_bench.decoding.dynamics import DecodeDynamics, scattered
from focus_bench.decoding.masks import count_true, unpack_masks
from focus_bench.decoding.ranking import leftmost
from focus_bench.decoding.trace import DecodeTrace

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


@lru_cache(maxsize=16)
def _poisson_cdf(rate: float) -> npt.NDArray[np.float64]:
    size = int(rate + 12.0 * np.sqrt(rate) + 30.0)
    k = np.arange(1, size)
    log_terms = np.concatenate(([-rate], -rate + np.cumsum(np.log(rate) - np.log(k))))
    cdf = np.cumsum(np.exp(log_terms))
    cdf.flags.writeable = False  # every caller gets this very array
    return cdf


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
    masked = count_true(block.masked & ~behind)
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
    # Every masked fed position of the batch on one line, row after row: noise is costly, and the
    # other positions need none.
    count, length = feed.num_decodable, block.block_length
    index = feed.decodable.reshape(-1).nonzero()[0]
    row = index // length
    before = count.cumsum() - count  # in the rows above
    rank = np.arange(len(index)) - before.take(row)
    score = _scores_of_ranks(length, config.tau).take(rank)
    if config.noise > 0.0:
        key = stream_key(seed, "importance-noise")
        of_row = hash_u64(key, block.request_key, block.request_steps)
        noise = normal(of_row.take(row), index - row * length)
        noise *= config.noise
        score += noise
    delta = np.zeros(feed.decodable.shape, dtype=np.float32)
    delta.reshape(-1)[index] = score.astype(np.float32)
    return delta


@lru_cache(maxsize=16)
def _scores_of_ranks(length: int, tau: float) -> npt.NDArray[np.float64]:
    """exp(-rank / tau) of ranks 0 to `length` - 1."""
    scores = np.exp(-np.arange(length) / tau)
    scores.flags.writeable = False  # every caller gets this very array
    return scores


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
    ends: dict[int, tuple[int, str]] = field(init=False)
    _requests: IntArray = field(init=False)
    _forwards: "_Runs" = field(init=False)
    _counts: IntArray = field(init=False)
    _steps: "_Runs" = field(init=False)

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
        # Place 0 stands for every request that the trace does not hold.
        ids, place = np.unique(trace.request_id, return_inverse=True)
        self._requests = np.concatenate([[-1], ids])
        self._forwards = _Runs.of(place + 1, len(self._requests))
        sizes = count_true(unpack_masks(trace.decoded, trace.block_length))
        self._counts = np.append(sizes[sizes > 0], 1)  # the last one is for those without any
        self._steps = _Runs.of(place[sizes > 0] + 1, len(self._requests))
        self.ends = {
            int(r): (int(n), str(reason))
            for r, n, reason in zip(
                trace.ended_request,
                trace.ended_output_tokens,
                trace.ended_reason,
                strict=True,
            )
        }

    def kept(self, block: BlockState, feed: Feed) -> BoolArray:
        """Kept positions [n, B] of an exact replay, for the block's rows.

        Raises UsageError if the trace ends early or its fed positions are not those recomputed.
        """
        index = self._trace_rows(block)
        fed = unpack_masks(self.trace.fed[index], block.block_length)
        if not np.array_equal(fed, feed.positions):
            row = int(np.argmax((fed != feed.positions).any(axis=1)))
            raise UsageError(
                "--acceptance replay",
                f"request {int(block.request_key[row])}, forward {int(block.forwards[row])}",
                "a trace whose fed positions are those of this workload and configuration",
            )
        return unpack_masks(self.trace.kept[index], block.block_length)

    def decoded(self, block: BlockState) -> BoolArray:
        """Decoded positions [n, B] of an exact replay; raises as `kept` does."""
        return unpack_masks(self.trace.decoded[self._trace_rows(block)], block.block_length)

    def _trace_rows(self, block: BlockState) -> IntArray:
        """Where the trace holds the forwards that come next, [n]."""
        place = self._places(block)
        length = self._forwards.length[place]
        beyond = block.forwards >= length
        if beyond.any():
            row = int(beyond.argmax())
            raise UsageError(
                "--acceptance replay",
                f"request {int(block.request_key[row])}, forward {int(block.forwards[row])}",
                f"forwards 0 to {int(length[row]) - 1} of that request, as traced",
            )
        return self._forwards.first[place] + block.forwards

    def approximate_decoded(self, block: BlockState, candidates: BoolArray) -> BoolArray:
        """Decoded positions [n, B] from the traced counts; a request that outlives its trace (or
        has none) goes on with the counts from their beginning (of the first traced request).
        """
        place = self._places(block)
        place = np.where(place > 0, place, min(1, len(self._requests) - 1))
        length = self._steps.length[place]
        index = self._steps.first[place] + block.request_steps % np.maximum(length, 1)
        count = self._counts[np.where(length > 0, index, -1)]
        return leftmost(candidates, count[:, None])

    def _places(self, block: BlockState) -> IntArray:
        """Each row's place among the traced requests, [n]; 0 where it is none of them."""
        place = np.searchsorted(self._requests, block.request_key)
        place = np.minimum(place, len(self._requests) - 1)
        return np.where(self._requests[place] == block.request_key, place, 0)


@dataclass(frozen=True, kw_only=True)
class _Runs:
    """Where each request's entries lie in an array that holds them request after request."""

    first: IntArray
    length: IntArray

    @classmethod
    def of(cls, place: IntArray, num_requests: int) -> "_Runs":
        """`place[entries]`, ascending: the request of each entry."""
        length = np.bincount(place, minlength=num_requests)
        return cls(first=np.cumsum(length) - length, length=length)
