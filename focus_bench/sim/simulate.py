"""Predicts one point: puts rules, time model, scheduler and driver together.

The library side of `focus-bench simulate`; loads no torch.
"""

import dataclasses
from collections.abc import Callable

from focus_bench.core.config import PointConfig
from focus_bench.core.errors import CapacityError
from focus_bench.core.hardware import Hardware
from focus_bench.core.labels import point_labels
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Workload
from focus_bench.decoding.acceptance import PRESET_ALPHA, PRESET_BLOCK_LENGTH
from focus_bench.decoding.dynamics import DecodeDynamics
from focus_bench.decoding.policies import EvictionKind, get_policy
from focus_bench.decoding.rules import StepRules
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.recorder import Recorder
from focus_bench.scheduling.setup import build_loop, pages_wanted
from focus_bench.sim.cost_model import CostModel
from focus_bench.sim.driver import run_simulated
from focus_bench.sim.executor import SimExecutor


def simulate_point(
    point: PointConfig,
    workload: Workload,
    spec: ModelSpec,
    *,
    cost_model: CostModel,
    num_pages: int,
    on_progress: Callable[[Recorder], None] | None = None,
    on_step: Callable[[Plan, Outcome], None] | None = None,
) -> RunRecord:
    """Serve `workload` in simulated time as `point` says; returns the predicted record.

    `spec` is the model as it runs (dtype included), `num_pages` the KV pages of the device (see
    `pages_on_hardware`, `pages_on_host`). `on_progress` is called after each step with the
    recorder, `on_step` with each plan and its outcome. Raises UsageError for what cannot be
    simulated; requests that do not fit end with reason `error` in the record.
    """
    rules = StepRules.for_point(point)
    executor = SimExecutor(
        rules=rules,
        cost_model=cost_model,
        page_size=point.scheduler.page_size,
        on_step=on_step,
    )
    loop = build_loop(
        _without_token_rules(point),
        workload,
        executor,
        spec=spec,
        num_pages=num_pages,
        source="predicted",
    )
    duration_s = run_simulated(loop, on_progress=on_progress)
    return dataclasses.replace(
        loop.recorder.finish(duration_s, num_pages),
        notes=simulation_notes(point, workload, rules, cost_model, spec),
        settings={"device": cost_model.label},
    )


def _without_token_rules(point: PointConfig) -> PointConfig:
    """Stop tokens and repetitions need tokens, which a simulation has none of."""
    scheduler = dataclasses.replace(point.scheduler, stop_tokens=False, repetition_guard=False)
    return dataclasses.replace(point, scheduler=scheduler)


def simulation_notes(
    point: PointConfig,
    workload: Workload,
    rules: StepRules,
    cost_model: CostModel,
    spec: ModelSpec,
) -> tuple[str, ...]:
    """What the prediction rests on, for every output."""
    notes = [
        cost_model.label,
        *point_labels(point, workload.provenance, dummy_weights=False, spec=spec),
    ]
    if point.acceptance.kind == "synthetic" and is_extrapolated(point, rules.dynamics):
        notes.append("extrapolated decode dynamics")
    if rules.replay is not None and rules.replay.approximate:
        notes.append("approximate: the trace was recorded under another configuration")
    if get_policy(point.decode.policy).eviction is EvictionKind.IDEAL:
        notes.append("ideal: the cost of knowing what is decodable is left out")
    return tuple(notes)


def is_extrapolated(point: PointConfig, dynamics: DecodeDynamics | None = None) -> bool:
    """Whether synthetic decoding is used at a B, or by an evicting policy at an alpha, other than
    those that its parameters were fitted at; of a model's `dynamics`, also at another threshold.
    They were fitted on whole blocks, so sub-blocks are beyond them too.
    """
    if dynamics is not None and point.decode.threshold != dynamics.threshold:
        return True
    policy = get_policy(point.decode.policy)
    uses_alpha = policy.adaptive or policy.eviction is EvictionKind.DYNAMIC
    other_alpha = uses_alpha and point.decode.alpha != PRESET_ALPHA
    other_blocks = point.decode.block_length != PRESET_BLOCK_LENGTH or policy.sub_block_length > 0
    return other_blocks or other_alpha


def pages_on_hardware(point: PointConfig, spec: ModelSpec, hardware: Hardware) -> int:
    """KV pages beside the weights in the device's memory, or ``--num-pages`` if those fit.

    Raises CapacityError, with the bytes wanted and had, if they do not.
    """
    utilization = point.engine.gpu_memory_utilization
    budget = int(hardware.memory_bytes * utilization) - spec.weight_bytes
    page_bytes = spec.kv_bytes_per_token * point.scheduler.page_size
    wanted = max(1, point.scheduler.num_pages or 1)
    if budget < wanted * page_bytes:
        raise CapacityError(
            f"memory of {hardware.full_name}",
            f"{spec.weight_bytes + wanted * page_bytes:,} bytes wanted ({spec.weight_bytes:,} of "
            f"weights of {spec.name}, {wanted * page_bytes:,} of {wanted} KV pages), "
            f"{int(hardware.memory_bytes * utilization):,} bytes had",
            "a larger --gpu-memory-utilization, fewer --num-pages, a smaller model or another GPU",
        )
    return point.scheduler.num_pages or budget // page_bytes


def pages_on_host(point: PointConfig, workload: Workload) -> int:
    """KV pages of a CPU run, which has memory for as many as the workload can hold."""
    return point.scheduler.num_pages or pages_wanted(point, workload)
