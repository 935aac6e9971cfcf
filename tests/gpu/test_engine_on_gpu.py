"""The engine on an NVIDIA GPU: the CPU's tokens in float32, sound runs in bfloat16, limits, timing.

Needs neither the simulator nor the command line: `pytest -m gpu` runs on a machine without them.
"""

import dataclasses
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from engine_serving import (
    BATCH_INDEPENDENT_POLICIES,
    alone,
    make_point,
    make_requests,
    make_workload,
    random_model,
    serve,
)
from qwen2_reference import random_qwen2
from torch import Tensor

from focus_bench.core.config import AcceptanceConfig, EngineConfig, ImportanceConfig
from focus_bench.core.errors import CapacityError, UsageError
from focus_bench.core.model_spec import PRESETS, ModelSpec
from focus_bench.engine import device_head
from focus_bench.engine.device import torch_dtype
from focus_bench.engine.models import sdar
from focus_bench.engine.runner import run_point
from focus_bench.engine.weights import dummy_model, load_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

ALL_POLICIES = (*BATCH_INDEPENDENT_POLICIES, "adaptive")
PROMPTS, OUTPUTS = [5, 16, 11, 24, 3], [30, 20, 37, 12, 26]
SYNTHETIC = {
    "acceptance": AcceptanceConfig(kind="synthetic", mean=2.351, scatter=1.0),
    "importance": ImportanceConfig(kind="synthetic", tau=2.0, noise=0.3),
}
# Wide enough for the matrix products that large models use, and four heads per KV head.
WIDE = ModelSpec(
    name="wide",
    num_layers=4,
    hidden_size=512,
    num_q_heads=8,
    num_kv_heads=2,
    head_dim=128,
    intermediate_size=1024,
    vocab_size=1000,
    mask_token_id=999,
    dtype="bfloat16",
)


def on_gpu(model: sdar.SdarModel, dtype: str = "float32") -> sdar.SdarModel:
    """The same weights on the GPU."""
    tensors = dict(sdar.named_tensors(model))
    target = {"device": torch.device("cuda"), "dtype": torch_dtype(dtype)}
    return sdar.build(model.spec.replace(dtype=dtype), lambda name: tensors[name].to(**target))


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("policy", ALL_POLICIES)
@pytest.mark.parametrize("num_pages", [None, 12], ids=["roomy", "preemption"])
@pytest.mark.parametrize("cuda_graphs", ["off", "on"])
def test_float32_decodes_as_on_the_cpu(
    policy: str, num_pages: int | None, cuda_graphs: str
) -> None:
    point = make_point(policy, num_pages=num_pages, retain=3, focus_min_batch=3)
    point = dataclasses.replace(
        point, engine=dataclasses.replace(point.engine, cuda_graphs=cuda_graphs)
    )
    requests = make_requests(PROMPTS, OUTPUTS, seed=1)
    on_cpu = serve(random_model(), point, requests)
    on_cuda = serve(on_gpu(random_model()), point, requests)
    assert on_cuda.outputs == on_cpu.outputs
    assert on_cuda.forwards == on_cpu.forwards
    assert bool(on_cuda.preemptions) == (num_pages is not None)
    if num_pages is not None and policy != "baseline":
        assert on_cuda.num_swaps_in == on_cuda.num_swaps_out > 0


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("num_pages", [None, 12], ids=["roomy", "preemption"])
@pytest.mark.parametrize("cuda_graphs", ["off", "on"])
def test_sub_blocks_decode_as_on_the_cpu(num_pages: int | None, cuda_graphs: str) -> None:
    point = make_point("fast-dllm-v2", block_length=32, page_size=16, num_pages=num_pages)
    point = dataclasses.replace(
        point, engine=dataclasses.replace(point.engine, cuda_graphs=cuda_graphs)
    )
    requests = make_requests([5, 32, 40, 3], [70, 50, 60, 45], seed=2)
    on_cpu = serve(random_model(), point, requests)
    on_cuda = serve(on_gpu(random_model()), point, requests)
    assert {8, 32} <= {len(f.fed) for fs in on_cpu.forwards.values() for f in fs}
    assert on_cuda.outputs == on_cpu.outputs
    assert on_cuda.forwards == on_cpu.forwards
    assert bool(on_cuda.preemptions) == (num_pages is not None)


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("policy", ["baseline", "fast-dllm-v2"])
@pytest.mark.parametrize("num_pages", [None, 12], ids=["roomy", "preemption"])
@pytest.mark.parametrize("cuda_graphs", ["off", "on"])
def test_shifted_logits_decode_as_on_the_cpu(
    policy: str, num_pages: int | None, cuda_graphs: str
) -> None:
    point = make_point(policy, block_length=32, page_size=16, num_pages=num_pages)
    point = dataclasses.replace(
        point, engine=dataclasses.replace(point.engine, cuda_graphs=cuda_graphs)
    )
    requests = make_requests([5, 32, 40, 3], [70, 50, 60, 45], seed=3)
    on_cpu = serve(random_qwen2(), point, requests)
    on_cuda = serve(random_qwen2(device="cuda"), point, requests)
    assert on_cuda.outputs == on_cpu.outputs
    assert on_cuda.forwards == on_cpu.forwards
    assert bool(on_cuda.preemptions) == (num_pages is not None)


