"""One step of decoding as the executors call it: feed, evict, decode; the order and nothing else.

Both executors hold a StepRules and call it with scores and confidences from a model (engine) or
none (simulator), so the rules that run are the same.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from focus_bench.core.config import AcceptanceConfig, DecodeConfig, ImportanceConfig, PointConfig
from focus_bench.decoding import acceptance as injected
from focus_bench.decoding import eviction
from focus_bench.decoding.attention_cover import last_attended
from focus_bench.decoding.block_state import BlockState, BoolArray, FloatArray, IntArray
from focus_bench.decoding.caching import Feed
from focus_bench.decoding.dynamics import DecodeDynamics, dynamics_of_model
from focus_bench.decoding.eviction import Eviction
from focus_bench.decoding.policies import IDEAL_OF_CODE
from focus_bench.decoding.trace import DecodeTrace
from focus_bench.decoding.unmask import unmask


@dataclass(kw_only=True)
class StepRules:
    """The decoding rules under one configuration."""

    decode: DecodeConfig
    acceptance: AcceptanceConfig
    importance: ImportanceConfig
    seed: int
    replay: injected.Replay | None = field(init=False, default=None)
    dynamics: DecodeDynamics | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.acceptance.dynamics:
            self.dynamics = dynamics_of_model(self.acceptance.dynamics)
        if self.acceptance.kind == "replay":
            trace = DecodeTrace.load(Path(self.acceptance.path))
            self.replay = injected.Replay(trace=trace, config=self.decode)

    @classmethod
    def for_point(cls, point: PointConfig) -> "StepRules":
        """The rules of one point of a sweep."""
        return cls(
            decode=point.decode,
            acceptance=point.acceptance,
            importance=point.importance,
            seed=point.seed,
        )

    @property
    def exact_replay(self) -> bool:
        """Whether kept and decoded positions both come from a trace."""
        return self.replay is not None and not self.replay.approximate

    @property
    def needs_confidence(self) -> bool:
        """Whether decoding depends on the model's confidences."""
        return self.acceptance.kind == "confidence"

    @property
    def needs_model_importance(self) -> bool:
        """Whether eviction depends on the model's importance scores."""
        return self.importance.kind == "model"

    def rows_to_evict(self, block: BlockState, feed: Feed) -> BoolArray:
        """Rows [n] for which importance is computed in this step."""
        return eviction.rows_to_evict(block, feed, self.decode)

    def ideal_rows(self, block: BlockState, feed: Feed) -> BoolArray:
        """Rows [n] that run once without eviction first (policy `ideal`)."""
        return np.asarray(IDEAL_OF_CODE[block.policy_code] & ~feed.commit)

    def evict(
        self,
        block: BlockState,
        feed: Feed,
        model_delta: FloatArray | None,
        *,
        evicting: BoolArray | None = None,
    ) -> Eviction:
        """Positions that go past layer 1. `model_delta[n,B]`, or None where scores are synthetic
        or no row evicts. `evicting[n]`: what `rows_to_evict` gave, where the caller has asked it.
        """
        if self.exact_replay:
            assert self.replay is not None
            return eviction.kept_as_given(block, feed, self.replay.kept(block, feed))
        if evicting is None:
            evicting = self.rows_to_evict(block, feed)
        if not evicting.any():
            return eviction.keep_all(block, feed)
        delta = model_delta
        if self.importance.kind == "synthetic":
            delta = injected.synthetic_delta(block, feed, self.importance, self.seed)
        if delta is None:
            raise AssertionError("eviction by model importance without scores")
        return eviction.evict(block, feed, delta, self.decode, self.seed, evicting=evicting)

    def keep_all(self, block: BlockState, feed: Feed) -> Eviction:
        """A step without eviction."""
        return eviction.keep_all(block, feed)

    def last_attended(self, block: BlockState, feed: Feed, outcome: Eviction) -> IntArray:
        """The last block position [n] that layers >= 1 attend to."""
        cover = self.decode.attention_cover
        return last_attended(block, feed, outcome.kept, outcome.progress, cover)

    def traced_ends(self, block: BlockState) -> dict[int, tuple[int, str]]:
        """Rows of a replay -> (output tokens, reason) at which their traced requests ended."""
        if self.replay is None:
            return {}
        ends = self.replay.ends
        requests = enumerate(block.request_key.tolist())
        return {row: ends[request] for row, request in requests if request in ends}

    def evict_ideal(self, block: BlockState, feed: Feed, decodable_now: BoolArray) -> Eviction:
        """Policy `ideal`: keep what the step decodes without eviction."""
        return eviction.evict_ideal(block, feed, decodable_now)

    def decoded(
        self, block: BlockState, feed: Feed, kept: BoolArray, confidence: FloatArray | None
    ) -> BoolArray:
        """Positions decoded in this step, [n, B]; `confidence[n,B]` as `needs_confidence` says.

        Rows whose confidences are not finite must have been taken out by the caller.
        """
        candidates = kept & feed.decodable
        if self.exact_replay:
            assert self.replay is not None
            return self.replay.decoded(block) & candidates
        if self.replay is not None:
            return self.replay.approximate_decoded(block, candidates)
        if self.dynamics is not None:
            return injected.fitted_decoded(
                block, candidates, self.acceptance, self.dynamics, self.seed
            )
        if self.acceptance.kind == "synthetic":
            return injected.synthetic_decoded(block, candidates, self.acceptance, self.seed)
        if confidence is None:
            raise AssertionError("acceptance by confidence without confidences")
        return unmask(confidence, candidates, self.decode)
