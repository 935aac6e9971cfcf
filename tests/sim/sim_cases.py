"""Points and workloads for tests of the simulator, and a time model that is easy to follow."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    ImportanceConfig,
    PointConfig,
    SchedulerConfig,
)
from focus_bench.core.costs import StepShape
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.records import RunRecord, StepTiming
from focus_bench.core.workload import Provenance, RequestSpec, Workload
from focus_bench.decoding.acceptance import DEFAULT_IMPORTANCE_NOISE, DEFAULT_IMPORTANCE_TAU
from focus_bench.sim.cost_model import CostModel
from focus_bench.sim.simulate import simulate_point

SPEC = PRESETS["dummy-tiny"]


@dataclasses.dataclass(kw_only=True)
class ConstantTime:
    """Every step takes as long."""

    step_s: float = 0.25
    label: str = "constant"
    shapes: list[StepShape] = dataclasses.field(default_factory=list)

    def step_timing(self, shape: StepShape) -> StepTiming:
        self.shapes.append(shape)
        return StepTiming(duration_s=self.step_s)


def make_point(policy: str = "focus", *, mean: float = 2.351, **changes: object) -> PointConfig:
    point = PointConfig(
        decode=DecodeConfig(policy=policy),
        acceptance=AcceptanceConfig(kind="synthetic", mean=mean),
        importance=ImportanceConfig(
            kind="synthetic", tau=DEFAULT_IMPORTANCE_TAU, noise=DEFAULT_IMPORTANCE_NOISE
        ),
        scheduler=SchedulerConfig(batch_size=64),
        engine=EngineConfig(model="dummy-tiny"),
    )
    return dataclasses.replace(point, **changes)


def make_workload(
    prompts: Sequence[int],
    output_tokens: int,
    *,
    arrivals_s: Sequence[float] | None = None,
    max_concurrency: int | None = None,
    request_rate: float = float("inf"),
) -> Workload:
    times = [0.0] * len(prompts) if arrivals_s is None else arrivals_s
    requests = tuple(
        RequestSpec(
            request_id=i,
            prompt_ids=np.ones(length, dtype=np.int32),
            max_new_tokens=output_tokens,
            arrival_s=float(time),
        )
        for i, (length, time) in enumerate(zip(prompts, times, strict=True))
    )
    return Workload(
        requests=requests,
        provenance=Provenance(dataset="test", origin="synthetic", tokenizer="none"),
        max_concurrency=max_concurrency,
        request_rate=request_rate,
    )


def simulate(
    point: PointConfig,
    workload: Workload,
    *,
    num_pages: int = 10_000,
    cost_model: CostModel | None = None,
) -> RunRecord:
    return simulate_point(
        point,
        workload,
        SPEC,
        cost_model=cost_model or ConstantTime(),
        num_pages=num_pages,
    )


def processed_per_decoded(record: RunRecord) -> float:
    decoded = sum(r.decoded_tokens for r in record.requests)
    return sum(r.processed_deep_tokens for r in record.requests) / decoded
