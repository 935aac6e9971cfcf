"""The simulator's own speed and memory, at the size that the documentation promises."""

import subprocess
import sys

import pytest

SERVE_5000 = """
import time
from focus_bench.core.config import EngineConfig, PointConfig, WorkloadConfig
from focus_bench.core.config import AcceptanceConfig, ImportanceConfig, SchedulerConfig
from focus_bench.core.hardware import get_hardware
from focus_bench.core.host_memory import peak_memory_bytes
from focus_bench.core.model_spec import PRESETS
from focus_bench.sim.roofline import RooflineModel
from focus_bench.sim.simulate import pages_on_hardware, simulate_point
from focus_bench.workloads.loader import load_workload
from focus_bench.workloads.tokenizers import load_tokenizer

spec, hardware = PRESETS["sdar-8b"], get_hardware("h200")
point = PointConfig(
    acceptance=AcceptanceConfig(kind="synthetic", mean=2.351),
    importance=ImportanceConfig(kind="synthetic", tau=2.0, noise=0.05),
    scheduler=SchedulerConfig(batch_size=256),
    engine=EngineConfig(model="sdar-8b"),
    workload=WorkloadConfig(dataset="synthetic", num_prompts=5000, max_new_tokens=2048),
)
workload = load_workload(
    point.workload,
    tokenizer=load_tokenizer("byte"),
    seed=0,
    block_length=32,
    max_positions=spec.max_position_embeddings,
)
record = simulate_point(
    point,
    workload,
    spec,
    cost_model=RooflineModel(spec=spec, hardware=hardware),
    num_pages=pages_on_hardware(point, spec, hardware),
)
assert len(record.requests) == 5000
assert {r.finish_reason for r in record.requests} == {"length"}
print(time.process_time(), peak_memory_bytes())
"""


@pytest.mark.slow
def test_5000_requests_at_batch_256_take_under_10_s_and_1_gb() -> None:
    # Processor time, which a busy machine does not stretch; one thread does all the work.
    done = subprocess.run(
        [sys.executable, "-c", SERVE_5000], capture_output=True, text=True, check=True, timeout=150
    )
    seconds, num_bytes = (float(value) for value in done.stdout.split())
    assert seconds < 10.0
    assert num_bytes < 1e9
