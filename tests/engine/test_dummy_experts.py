"""Dummy weights of models with experts: masked tokens choose about as unrelated tokens would."""

import numpy as np
import pytest
import torch
from engine_serving import make_point, make_requests, make_workload
from torch import Tensor

from focus_bench.core.config import AcceptanceConfig
from focus_bench.core.expert_load import UNIFORM_LOAD
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.model_spec import PRESETS, ModelSpec
from focus_bench.core.workload import RequestSpec
from focus_bench.engine import host_step
from focus_bench.engine.dummy_weights import QK_NORM_SUFFIXES, ROTATED_QK_NORM, dummy_tensors
from focus_bench.engine.models import experts as expert_layer
from focus_bench.engine.models.families import family_of
from focus_bench.engine.runner import run_point
from focus_bench.engine.weights import dummy_model

CPU = torch.device("cpu")
PRESET_OF = {"llada2": "llada2-mini", "sdar-moe": "sdar-30b-a3b"}
each_kind = pytest.mark.parametrize("kind", PRESET_OF)


def small(kind: str, num_layers: int = 3, dtype: str = "float32") -> ModelSpec:
    """The preset's heads, rotary embedding and router, with thin layers."""
    spec = PRESETS[PRESET_OF[kind]]
    assert spec.experts is not None
    shared = 8 if spec.experts.shared_size else 0
    return spec.replace(
        num_layers=num_layers,
        hidden_size=256,
        intermediate_size=64,
        num_q_heads=16,
        vocab_size=1000,
        mask_token_id=999,
        stop_token_ids=(),
        dtype=dtype,
        experts=spec.experts.replace(expert_size=8, shared_size=shared),
    )


class Choices:
    """What the routers of decode steps saw: (rows, different experts chosen) of each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, int]] = []
        self.is_finite = True
        route, prefill = expert_layer.route, host_step.prefill
        in_prefill = False

        def routed(
            x: Tensor, router: Tensor, bias: Tensor | None, spec: ExpertSpec
        ) -> tuple[Tensor, Tensor]:
            chosen, weights = route(x, router, bias, spec)
            self.is_finite &= bool(torch.isfinite(x).all())
            if not in_prefill:
                self.calls.append((len(x), len(chosen.unique())))
            return chosen, weights

        def prefilled(*arguments: object, **options: object) -> None:
            nonlocal in_prefill
            in_prefill = True
            prefill(*arguments, **options)  # type: ignore[arg-type]
            in_prefill = False

        monkeypatch.setattr(expert_layer, "route", routed)
        monkeypatch.setattr(host_step, "prefill", prefilled)

    def spread(self, experts: ExpertSpec) -> float:
        """Touched experts over those that independent tokens would touch, mean over calls."""
        expected = [UNIFORM_LOAD.expected_touched(experts, rows) for rows, _ in self.calls]
        touched = [touched for _, touched in self.calls]
        return float(np.mean(np.array(touched) / np.array(expected)))


ONE_RANDOM_PROMPT = make_requests([200], 32, num_ids=900)
SHORT_PROMPTS_OF_FEW_WORDS = make_requests([40, 44, 51], 32, num_ids=30)


def counted(
    monkeypatch: pytest.MonkeyPatch,
    spec: ModelSpec,
    policy: str,
    requests: tuple[RequestSpec, ...],
) -> Choices:
    choices = Choices(monkeypatch)
    steps = AcceptanceConfig(kind="synthetic", mean=6.0, scatter=1.0)
    point = make_point(policy, block_length=32, page_size=64, acceptance=steps)
    record, _ = run_point(dummy_model(spec, device=CPU), point, make_workload(requests))
    assert not any(request.error for request in record.requests)
    return choices


@each_kind
@pytest.mark.parametrize("policy", ["baseline", "focus"])
@pytest.mark.parametrize(
    "requests", [ONE_RANDOM_PROMPT, SHORT_PROMPTS_OF_FEW_WORDS], ids=["random", "few-words"]
)
def test_masks_of_a_block_choose_as_unrelated_tokens_would(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    policy: str,
    requests: tuple[RequestSpec, ...],
) -> None:
    spec = small(kind)
    assert spec.experts is not None
    choices = counted(monkeypatch, spec, policy, requests)
    assert choices.spread(spec.experts) > 0.8


@each_kind
def test_bfloat16_stays_finite_through_20_layers(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    spec = small(kind, num_layers=20, dtype="bfloat16")
    assert spec.experts is not None
    few = spec.experts.replace(num_experts=32)
    requests = make_requests([40], 32, num_ids=900)
    choices = counted(monkeypatch, spec.replace(experts=few), "focus", requests)
    assert choices.is_finite
    assert len({rows for rows, _ in choices.calls}) > 1  # some positions were evicted


@each_kind
def test_query_and_key_norms_alone_differ_from_a_dense_models(kind: str) -> None:
    spec = small(kind)
    shapes = family_of(spec).tensor_shapes(spec)
    own, dense = (
        dummy_tensors(s, shapes, seed=0, device=CPU, dtype=torch.float32)
        for s in (spec, spec.replace(experts=None))
    )
    rotated = torch.arange(spec.head_dim) < spec.rotary_dim
    norms = {name for name in shapes if name.endswith(QK_NORM_SUFFIXES)}
    assert len(norms) == 2 * spec.num_layers
    for name in norms:
        assert torch.equal(own(name), torch.where(rotated, ROTATED_QK_NORM, 1.0))
        assert torch.equal(dense(name), torch.ones(shapes[name]))
    for name in (n for n in shapes if n not in norms and ".experts." not in n):
        assert torch.equal(own(name), dense(name)), name