def test_fast_dllms_shape_runs_in_bfloat16() -> None:
    spec = PRESETS["fast-dllm-v2-7b"].replace(num_layers=2, stop_token_ids=())
    model = dummy_model(spec, device=torch.device("cuda"))
    point = make_point("fast-dllm-v2", block_length=32, page_size=64, **SYNTHETIC)
    requests = [
        dataclasses.replace(r, reply_tokens=r.max_new_tokens)
        for r in make_requests([32, 100, 7], 70, num_ids=1000)
    ]
    served = serve(model, point, requests)
    assert served.reasons == {0: "length", 1: "length", 2: "length"}
    assert {8, 32} <= {len(f.fed) for fs in served.forwards.values() for f in fs}


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("policy", ["baseline", "focus"])
def test_draws_at_temperature_one_are_those_of_the_cpu(policy: str) -> None:
    point = make_point(policy, temperature=1.0, num_pages=9, seed=7)
    requests = make_requests([5, 16, 11], [26, 17, 21], seed=4)
    assert serve(on_gpu(random_model()), point, requests).outputs == (
        serve(random_model(), point, requests).outputs
    )


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("policy", BATCH_INDEPENDENT_POLICIES)
def test_batch_equals_single_runs(policy: str) -> None:
    model = on_gpu(random_model())
    point = make_point(policy, num_pages=12, retain=3)
    requests = make_requests(PROMPTS, OUTPUTS, seed=1)
    served = serve(model, point, requests)
    assert served.preemptions
    assert served.outputs == alone(model, point, requests)


