"""Serves requests on the engine step by step, in a cache where whatever nobody owns is NaN.

Composes the public parts as `run_point` does, but counts time in steps, so that arrivals fall where
a test wants them, and logs what each forward fed, kept and decoded.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from qwen3_reference import build_qwen3, spec_of
from transformers import Qwen3ForCausalLM

from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    ImportanceConfig,
    PointConfig,
    SamplingConfig,
    SchedulerConfig,
)
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Provenance, RequestSpec, Workload
from focus_bench.decoding.trace import DecodeTrace
from focus_bench.engine.executor import EngineExecutor
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models import sdar
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.runner import MakeExecutor
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.setup import build_loop, pages_wanted

# Every policy whose tokens a request's neighbours in the batch must not change.
BATCH_INDEPENDENT_POLICIES = (
    "baseline",
    "delayed-cache",
    "delayed-cache-neighbor",
    "focus",
    "focus-fixed",
    "ideal",
    "fast-dllm-v2",
)


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One forward of one request: positions within its block."""

    fed: tuple[int, ...]
    kept: tuple[int, ...]
    decoded: tuple[int, ...]
    is_commit: bool


@dataclass(kw_only=True)
class Served:
    """What came of a run, by request id."""

    record: RunRecord
    trace: DecodeTrace
    forwards: dict[int, list[Forward]] = field(default_factory=dict)
    num_swaps_out: int = 0
    num_swaps_in: int = 0
    max_pages_used: int = 0

    @property
    def outputs(self) -> dict[int, list[int]]:
        return {r: ids.tolist() for r, ids in self.record.output_ids.items()}

    @property
    def reasons(self) -> dict[int, str]:
        return {r.request_id: r.finish_reason for r in self.record.requests}

    @property
    def preemptions(self) -> int:
        return sum(r.preemptions for r in self.record.requests)


def engine_model(reference: Qwen3ForCausalLM, **spec_changes: Any) -> sdar.SdarModel:
    """The engine's model with the reference's weights; without stop tokens unless asked for."""
    spec = spec_of(reference).replace(**{"stop_token_ids": (), **spec_changes})
    state = reference.state_dict()
    return sdar.build(spec, lambda name: state[name])


def random_model(
    *, weights_seed: int = 0, num_layers: int = 3, **spec_changes: Any
) -> sdar.SdarModel:
    """`engine_model` of a fresh random reference."""
    return engine_model(build_qwen3(seed=weights_seed, num_layers=num_layers), **spec_changes)


def make_point(
    policy: str = "focus",
    *,
    block_length: int = 8,
    threshold: float = 0.3,
    batch_size: int = 8,
    page_size: int = 8,
    num_pages: int | None = None,
    kind: str = "continuous",
    max_prefill_tokens: int = 8192,
    include_stop_token: bool = True,
    temperature: float = 0.0,
    seed: int = 0,
    acceptance: AcceptanceConfig | None = None,
    importance: ImportanceConfig | None = None,
    **decode: Any,
) -> PointConfig:
    """A point with acceptance by confidence; `decode` goes to DecodeConfig."""
    return PointConfig(
        decode=DecodeConfig(
            policy=policy,
            block_length=block_length,
            threshold=threshold,
            **decode,
        ),
        sampling=SamplingConfig(temperature=temperature),
        acceptance=acceptance or AcceptanceConfig(),
        importance=importance or ImportanceConfig(),
        scheduler=SchedulerConfig(
            kind=kind,
            batch_size=batch_size,
            page_size=page_size,
            num_pages=num_pages,
            max_prefill_tokens=max_prefill_tokens,
            include_stop_token=include_stop_token,
        ),
        engine=EngineConfig(model="built-by-the-test", device="cpu"),
        seed=seed,
    )


