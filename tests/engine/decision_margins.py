"""A fixture for tests of equality: no decision that the equality rests on may be a near-tie."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from focus_bench.core.config import SamplingConfig
from focus_bench.decoding.block_state import BlockState
from focus_bench.decoding.caching import Feed
from focus_bench.decoding.eviction import Eviction, base_budget, outlier_count
from focus_bench.decoding.rules import StepRules
from focus_bench.engine import host_step

# Rows of a float32 product differ by about 1e-6 between batch shapes: a margin above this cannot
# flip. A draw's margin is in units of probability, which logits 1e-5 off move by 2.5e-6 at most.
MARGIN = 1e-4
DRAW_MARGIN = 5e-6


class Margins:
    """The smallest distance of each kind of decision from its limit, over a test."""

    def __init__(self) -> None:
        self.smallest: dict[str, float] = {}
        self.count = 0

    def add(self, kind: str, values: np.ndarray) -> None:
        finite = np.asarray(values, dtype=np.float64)
        finite = finite[np.isfinite(finite)]
        self.count += len(finite)
        if len(finite):
            self.smallest[kind] = min(self.smallest.get(kind, np.inf), float(finite.min()))

    def check(self) -> None:
        assert self.count, "no decision was taken"
        for kind, value in self.smallest.items():
            bound = DRAW_MARGIN if kind == "draw" else MARGIN
            assert value > bound, f"{kind}: near-tie of {value:g}, pick another seed"


@pytest.fixture
def decisive_margins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Margins]:
    """Measures every decision of the engine in this test, and fails it on a near-tie."""
    margins = Margins()
    sample, decoded, evict = host_step.sample, StepRules.decoded, StepRules.evict

    def probed_sample(
        logits: Tensor, config: SamplingConfig, **options: Any
    ) -> tuple[Tensor, Tensor]:
        seen = logits.clone()
        seen[:, options["mask_token_id"]] = -torch.inf
        seen[:, options["num_valid_ids"] :] = -torch.inf
        if config.temperature == 0.0:
            best = seen.topk(2, dim=-1).values
            margins.add("token", (best[:, 0] - best[:, 1]).cpu().numpy())
        else:
            limits = torch.softmax(seen.double() / config.temperature, dim=-1).cumsum(dim=-1)
            distance = (limits - options["uniforms"][:, None]).abs().amin(dim=-1)
            margins.add("draw", distance.cpu().numpy())
        return sample(logits, config, **options)

    def probed_decoded(
        self: StepRules,
        block: BlockState,
        feed: Feed,
        kept: np.ndarray,
        confidence: np.ndarray | None,
    ) -> np.ndarray:
        if self.needs_confidence and confidence is not None:
            for row, candidates in enumerate(kept & feed.decodable):
                values = np.sort(confidence[row, candidates])
                if not values.any():
                    continue  # nothing to decode, or a row that fails
                strategy = self.decode.unmasking_strategy
                if strategy == "low_confidence_dynamic":
                    margins.add("threshold", np.abs(values - self.decode.threshold))
                    if values[-1] < self.decode.threshold:
                        margins.add("best", np.diff(values[-2:]))
                elif strategy == "low_confidence_static":
                    count = max(1, self.decode.block_length // self.decode.steps_per_block)
                    margins.add("best", np.diff(values[-count - 1 :])[:1])
        return decoded(self, block, feed, kept, confidence)

    def probed_evict(
        self: StepRules,
        block: BlockState,
        feed: Feed,
        model_delta: np.ndarray | None,
        **options: Any,
    ) -> Eviction:
        if self.needs_model_importance and model_delta is not None:
            _add_selection(margins, self, block, feed, model_delta)
        return evict(self, block, feed, model_delta, **options)

    monkeypatch.setattr(host_step, "sample", probed_sample)
    monkeypatch.setattr(StepRules, "decoded", probed_decoded)
    monkeypatch.setattr(StepRules, "evict", probed_evict)
    tf32 = torch.backends.cuda.matmul.allow_tf32
    assert not tf32
    yield margins
    margins.check()


def _add_selection(
    margins: Margins, rules: StepRules, block: BlockState, feed: Feed, delta: np.ndarray
) -> None:
    dynamic = rules.decode.policy in {"focus", "adaptive"}
    if not dynamic and rules.decode.select == "random":
        return
    base = base_budget(block, feed.decodable.sum(axis=1), rules.decode)
    outliers = outlier_count(delta, feed.decodable)
    for row in np.flatnonzero(rules.rows_to_evict(block, feed)):
        values = np.sort(delta[row, feed.decodable[row]].astype(np.float64))
        if not np.isfinite(values).all():
            continue  # evicts nothing
        if len(values) == 2:
            # Pooling over a window of 3 makes two masks equal, exactly, in any arithmetic: the tie
            # rule decides.
            assert values[0] == values[1]
            continue
        budget = rules.decode.retain
        if dynamic:
            budget = max(int(base[row]), int(outliers[row]))
            limit = values.mean() + values.std()
            # The best `base` are selected whether they are outliers or not.
            margins.add("outlier", np.abs(values[: -int(base[row])] - limit))
        elif rules.decode.select == "bottom":
            values = -values[::-1]
        if budget < len(values):
            margins.add("selection", values[[-budget]] - values[[-budget - 1]])
