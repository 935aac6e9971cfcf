"""What a point will take: memory from shapes, time from a prediction that is cut short.

Loads SimPy when an estimate is made, never torch.
"""

import dataclasses
from dataclasses import dataclass

from focus_bench.api.prediction import (
    Target,
    find_target,
    hardware_of_device,
    target_of_profile,
    with_fitted_dynamics,
)
from focus_bench.api.profiles import CPU, gpu_profile_of
from focus_bench.bench.defaults import parse_importance
from focus_bench.bench.footprint import footprint
from focus_bench.core.config import EngineConfig, PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import resolve_model, spec_on_device
from focus_bench.core.workload import Workload
from focus_bench.report.estimates import DOES_NOT_FIT, FEWER_PAGES, FITS, PointEstimate
from focus_bench.scheduling.recorder import Recorder
from focus_bench.scheduling.request import target_tokens
from focus_bench.scheduling.setup import lengths_from_data


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """Seconds of serving a workload; `is_whole` False: the first steps were predicted, and the rest
    follows from them (a batch that empties towards the end is not foreseen).
    """

    seconds: float
    is_whole: bool


def target_of_device(device: str, engine: EngineConfig) -> Target | None:
    """What predicts the engine's model on a device that PyTorch names `device`: a profile that was
    calibrated there, else the data sheet; on a CPU the packaged profile. None: neither is here.
    """
    if device == CPU:
        return find_target(CPU, engine)
    profile = gpu_profile_of(device, spec_on_device(resolve_model(engine), "cuda"))
    if profile is not None:
        return target_of_profile(profile)
    try:
        return find_target(hardware_of_device(device), engine)
    except UsageError:
        return None


def estimate_point(
    point: PointConfig,
    workload: Workload | None,
    target: Target | None,
    *,
    max_steps: int,
    budget_bytes: int | None = None,
    num_runs: int = 1,
) -> PointEstimate:
    """Time and memory of a point that is run `num_runs` times.

    `workload` None: its data is not here. `target` None: nothing predicts the device, a GPU.
    `budget_bytes`: what weights and pages may take of the device's memory, where that is known.
    """
    if target is None:
        spec = spec_on_device(resolve_model(point.engine), "cuda", dtype=point.engine.dtype)
    else:
        spec = target.spec_of(point)
    if workload is None:
        return PointEstimate(weight_bytes=spec.weight_bytes)
    memory = footprint(point, workload, spec)
    fits = ""
    if budget_bytes is not None:
        pages = (budget_bytes - memory.weight_bytes) // memory.page_bytes
        needed = point.scheduler.num_pages or 1
        enough = FITS if pages >= memory.kv_pages else FEWER_PAGES
        fits = DOES_NOT_FIT if pages < needed else enough
    time = None
    if target is not None and fits != DOES_NOT_FIT:
        time = estimate_time(point, workload, target, max_steps=max_steps)
    return PointEstimate(
        seconds=None if time is None else time.seconds * num_runs,
        is_whole=time is None or time.is_whole,
        weight_bytes=memory.weight_bytes,
        kv_pages=memory.kv_pages,
        kv_bytes=memory.kv_bytes,
        activation_bytes=memory.activation_bytes,
        fits=fits,
    )


class _EnoughSteps(Exception):
    """Ends a simulation."""


def estimate_time(
    point: PointConfig, workload: Workload, target: Target, *, max_steps: int
) -> TimeEstimate | None:
    """Predicted seconds of serving `workload`, from at most `max_steps` simulated steps.

    What a bundled model decides is drawn from what was fitted on its traces, and importance scores
    of any model are synthetic. None where the prediction is impossible: another trained model's
    confidences decide, or the point does not fit into the device.
    """
    point = with_fitted_dynamics(point)
    if point.acceptance.kind == "synthetic" and point.importance.kind == "model":
        point = dataclasses.replace(point, importance=parse_importance("synthetic"))
    steps_left = max_steps
    stopped: Recorder | None = None

    def on_progress(recorder: Recorder) -> None:
        nonlocal steps_left, stopped
        steps_left -= 1
        if steps_left < 1:
            stopped = recorder
            raise _EnoughSteps

    try:
        record = target.predict(point, workload, on_progress=on_progress)
    except _EnoughSteps:
        assert stopped is not None
        return _extrapolated(point, workload, stopped)
    except UsageError:
        return None
    return TimeEstimate(seconds=record.duration_s, is_whole=True)


def _extrapolated(point: PointConfig, workload: Workload, stopped: Recorder) -> TimeEstimate | None:
    """Prefill time goes with prompt tokens, all other time with decoded tokens."""
    steps = stopped.finish(0.0, 0).steps
    prefill_s = sum(step.timing.prefill_s for step in steps)
    decode_s = sum(step.timing.duration_s for step in steps) - prefill_s
    prefilled = sum(step.prefill_tokens for step in steps)
    decoded = sum(step.decoded_tokens for step in steps)
    if not decoded:
        return None
    from_data = lengths_from_data(point)
    prompts = sum(request.num_prompt_tokens for request in workload.requests)
    outputs = sum(target_tokens(request, from_data=from_data) for request in workload.requests)
    seconds = decode_s * max(1.0, outputs / decoded)
    if prefilled:
        seconds += prefill_s * max(1.0, prompts / prefilled)
    last_arrival_s = max(request.arrival_s for request in workload.requests)
    return TimeEstimate(seconds=max(seconds, last_arrival_s), is_whole=False)