def make_requests(
    prompt_lengths: Sequence[int],
    max_new_tokens: int | Sequence[int],
    *,
    seed: int = 0,
    arrivals: Sequence[float] | None = None,
    num_ids: int = 96,
) -> tuple[RequestSpec, ...]:
    """Requests 0, 1, ... with random prompts; `arrivals` in steps."""
    random = np.random.default_rng(seed)
    count = len(prompt_lengths)
    budget = [max_new_tokens] * count if isinstance(max_new_tokens, int) else max_new_tokens
    return tuple(
        RequestSpec(
            request_id=i,
            prompt_ids=random.integers(0, num_ids, prompt_lengths[i]).astype(np.int32),
            max_new_tokens=budget[i],
            arrival_s=0.0 if arrivals is None else arrivals[i],
        )
        for i in range(count)
    )


def make_workload(requests: Sequence[RequestSpec], max_concurrency: int | None = None) -> Workload:
    """A workload of those requests."""
    provenance = Provenance(dataset="test", origin="synthetic", tokenizer="")
    return Workload(
        requests=tuple(requests), provenance=provenance, max_concurrency=max_concurrency
    )


def serve(
    model: BlockDiffusionModel,
    point: PointConfig,
    requests: Sequence[RequestSpec],
    *,
    max_concurrency: int | None = None,
    make_executor: MakeExecutor | None = None,
) -> Served:
    """Run the requests to their ends; step n happens at time n."""
    workload = make_workload(requests, max_concurrency)
    num_pages = point.scheduler.num_pages or pages_wanted(point, workload)
    cache = PagedKVCache(
        model.spec,
        num_pages=num_pages,
        page_size=point.scheduler.page_size,
        device=model.device,
        dtype=model.dtype,
    )
    executor = (make_executor or EngineExecutor.for_point)(model, cache, point)
    loop = build_loop(
        point,
        workload,
        executor,
        spec=model.spec,
        num_pages=num_pages,
        source="measured",
        decode_trace=True,
    )
    forwards: dict[int, list[Forward]] = {r.request_id: [] for r in requests}
    swaps_out = swaps_in = max_pages_used = 0
    step = 0
    _poison_unowned_pages(cache, loop.scheduler.pool.pages_of, forwards)
    while not loop.is_done:
        plan = loop.begin_step(float(step))
        step += 1
        if plan is None:
            continue
        swaps_out += len(plan.swap_out)
        swaps_in += len(plan.swap_in)
        max_pages_used = max(max_pages_used, plan.pages_used)
        outcome = executor.execute(plan, loop.catch_up)
        _log(forwards, plan, outcome)
        loop.end_step(plan, outcome, start_s=step - 1.0, end_s=float(step), schedule_s=0.0)
        loop.scheduler.check_integrity()
        _poison_unowned_pages(cache, loop.scheduler.pool.pages_of, forwards)
        assert step < 10_000, "the run does not end"
    loop.catch_up()
    trace = loop.recorder.finished_trace()
    assert trace is not None
    return Served(
        record=loop.recorder.finish(float(step), num_pages),
        trace=trace,
        forwards=forwards,
        num_swaps_out=swaps_out,
        num_swaps_in=swaps_in,
        max_pages_used=max_pages_used,
    )


def _log(forwards: dict[int, list[Forward]], plan: Plan, outcome: Outcome) -> None:
    for row, request_id in enumerate(plan.request_ids.tolist()):
        forwards[request_id].append(
            Forward(
                fed=_columns(plan.feed.positions[row]),
                kept=_columns(outcome.kept[row]),
                decoded=_columns(outcome.decoded[row]),
                is_commit=bool(plan.feed.commit[row]),
            )
        )


def _columns(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask).tolist())


def _poison_unowned_pages(
    cache: PagedKVCache, pages_of: Callable[[int], list[int]], request_ids: Iterable[int]
) -> None:
    """What a preempted or finished request leaves behind must be of use to nobody."""
    owned = {page for request_id in request_ids for page in pages_of(request_id)}
    free = sorted(set(range(cache.num_pages)) - owned)
    for tensor in (cache.keys, cache.values):
        tensor.unflatten(1, (cache.num_pages, cache.page_size))[:, free] = torch.nan


def alone(
    model: BlockDiffusionModel, point: PointConfig, requests: Sequence[RequestSpec]
) -> dict[int, list[int]]:
    """Each request's tokens when it is served without the others."""
    return {r.request_id: serve(model, point, [r]).outputs[r.request_id] for r in requests}
