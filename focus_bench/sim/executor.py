"""Executes plans in a time model: the decoding rules run as in the engine, the forward does not.

Knows no clock; the driver moves time by the outcome's duration.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from focus_bench.core.errors import UsageError
from focus_bench.decoding.policies import EvictionKind, get_policy
from focus_bench.decoding.rules import StepRules
from focus_bench.scheduling.loop import nothing
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.step_shape import step_shape
from focus_bench.sim.cost_model import CostModel


@dataclass(frozen=True, kw_only=True)
class SimExecutor:
    """The simulator's side of the Executor protocol.

    Tokens are zeros: without a model there are none. `on_step` is called with each plan and its
    outcome. Raises UsageError where a decision would need a model's confidences or importance
    scores.
    """

    rules: StepRules
    cost_model: CostModel
    page_size: int
    on_step: Callable[[Plan, Outcome], None] | None = None

    def __post_init__(self) -> None:
        check_can_simulate(self.rules)

    def execute(self, plan: Plan, meanwhile: Callable[[], None] = nothing) -> Outcome:
        """Decide what the step keeps and decodes, and predict how long it takes."""
        meanwhile()
        rules, block, feed = self.rules, plan.block, plan.feed
        evicting = rules.rows_to_evict(block, feed)
        if rules.ideal_rows(block, feed).any():
            # What a step without eviction decodes is kept, and nothing else is decoded.
            decoded = rules.decoded(block, feed, feed.positions, None)
            eviction = rules.evict_ideal(block, feed, decoded)
        else:
            eviction = rules.evict(block, feed, None, evicting=evicting)
            decoded = rules.decoded(block, feed, eviction.kept, None)
        carried = np.where(feed.commit, 0, -1).astype(np.int32) if plan.shifted_logits else None
        shape = step_shape(
            plan,
            kept=eviction.kept,
            progress=eviction.progress,
            evicting=evicting,
            page_size=self.page_size,
            attention_cover=rules.decode.attention_cover,
            count_first_pass=False,  # `ideal` bounds what a predictor could gain: knowing is free
        )
        outcome = Outcome(
            kept=eviction.kept,
            progress=eviction.progress,
            decoded=decoded,
            tokens=np.zeros(decoded.shape, dtype=np.int32),
            evicting=evicting,
            read_timing=lambda: self.cost_model.step_timing(shape),
            ends=rules.traced_ends(block),
            carried_tokens=carried,
        )
        if self.on_step is not None:
            self.on_step(plan, outcome)
        return outcome


def check_can_simulate(rules: StepRules) -> None:
    """Raise UsageError unless every decision of the rules can be taken without a model."""
    if rules.needs_confidence:
        raise UsageError(
            "--acceptance",
            "confidence",
            "synthetic:MEAN or replay:FILE in a simulation, which has no model to be confident",
        )
    policy = get_policy(rules.decode.policy)
    by_score = policy.adaptive or policy.eviction in {EvictionKind.DYNAMIC, EvictionKind.FIXED}
    if by_score and rules.needs_model_importance and not rules.exact_replay:
        raise UsageError(
            "--importance",
            "model",
            f"synthetic in a simulation of policy {policy.name}, or an exact replay",
        )