@pytest.mark.parametrize("policy", ALL_POLICIES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bfloat16_runs_end_to_end_with_finite_confidences(
    policy: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    confidences: list[Tensor] = []
    head = device_head.unmask_head

    def watched(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        tokens, confidence = head(*args, **options)
        confidences.append(confidence)
        return tokens, confidence

    monkeypatch.setattr(device_head, "unmask_head", watched)
    model = on_gpu(random_model(), "bfloat16")
    point = make_point(policy, num_pages=12, temperature=temperature)
    served = serve(model, point, make_requests(PROMPTS, OUTPUTS))
    assert set(served.reasons.values()) == {"length"}
    assert [len(served.outputs[i]) for i in range(5)] == OUTPUTS
    seen = torch.cat(confidences)
    assert seen.dtype == torch.float32
    assert bool(((seen > 0) & (seen <= 1)).all())


@pytest.mark.parametrize("policy", ["baseline", "focus"])
def test_a_real_shape_runs_in_bfloat16(policy: str) -> None:
    config = EngineConfig(model="sdar-1.7b", device="cuda")
    model = load_model(config)
    assert model.dtype == torch.bfloat16
    point = make_point(policy, block_length=32, page_size=64, **SYNTHETIC)  # type: ignore[arg-type]
    point = dataclasses.replace(point, engine=config)
    requests = make_requests([50, 300, 129, 64], 64, num_ids=150_000)
    record, _ = run_point(model, point, make_workload(requests))
    assert {r.finish_reason for r in record.requests} == {"length"}
    mask_id = PRESETS["sdar-1.7b"].mask_token_id
    assert all(mask_id not in ids for ids in record.output_ids.values())
    assert record.settings["device"].startswith("NVIDIA")
    assert record.settings["dtype"] == "bfloat16"
    assert record.peak_memory_bytes is not None
    assert record.peak_memory_bytes > model.spec.weight_bytes


@pytest.mark.parametrize("policy", ["baseline", "focus"])
def test_twenty_runs_give_the_same_tokens(policy: str) -> None:
    point = make_point(policy, block_length=16, threshold=0.002, batch_size=8, temperature=1.0)
    requests = make_requests([5, 40, 11, 100, 33, 64, 17, 90, 3, 8], 40, num_ids=999)
    model = dummy_model(WIDE, device=torch.device("cuda"))
    first, _ = run_point(model, point, make_workload(requests))
    for _ in range(19):
        record, _ = run_point(model, point, make_workload(requests))
        for i in range(len(requests)):
            assert np.array_equal(record.output_ids[i], first.output_ids[i])
        assert [s.kept_tokens for s in record.steps] == [s.kept_tokens for s in first.steps]


def test_dead_logits_fail_their_request_and_no_other() -> None:
    model = on_gpu(random_model(tokenizer_size=98))
    embedding = model.embedding.clone()
    embedding[99] = torch.nan
    requests = make_requests([5, 16, 11], 18)
    requests[1].prompt_ids[3] = 99
    dead = dataclasses.replace(model, embedding=embedding)
    served = serve(dead, make_point("focus"), requests)
    assert served.reasons == {0: "length", 1: "error", 2: "length"}
    assert served.outputs[1] == []


def test_ids_beyond_the_embedding_never_reach_the_device() -> None:
    requests = make_requests([5], 5)
    requests[0].prompt_ids[2] = 101
    model = on_gpu(random_model())
    with pytest.raises(UsageError, match="token 101 at position 2"):
        run_point(model, make_point("focus"), make_workload(requests))
    torch.cuda.synchronize()


def test_a_hundredth_of_the_memory_does_not_hold_sdar_8b() -> None:
    before = torch.cuda.memory_allocated()
    config = EngineConfig(model="sdar-8b", device="cuda", gpu_memory_utilization=0.01)
    with pytest.raises(CapacityError, match=r"16,381,470,720 bytes wanted, [\d,]+ bytes had"):
        load_model(config)
    assert torch.cuda.memory_allocated() == before


def test_more_pages_than_memory_are_refused() -> None:
    point = make_point("focus", num_pages=10**9)
    model = on_gpu(random_model())
    with pytest.raises(CapacityError, match=r"--num-pages: .*1000000000 .*bytes wanted"):
        run_point(model, point, make_workload(make_requests([5], 5)))


@pytest.mark.parametrize("policy", ["focus", "ideal"])
def test_phases_of_a_step_add_up_to_at_most_its_duration(policy: str) -> None:
    point = make_point(policy, num_pages=12)
    requests = make_requests(PROMPTS, OUTPUTS, seed=1)
    served = serve(dummy_model(WIDE, device=torch.device("cuda")), point, requests)
    names = ("swap_s", "prefill_s", "prefix_s", "eviction_s", "suffix_s", "head_s", "host_s")
    for step in served.record.steps:
        phases = {name: getattr(step.timing, name) for name in names}
        assert all(seconds >= 0.0 for seconds in phases.values())
        # CUDA events tick every half microsecond.
        assert sum(phases.values()) <= step.timing.duration_s + 1e-5
        assert (phases["prefill_s"] > 0.0) == (step.prefill_tokens > 0)
        assert (phases["suffix_s"] > 0.0) == (step.num_rows > 0)
    swaps = [s.timing.swap_s for s in served.record.steps if s.preemptions]
    assert swaps
    assert min(swaps) > 0.0


def test_without_visible_devices_the_cpu_runs_and_says_so() -> None:
    program = """
from engine_serving import make_point, make_requests, make_workload
from focus_bench.core.config import EngineConfig
from focus_bench.engine.runner import run_point
from focus_bench.engine.weights import load_model
model = load_model(EngineConfig(model="dummy-tiny", device="auto"))
record, _ = run_point(model, make_point("focus"), make_workload(make_requests([5], 5)))
print(record.settings["device"], len(record.output_ids[0]))
"""
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["cpu", "5"]
