"""No kernel is compiled in a step: whatever a run may need is compiled before its clock starts."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch
import triton
from engine_serving import make_point, make_requests, make_workload

from focus_bench.core.config import AcceptanceConfig, EngineConfig, ImportanceConfig
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.rng import generator
from focus_bench.engine import device_head, runner
from focus_bench.engine.device_step import DeviceStep
from focus_bench.engine.weights import dummy_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

# Attention as in SDAR-8B: a block's rows fill large tiles or small ones.
SPEC = ModelSpec(
    name="wide",
    num_layers=4,
    hidden_size=512,
    num_q_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=1024,
    vocab_size=40_000,
    mask_token_id=39_999,
    dtype="bfloat16",
)
BATCHES = (1, 40, 160)


def compiled_in_steps(cuda_graphs: str, temperature: float) -> list[str]:
    """Kernels that are compiled between the first and the last step of runs of every batch."""
    device_head.GREEDY_CHUNK_BYTES = device_head.DRAW_CHUNK_BYTES = 64 << 20  # chunks of all widths
    found: list[str] = []
    compiled: list[str] = []
    triton.knobs.runtime.jit_cache_hook = lambda **facts: compiled.append(facts["repr"])
    prepare = DeviceStep.prepare

    def prepare_and_forget(step: DeviceStep, max_pages: int) -> None:
        prepare(step, max_pages)
        compiled.clear()

    DeviceStep.prepare = prepare_and_forget  # type: ignore[method-assign]
    model = dummy_model(SPEC, device=torch.device("cuda"))
    for policy in ("baseline", "delayed-cache-neighbor", "focus"):
        for batch in BATCHES:
            lengths = generator(batch, "prompts").integers(10, 500, size=batch + batch // 2 + 1)
            point = make_point(
                policy,
                block_length=32,
                batch_size=batch,
                page_size=64,
                temperature=temperature,
                acceptance=AcceptanceConfig(kind="synthetic", mean=2.351, scatter=1.0),
                importance=ImportanceConfig(kind="synthetic", tau=2.0, noise=0.3),
            )
            engine = EngineConfig(model="wide", cuda_graphs=cuda_graphs)
            point = dataclasses.replace(point, engine=engine)
            workload = make_workload(make_requests(lengths.tolist(), 40, num_ids=1000))
            runner.warm_up(model, point)
            compiled.clear()
            runner.run_point(model, point, workload)
            found += [f"{policy} at batch {batch}: {kernel}" for kernel in compiled]
    return found


@pytest.mark.parametrize(("cuda_graphs", "temperature"), [("auto", 0.0), ("off", 0.9)])
def test_steps_find_their_kernels_compiled(cuda_graphs: str, temperature: float) -> None:
    """In a process of its own, which has compiled nothing before."""
    call = f"compiled_in_steps({cuda_graphs!r}, {temperature})"
    program = f"import json, conftest; from test_compiled_ahead import *; print(json.dumps({call}))"
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == []
