"""Runs one point on the engine in real time.

Composes model, cache, executor and serving loop; decides nothing that they decide.
"""

import dataclasses
import platform
from collections.abc import Callable

import numpy as np
import torch

from focus_bench.core.config import POLICY_NAMES, PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.host_memory import peak_memory_bytes
from focus_bench.core.labels import point_labels
from focus_bench.core.model_folder import has_dummy_weights, resolve_model
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.records import RunRecord
from focus_bench.core.rng import generator
from focus_bench.core.workload import Provenance, RequestSpec, TokenArray, Workload
from focus_bench.decoding.policies import POLICIES, check_suits_model, get_policy
from focus_bench.decoding.trace import DecodeTrace
from focus_bench.engine.device import device_name
from focus_bench.engine.environment import GpuSampler
from focus_bench.engine.executor import EngineExecutor, runs_on_kernels
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.memory import check_pages_fit, memory_budget_bytes, num_pages_that_fit
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.scheduling.loop import Executor, WallClock, nothing, run_wall_clock
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.recorder import Recorder
from focus_bench.scheduling.setup import build_loop, pages_of_longest, pages_wanted

MakeExecutor = Callable[[BlockDiffusionModel, PagedKVCache, PointConfig], Executor]


def check_runnable(point: PointConfig) -> None:
    """Raise UsageError for a policy that only `simulate` and `eval` offer (`ideal`), and for one
    that does not suit the model.
    """
    if not get_policy(point.decode.policy).in_engine_run:
        runnable = [n for n in POLICY_NAMES if POLICIES[n].in_engine_run]
        raise UsageError("--policy", point.decode.policy, f"{', '.join(runnable)} (in run)")
    check_suits_model(point.decode.policy, resolve_model(point.engine))


def run_point(
    model: BlockDiffusionModel,
    point: PointConfig,
    workload: Workload,
    *,
    on_progress: Callable[[Recorder], None] | None = None,
    decode_trace: bool = False,
    on_step: Callable[[Plan, Outcome], None] | None = None,
    make_executor: MakeExecutor = EngineExecutor.for_point,
) -> tuple[RunRecord, DecodeTrace | None]:
    """Serve `workload` on `model` as `point` says; returns the measured record.

    `on_progress` is called once a step with the recorder, `on_step` with each plan and its
    outcome. `make_executor` makes what carries out the plans. Raises UsageError or CapacityError
    before the first step for what cannot run, a mask token in a prompt included.
    """
    for request in workload.requests:
        _check_prompt(model, request)
    num_pages = _num_pages(model, point, workload)
    cache = PagedKVCache(
        model.spec,
        num_pages=num_pages,
        page_size=point.scheduler.page_size,
        device=model.device,
        dtype=model.dtype,
    )
    executor = make_executor(model, cache, point)
    if isinstance(executor, EngineExecutor):
        executor.prepare(pages_of_longest(point, workload))
    if on_step is not None:
        executor = _ObservedExecutor(executor, on_step)
    loop = build_loop(
        point,
        workload,
        executor,
        spec=model.spec,
        num_pages=num_pages,
        source="measured",
        decode_trace=decode_trace,
    )
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)
    with GpuSampler(_gpu_uuid(model.device)) as sampler:
        duration_s = run_wall_clock(loop, clock=WallClock(), on_progress=on_progress)
    record = dataclasses.replace(
        loop.recorder.finish(duration_s, num_pages),
        peak_memory_bytes=_peak_memory_bytes(model.device),
        notes=(*run_notes(point, workload, model.spec), *_path_notes(model)),
        settings=device_settings(model),
        environment=sampler.samples,
    )
    return record, loop.recorder.finished_trace()


