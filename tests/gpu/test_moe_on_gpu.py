"""Models with experts on an NVIDIA GPU: the CPU's tokens in float32, sound runs in bfloat16."""

from typing import Any

import pytest
import torch
from engine_serving import BATCH_INDEPENDENT_POLICIES, make_point, make_requests, serve
from moe_reference import (
    build_glm4_moe,
    build_qwen3_moe,
    glm4_moe_spec,
    llada2_tensors,
    moe_model,
    qwen3_moe_spec,
    sdar_moe_tensors,
)
from transformers import Glm4MoeForCausalLM

from focus_bench.core.model_spec import PRESETS
from focus_bench.engine.device import torch_dtype
from focus_bench.engine.models.experts import ExpertWeights
from focus_bench.engine.models.families import family_of
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.weights import dummy_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

REFERENCES = {
    "llada2": lambda: build_glm4_moe(num_layers=4),
    "sdar-moe": lambda: build_qwen3_moe(seed=2),
}


def on_gpu(reference: Any, dtype: str = "float32") -> MoeModel:
    """The reference's weights on the GPU, routers in float32."""
    if isinstance(reference, Glm4MoeForCausalLM):
        spec, tensors = glm4_moe_spec(reference), llada2_tensors(reference)
    else:
        spec, tensors = qwen3_moe_spec(reference), sdar_moe_tensors(reference)
    family = family_of(spec)

    def tensor(name: str) -> torch.Tensor:
        kept = torch.float32 if family.keeps_float32(name) else torch_dtype(dtype)
        return tensors[name].to(device="cuda", dtype=kept)

    model = family.build(spec.replace(stop_token_ids=(), dtype=dtype), tensor)
    assert isinstance(model, MoeModel)
    return model


@pytest.mark.usefixtures("decisive_margins", "decisive_routes")
@pytest.mark.parametrize("policy", BATCH_INDEPENDENT_POLICIES)
@pytest.mark.parametrize("kind", REFERENCES)
def test_float32_decodes_as_on_the_cpu(policy: str, kind: str) -> None:
    reference = REFERENCES[kind]()
    point = make_point(policy, num_pages=9, retain=3)
    requests = make_requests([5, 16, 11], [30, 20, 37], seed=1)
    there = serve(on_gpu(reference), point, requests)
    assert there.outputs == serve(moe_model(reference), point, requests).outputs


@pytest.mark.parametrize("kind", REFERENCES)
def test_bfloat16_serves_to_the_end(kind: str) -> None:
    model = on_gpu(REFERENCES[kind](), "bfloat16")
    served = serve(model, make_point("focus"), make_requests([5, 16, 11], 20, seed=1))
    assert [len(output) for output in served.outputs.values()] == [20] * 3


def test_dummy_weights_of_llada2_mini_take_the_bytes_that_are_counted() -> None:
    spec = PRESETS["llada2-mini"].replace(num_layers=3)
    before = torch.cuda.memory_allocated()
    model = dummy_model(spec, device=torch.device("cuda"))
    taken = torch.cuda.memory_allocated() - before
    assert taken == pytest.approx(spec.weight_bytes, rel=0.01)
    assert isinstance(model, MoeModel)
    experts = model.layers[1].feed_forward
    assert isinstance(experts, ExpertWeights)
    output = experts(torch.randn(64, spec.hidden_size, device="cuda", dtype=torch.bfloat16))
    assert output.isfinite().all()
