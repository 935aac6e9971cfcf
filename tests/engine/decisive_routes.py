"""A fixture for tests of equality of models with experts: no choice of an expert is a near-tie."""

from collections.abc import Iterator

import pytest
import torch
from decision_margins import DRAW_MARGIN
from torch import Tensor

from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.engine.models import experts as expert_layer


@pytest.fixture
def decisive_routes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test in which the choice of an expert or of a group was a near-tie."""
    gaps: list[float] = []
    route = expert_layer.route

    def gap(scores: Tensor, count: int) -> None:
        best = scores.sort(dim=-1, descending=True).values
        if len(scores) and count < scores.shape[-1]:
            gaps.append(float((best[:, count - 1] - best[:, count]).min()))

    def probed(
        x: Tensor, router: Tensor, bias: Tensor | None, spec: ExpertSpec
    ) -> tuple[Tensor, Tensor]:
        logits = x @ router.t()
        scores = logits.sigmoid() if spec.router == "sigmoid" else logits
        scores = scores if bias is None else scores + bias
        groups = scores.view(len(x), spec.num_groups, spec.group_size)
        quality = groups.topk(2, dim=-1).values.sum(dim=-1)
        gap(quality, spec.num_kept_groups)
        best = quality.topk(spec.num_kept_groups, dim=-1).indices
        gap(
            groups[torch.arange(len(x), device=x.device)[:, None], best].flatten(1),
            spec.experts_per_token,
        )
        return route(x, router, bias, spec)

    monkeypatch.setattr(expert_layer, "route", probed)
    yield
    assert gaps
    assert min(gaps) > DRAW_MARGIN, "near-tie of experts, pick another seed"
