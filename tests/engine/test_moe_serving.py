"""Models with experts under every policy: the same code, the same promises as for dense ones."""

import dataclasses

import pytest
import torch
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

from focus_bench.core.config import POLICY_NAMES
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.runner import run_point

PROMPTS = [5, 16, 11]
OUTPUTS = [30, 20, 37]


def llada2() -> MoeModel:
    return moe_model(build_glm4_moe(num_layers=4))


def sdar_moe() -> MoeModel:
    return moe_model(build_qwen3_moe(seed=2))  # a seed without near-ties


MODELS = {"llada2": llada2, "sdar-moe": sdar_moe}
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