def warm_up(model: BlockDiffusionModel, point: PointConfig) -> None:
    """Run a few short requests through the same path, unmeasured.

    Kernel by kernel: graphs are captured anew for every run, before its first step.
    """
    size = min(4, point.scheduler.batch_size)
    prompt = 2 * point.decode.block_length + 1
    rng = generator(point.seed, "warm-up")
    requests = tuple(
        RequestSpec(
            request_id=i,
            prompt_ids=_random_ids(model, rng, prompt),
            max_new_tokens=point.decode.block_length,
        )
        for i in range(size)
    )
    provenance = Provenance(dataset="warm-up", origin="synthetic", tokenizer="", synthetic=True)
    scheduler = dataclasses.replace(point.scheduler, num_pages=None)
    engine = dataclasses.replace(point.engine, cuda_graphs="off")
    point = dataclasses.replace(point, scheduler=scheduler, engine=engine)
    run_point(model, point, Workload(requests=requests, provenance=provenance))


def run_notes(point: PointConfig, workload: Workload, spec: ModelSpec) -> tuple[str, ...]:
    """What the run does not measure, for every output."""
    dummy_weights = has_dummy_weights(point.engine)
    return point_labels(point, workload.provenance, dummy_weights=dummy_weights, spec=spec)


def _path_notes(model: BlockDiffusionModel) -> tuple[str, ...]:
    """On a GPU, that no kernels were used where none exist for the model's family."""
    if model.device.type != "cuda" or runs_on_kernels(model):
        return ()
    return (f"plain PyTorch on the GPU (no fused layers for {model.spec.name} yet)",)


def device_settings(model: BlockDiffusionModel) -> dict[str, str]:
    """Device and versions that the run depends on."""
    on_gpu = model.device.type == "cuda"
    return {
        "device": device_name(model.device),
        "processor": platform.processor() or platform.machine(),
        "threads": str(torch.get_num_threads()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "" if on_gpu else "",
        "python": platform.python_version(),
    }


class _ObservedExecutor:
    """An executor that shows each step to a callback."""

    def __init__(self, inner: Executor, on_step: Callable[[Plan, Outcome], None]) -> None:
        self._inner = inner
        self._on_step = on_step

    def execute(self, plan: Plan, meanwhile: Callable[[], None] = nothing) -> Outcome:
        outcome = self._inner.execute(plan, meanwhile)
        self._on_step(plan, outcome)
        return outcome


def _check_prompt(model: BlockDiffusionModel, request: RequestSpec) -> None:
    """Refuse mask tokens and ids beyond the embedding: a tokenizer or mask id not this model's."""
    ids, spec = request.prompt_ids, model.spec
    bad = (ids == spec.mask_token_id) | (ids < 0) | (ids >= spec.vocab_size)
    if not bad.any():
        return
    position = int(bad.argmax())
    kind = "mask token" if ids[position] == spec.mask_token_id else "token"
    raise UsageError(
        f"prompt of request {request.request_id}",
        f"{kind} {ids[position]} at position {position}",
        f"ids from 0 to {spec.vocab_size - 1} other than the mask token {spec.mask_token_id}",
    )


def _num_pages(model: BlockDiffusionModel, point: PointConfig, workload: Workload) -> int:
    budget = memory_budget_bytes(model.device, point.engine.gpu_memory_utilization)
    page_size = point.scheduler.page_size
    if point.scheduler.num_pages is not None:
        num_pages = point.scheduler.num_pages
        check_pages_fit(model.spec, page_size=page_size, num_pages=num_pages, budget_bytes=budget)
        return num_pages
    return num_pages_that_fit(
        model.spec,
        page_size=page_size,
        budget_bytes=budget,
        wanted_pages=pages_wanted(point, workload),
    )


def _gpu_uuid(device: torch.device) -> str:
    """The GPU's name for its driver, "" for a CPU."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else ""


def _random_ids(model: BlockDiffusionModel, rng: np.random.Generator, count: int) -> TokenArray:
    spec = model.spec
    ids = rng.integers(0, (spec.tokenizer_size or spec.vocab_size) - 1, size=count)
    return (ids + (ids >= spec.mask_token_id)).astype(np.int32)  # any but the mask token


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return peak_memory_bytes()
