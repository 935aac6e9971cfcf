"""What a device does in one decode step, and what it hands back: the contract of host_step (plain
PyTorch, the reference) and device_step (kernels on a GPU).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from focus_bench.decoding.block_state import BoolArray, FloatArray, TokenArray
from focus_bench.decoding.eviction import Eviction
from focus_bench.engine.timing import StepTimer
from focus_bench.scheduling.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Carried:
    """The first tokens of the next blocks, given by commit passes where logits are shifted.

    `tokens[n]` int32 with `confidence[n]` float32; -1 and 0 in rows that are no commit passes.
    """

    tokens: TokenArray
    confidence: FloatArray


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """One forward of a plan's decode rows: what was kept, `evicting[n]` rows whose importance was
    computed, and at kept decodable positions the sampled `tokens[n,B]` int32 with their
    `confidence[n,B]` float32 (0 elsewhere). `carried`: where logits are shifted, else None.
    """

    eviction: Eviction
    evicting: BoolArray
    tokens: TokenArray
    confidence: FloatArray
    carried: Carried | None = None


class HeadPlaces:
    """Where what a head draws for the rows of decoding.head_rows belongs in a step's arrays:
    `candidates` [n, B] in order, then, where logits are shifted, the commit passes.

    Made before the draws are there, so that little is left to do when they are.
    """

    def __init__(self, plan: Plan, candidates: BoolArray) -> None:
        self._index = np.flatnonzero(candidates)
        self._tokens = np.zeros(candidates.shape, dtype=np.int32)
        self._confidence = np.zeros(candidates.shape, dtype=np.float32)
        self._commit = plan.feed.commit if plan.shifted_logits else None

    def filled(
        self, ids: TokenArray, confidence: FloatArray
    ) -> tuple[TokenArray, FloatArray, Carried | None]:
        """The draws as fields of StepResult; to be called once."""
        count = len(self._index)
        self._tokens.reshape(-1)[self._index] = ids[:count]
        self._confidence.reshape(-1)[self._index] = confidence[:count]
        commit = self._commit
        if commit is None:
            return self._tokens, self._confidence, None
        carried = Carried(
            tokens=np.full(len(commit), -1, dtype=np.int32),
            confidence=np.zeros(len(commit), dtype=np.float32),
        )
        carried.tokens[commit], carried.confidence[commit] = ids[count:], confidence[count:]
        return self._tokens, self._confidence, carried


@dataclass(frozen=True, kw_only=True)
class EvictionChoice:
    """What the host knows of a step's eviction before any layer has run.

    `evicting[n]`: rows whose importance is computed. `given`: what is kept, where that does not
    depend on importance; None: by the rules, from importance.
    """

    evicting: BoolArray
    given: Eviction | None


class DecodeStep(Protocol):
    """Carries out plans' tensor work on one device."""

    def prepare(self, max_pages: int) -> None:
        """Compile and capture whatever can be before the first step.

        `max_pages`: pages of the longest request that is expected.
        """

    def prefill(self, plan: Plan) -> None:
        """Write the K/V of the plan's prefill chunks."""

    def decode(
        self,
        plan: Plan,
        choose: Callable[[], EvictionChoice],
        timer: StepTimer,
        meanwhile: Callable[[Eviction], None],
    ) -> StepResult:
        """One forward; marks prefix, eviction, suffix and head on `timer`.

        `choose` is asked once; `meanwhile` is done once, with what is kept: while a device is
        busy, if it can be.
        """

    def run_without_trace(self, plan: Plan) -> StepResult:
        """One forward that keeps all it feeds and leaves the cache as it was (policy `ideal`)."""
