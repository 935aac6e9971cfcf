"""Runs decoding without eviction and records what FOCUS would have had to decide on.

Stands beside the engine: a model that shows its queries and keys to an observer, and an executor
that joins them with what each step decoded. Nothing of it runs unless it is asked for.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from focus_bench.core.config import PointConfig, SamplingConfig
from focus_bench.core.decodability import DecodabilityRecords
from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Workload
from focus_bench.decoding.block_state import BoolArray, FloatArray, IntArray
from focus_bench.decoding.caching import Feed
from focus_bench.decoding.eviction import Eviction, evict
from focus_bench.decoding.policies import POLICY_CODES
from focus_bench.decoding.rules import StepRules
from focus_bench.engine.decode_step import EvictionChoice, StepResult
from focus_bench.engine.executor import EngineExecutor
from focus_bench.engine.host_step import HostStep
from focus_bench.engine.importance import importance
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.runner import run_point
from focus_bench.engine.timing import StepTimer
from focus_bench.scheduling.loop import Executor
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.recorder import Recorder

ShowQueries = Callable[[int, Tensor, Tensor], None]


def observe_decoding(
    model: BlockDiffusionModel,
    point: PointConfig,
    workload: Workload,
    *,
    alphas: Sequence[float] = (1.5,),
    on_progress: Callable[[Recorder], None] | None = None,
) -> tuple[DecodabilityRecords, RunRecord]:
    """Serve `workload` by policy baseline and record every masked position of every decode step.

    `point` gives everything else; its policy must be baseline, under which all positions reach all
    layers, and the model must have two layers or more and logits that are not shifted (UsageError).
    The tokens are those of a run without observation; the times of the run record include the
    observing. Raises ArithmeticError where confidences are no numbers.
    """
    if point.decode.policy != "baseline":
        raise UsageError("--policy", point.decode.policy, "baseline (nothing is evicted)")
    if model.spec.num_layers < 2:
        raise UsageError("--model", model.spec.name, "models with at least 2 layers")
    if model.spec.shifted_logits:  # a position's importance is not that of the row that decodes it
        raise UsageError("--model", model.spec.name, "models whose logits are not shifted")
    shown = _ShowingModel(model)
    executors: list[_ObservingExecutor] = []

    def make_executor(
        model: BlockDiffusionModel, cache: PagedKVCache, point: PointConfig
    ) -> Executor:
        rules = StepRules.for_point(point)
        executors.append(_ObservingExecutor(shown, cache, rules, point.sampling, alphas))
        return executors[0]

    record, _ = run_point(
        shown, point, workload, on_progress=on_progress, make_executor=make_executor
    )
    return executors[0].finish(), record


class _ShowingModel:
    """A model that shows the queries and keys of each layer to `show` while one is set."""

    def __init__(self, model: BlockDiffusionModel) -> None:
        self._model = model
        self.show: ShowQueries | None = None
        self.embed = model.embed
        self.rope = model.rope
        self.finish = model.finish
        self.normed = model.normed
        self.logits = model.logits

    @property
    def spec(self) -> ModelSpec:
        """The model's."""
        return self._model.spec

    @property
    def device(self) -> torch.device:
        """The model's."""
        return self._model.device

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        return self._model.dtype

    @property
    def head(self) -> Tensor:
        """The model's."""
        return self._model.head

    def project(
        self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The model's, shown before they are handed on."""
        q, k, v = self._model.project(layer, hidden, cos, sin)
        if self.show is not None:
            self.show(layer, q, k)
        return q, k, v


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What one step adds to the records; fields as there, `masked_per_row` instead of starts."""

    masked_per_row: IntArray
    importance: npt.NDArray[np.float32]
    decoded: BoolArray
    confidence: FloatArray
    position: npt.NDArray[np.int16]
    kept: BoolArray


class _RememberingStep(HostStep):
    """The host's step, the last confidences of which can be asked for."""

    confidence: FloatArray

    def decode(
        self,
        plan: Plan,
        choose: Callable[[], EvictionChoice],
        timer: StepTimer,
        meanwhile: Callable[[Eviction], None],
    ) -> StepResult:
        """The host's."""
        result = super().decode(plan, choose, timer, meanwhile)
        self.confidence = result.confidence
        return result


class _ObservingExecutor(EngineExecutor):
    """The engine's executor, every decode step of which leaves a _Step behind."""

    def __init__(
        self,
        model: _ShowingModel,
        cache: PagedKVCache,
        rules: StepRules,
        sampling: SamplingConfig,
        alphas: Sequence[float],
    ) -> None:
        self._remembering = _RememberingStep(model, cache, rules, sampling)
        super().__init__(model, cache, rules, sampling, step=self._remembering)
        self._shown = model
        self._seed = rules.seed
        self._baseline = rules.decode
        self._rule_of_alpha = [
            dataclasses.replace(rules.decode, policy="focus", alpha=alpha) for alpha in alphas
        ]
        # What `progress` would be had FOCUS decoded the block: by request, one value an alpha.
        self._progress: dict[int, IntArray] = {}
        self._steps: list[_Step] = []

    def finish(self) -> DecodabilityRecords:
        """All that was observed so far. Raises UsageError if nothing was decoded."""
        if not self._steps:
            raise UsageError("workload", "no decode step", "requests that decode something")
        masked = np.concatenate([step.masked_per_row for step in self._steps])
        return DecodabilityRecords(
            num_heads=self._shown.spec.num_q_heads,
            block_length=self._baseline.block_length,
            threshold=self._baseline.threshold,
            alphas=tuple(rule.alpha for rule in self._rule_of_alpha),
            row_starts=np.concatenate([[0], np.cumsum(masked)]),
            importance=np.concatenate([step.importance for step in self._steps]),
            decoded=np.concatenate([step.decoded for step in self._steps]),
            confidence=np.concatenate([step.confidence for step in self._steps]),
            position=np.concatenate([step.position for step in self._steps]),
            kept=np.concatenate([step.kept for step in self._steps]),
        )

    def _decode(self, plan: Plan, timer: StepTimer, meanwhile: Callable[[], None]) -> Outcome:
        masked, fed = plan.feed.decodable, plan.feed.positions
        flat_index = np.cumsum(fed.reshape(-1)).reshape(fed.shape) - 1
        observed = np.flatnonzero(masked.any(axis=1))  # the rest are commit passes
        masked_rows = [flat_index[row, masked[row]] for row in observed]
        layers: list[Tensor] = []
        self._shown.show = lambda layer, q, k: layers.append(importance(q, k, masked_rows))
        try:
            outcome = super()._decode(plan, timer, meanwhile)
        finally:
            self._shown.show = None
        if outcome.errors:  # a failed request's scores are no numbers
            raise ArithmeticError(next(iter(outcome.errors.values())))
        if len(observed):
            scores = torch.stack(layers, dim=1).cpu().numpy()
            self._steps.append(self._observed_step(plan, outcome, observed, scores))
        return outcome

    def _observed_step(
        self, plan: Plan, outcome: Outcome, observed: IntArray, scores: npt.NDArray[np.float32]
    ) -> _Step:
        masked = plan.feed.decodable[observed]
        delta = np.zeros(masked.shape, dtype=np.float32)
        delta[masked] = scores[:, 1] - scores[:, 0]
        return _Step(
            masked_per_row=masked.sum(axis=1),
            importance=scores,
            decoded=outcome.decoded[observed][masked],
            confidence=self._remembering.confidence[observed][masked],
            position=np.nonzero(masked)[1].astype(np.int16),
            kept=self._kept_by_rule(plan, observed, delta)[masked],
        )

    def _kept_by_rule(self, plan: Plan, observed: IntArray, delta: FloatArray) -> BoolArray:
        """What FOCUS would keep, [rows, B, alphas], with the budget that the block's own steps give
        and the progress that its earlier choices would have made.
        """
        block = plan.block.take(observed)
        feed = Feed(
            positions=plan.feed.positions[observed],
            decodable=plan.feed.decodable[observed],
            commit=plan.feed.commit[observed],
        )
        block.policy_code[:] = POLICY_CODES["focus"]
        requests = block.request_key.tolist()
        for request, is_new in zip(requests, (block.block_steps == 0).tolist(), strict=True):
            if is_new:
                self._progress[request] = np.full(len(self._rule_of_alpha), -1)
        kept = []
        for index, rule in enumerate(self._rule_of_alpha):
            block.progress[:] = [self._progress[request][index] for request in requests]
            chosen = evict(block, feed, delta, rule, self._seed)
            for request, progress in zip(requests, chosen.progress.tolist(), strict=True):
                self._progress[request][index] = progress
            kept.append(chosen.kept)
        return np.stack(kept, axis=-1)
