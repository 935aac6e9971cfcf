"""Models with experts under every policy: the same code, the same promises as for dense ones."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from decision_margins import DRAW_MARGIN
from engine_serving import (
    BATCH_INDEPENDENT_POLICIES,
    alone,
    make_point,
    make_requests,
    make_workload,
    serve,
)
from moe_reference import build_glm4_moe, build_qwen3_moe, moe_model
from recompute_reference import decode_without_cache
from torch import Tensor

from focus_bench.core.config import POLICY_NAMES
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.engine.models import experts as expert_layer
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.runner import run_point

PROMPTS = [5, 16, 11]
OUTPUTS = [30, 20, 37]


def llada2() -> MoeModel:
    return moe_model(build_glm4_moe(num_layers=4))


def sdar_moe() -> MoeModel:
    return moe_model(build_qwen3_moe(seed=2))  # a seed without near-ties


MODELS = {"llada2": llada2, "sdar-moe": sdar_moe}


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
        scores = logits.sigmoid() if spec.router == "sigmoid" else logits  # the same order
        scores = scores if bias is None else scores + bias
        groups = scores.view(len(x), spec.num_groups, spec.group_size)
        quality = groups.topk(2, dim=-1).values.sum(dim=-1)
        gap(quality, spec.num_kept_groups)
        best = quality.topk(spec.num_kept_groups, dim=-1).indices
        gap(groups[torch.arange(len(x))[:, None], best].flatten(1), spec.experts_per_token)
        return route(x, router, bias, spec)

    monkeypatch.setattr(expert_layer, "route", probed)
    yield
    assert gaps
    assert min(gaps) > DRAW_MARGIN, "near-tie of experts, pick another seed"


every_policy = pytest.mark.parametrize("policy", BATCH_INDEPENDENT_POLICIES)
both_models = pytest.mark.parametrize("name", MODELS)


@pytest.mark.usefixtures("decisive_margins", "decisive_routes")
@pytest.mark.parametrize(("block_length", "page_size"), [(8, 5), (4, 8)])
def test_llada2s_baseline_equals_full_recomputation_step_by_step(
    block_length: int, page_size: int
) -> None:
    reference = build_glm4_moe(num_layers=4)
    requests = make_requests([7, 16, 9], 2 * block_length + 5)
    point = make_point("baseline", block_length=block_length, page_size=page_size)
    served = serve(moe_model(reference), point, requests)
    for request in requests:
        expected = decode_without_cache(
            reference,
            request.prompt_ids.tolist(),
            block_length=block_length,
            max_new_tokens=2 * block_length + 5,
            threshold=point.decode.threshold,
        )
        forwards = served.forwards[request.request_id]
        assert served.outputs[request.request_id] == expected.output
        assert [f.decoded for f in forwards if not f.is_commit] == expected.decoded


@pytest.mark.usefixtures("decisive_margins", "decisive_routes")
@every_policy
@both_models
def test_a_batch_equals_single_runs_across_preemption(policy: str, name: str) -> None:
    model = MODELS[name]()
    point = make_point(policy, num_pages=9, retain=3)
    requests = make_requests(PROMPTS, OUTPUTS, seed=1)
    served = serve(model, point, requests)
    assert served.preemptions
    roomy = dataclasses.replace(
        point, scheduler=dataclasses.replace(point.scheduler, num_pages=None)
    )
    assert served.outputs == alone(model, roomy, requests)
    assert [len(served.outputs[i]) for i in range(3)] == OUTPUTS
    if policy in {"focus", "focus-fixed"}:
        logged = [forward for forwards in served.forwards.values() for forward in forwards]
        assert any(len(forward.kept) < len(forward.fed) for forward in logged)


@both_models
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_runs_through_run_point(policy: str, name: str) -> None:
    point = make_point(policy, retain=3, batch_size=2)
    requests = make_requests(PROMPTS, 12, seed=1)
    record, trace = run_point(MODELS[name](), point, make_workload(requests), decode_trace=True)
    assert {r: len(ids) for r, ids in record.output_ids.items()} == {0: 12, 1: 12, 2: 12}
    assert trace is not None
    assert not any(request.error for request in record.requests)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_models_serve_with_their_routers_in_float32(dtype: str) -> None:
    reference = build_glm4_moe(num_layers=3)
    model = moe_model(reference, dtype=dtype)
    assert model.dtype is getattr(torch, dtype)
    assert model.layers[1].feed_forward.router.dtype is torch.float32
    served = serve(model, make_point("focus"), make_requests(PROMPTS, 12, seed=1))
    assert [len(output) for output in served.outputs.values()] == [12] * 3
