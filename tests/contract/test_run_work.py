"""Work counted from a run's records against the work of its very steps."""

import dataclasses

import pytest

from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    ImportanceConfig,
    PointConfig,
    SchedulerConfig,
    WorkloadConfig,
)
from focus_bench.core.costs import StepShape, step_ops, total_bytes, total_flops
from focus_bench.core.hardware import get_hardware
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.records import StepTiming
from focus_bench.report.results import result_of
from focus_bench.report.work import work_of
from focus_bench.sim.roofline import RooflineModel
from focus_bench.sim.simulate import simulate_point
from focus_bench.workloads.loader import load_workload
from focus_bench.workloads.tokenizers import load_tokenizer

SPEC, SHEET = PRESETS["sdar-8b"], get_hardware("h200")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counting(RooflineModel):
    """The roofline, which keeps what every step really is."""

    shapes: list[StepShape] = dataclasses.field(default_factory=list)

    def step_timing(self, shape: StepShape) -> StepTiming:
        self.shapes.append(shape)
        return super().step_timing(shape)


@pytest.mark.parametrize("policy", ["baseline", "delayed-cache-neighbor", "focus"])
@pytest.mark.parametrize("batch_size", [1, 24])
def test_totals_of_steps_give_the_work_of_a_run(policy: str, batch_size: int) -> None:
    point = PointConfig(
        decode=DecodeConfig(policy=policy),
        acceptance=AcceptanceConfig(kind="synthetic", mean=2.13),
        importance=ImportanceConfig(kind="synthetic", tau=2.0, noise=0.05),
        scheduler=SchedulerConfig(batch_size=batch_size),
        engine=EngineConfig(model="sdar-8b"),
        workload=WorkloadConfig(
            dataset="synthetic", num_prompts=2 * batch_size + 6, max_new_tokens=160
        ),
    )
    workload = load_workload(
        point.workload,
        tokenizer=load_tokenizer("byte"),
        seed=0,
        block_length=32,
        max_positions=SPEC.max_position_embeddings,
    )
    counting = Counting(spec=SPEC, hardware=SHEET)
    run = simulate_point(point, workload, SPEC, cost_model=counting, num_pages=4000)
    work = work_of(point, run, SHEET)
    ops = [step_ops(SPEC, shape) for shape in counting.shapes]
    flops, moved_bytes = sum(map(total_flops, ops)), sum(map(total_bytes, ops))
    assert work is not None
    assert work.flops == pytest.approx(flops, rel=0.02)
    assert work.moved_bytes == pytest.approx(moved_bytes, rel=0.02)

    result = result_of(point, run, provenance=workload.provenance, hardware="h200")
    share = flops / (SHEET.dense_16bit_flops * run.duration_s)
    assert result.metrics.model_flops_utilization == pytest.approx(share, rel=0.02)
    assert 0.0 < (result.metrics.model_bandwidth_utilization or 0.0) < 1.0


def test_hardware_without_a_data_sheet_has_no_utilisation() -> None:
    point = PointConfig(engine=EngineConfig(model="dummy-tiny"))
    workload = load_workload(
        WorkloadConfig(dataset="synthetic", num_prompts=1, max_new_tokens=4),
        tokenizer=load_tokenizer("byte"),
        seed=0,
        block_length=32,
        max_positions=1024,
    )
    model = RooflineModel(spec=PRESETS["dummy-tiny"], hardware=SHEET)
    point = dataclasses.replace(
        point,
        acceptance=AcceptanceConfig(kind="synthetic", mean=2.0),
        importance=ImportanceConfig(kind="synthetic", tau=2.0, noise=0.05),
    )
    run = simulate_point(point, workload, PRESETS["dummy-tiny"], cost_model=model, num_pages=100)
    result = result_of(point, run, provenance=workload.provenance, hardware="cpu (2 threads)")
    assert result.metrics.model_flops_utilization is None
