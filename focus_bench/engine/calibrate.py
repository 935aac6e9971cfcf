"""Measures steps of the engine for the simulator's time model: a few seconds of mixed small runs.

Runs random prompts only, never a user's workload; fitting is the simulator's business.
"""

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from focus_bench.core.calibration import (
    TIMED_PARTS,
    CalibrationSamples,
    StepCounts,
    dimensions_of,
    samples_of,
)
from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    ImportanceConfig,
    PointConfig,
    SchedulerConfig,
)
from focus_bench.core.errors import check_range
from focus_bench.core.records import RunRecord
from focus_bench.core.rng import generator
from focus_bench.core.workload import Provenance, RequestSpec, Workload
from focus_bench.decoding.acceptance import (
    DEFAULT_IMPORTANCE_NOISE,
    DEFAULT_IMPORTANCE_TAU,
    PRESET_BLOCK_LENGTH,
)
from focus_bench.engine.memory import release_memory
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.runner import device_settings, run_point, warm_up
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.step_shape import step_shape


@dataclass(frozen=True, kw_only=True)
class ShortRun:
    """One small run: `prompts` lengths in tokens, each request's output length.

    With `num_pages` (of 64 tokens) fewer than the requests need, some are preempted.
    `cuda_graphs` as in EngineConfig.
    """

    policy: str
    batch_size: int
    prompts: tuple[int, ...]
    output_tokens: int
    num_pages: int | None = None
    cuda_graphs: str = "auto"


def spread(count: int, low: int, high: int) -> tuple[int, ...]:
    """Lengths from `low` to `high`, evenly spread in their logarithms."""
    return tuple(int(n) for n in np.geomspace(low, high, count).round())


# Batch sizes on both sides of the usual ones; contexts from a few tokens to thousands; steps of a
# whole block, of thinned blocks (delayed cache) and of few kept positions (eviction). More requests
# than slots, so that pages are handed on and a sequence's lie scattered, as in a long run. The
# outputs of wide batches are short: a step of theirs takes long and tells as much as one.
_RUNS = (
    ShortRun(policy="baseline", batch_size=3, prompts=spread(7, 20, 2500), output_tokens=16),
    ShortRun(policy="focus", batch_size=12, prompts=spread(22, 10, 1500), output_tokens=24),
    ShortRun(policy="baseline", batch_size=40, prompts=spread(44, 8, 400), output_tokens=7),
    ShortRun(
        policy="delayed-cache-neighbor",
        batch_size=6,
        prompts=(60,) * 8,
        output_tokens=40,
        num_pages=8,
    ),
    ShortRun(policy="focus", batch_size=40, prompts=spread(56, 8, 200), output_tokens=18),
    ShortRun(
        policy="delayed-cache-neighbor",
        batch_size=24,
        prompts=spread(30, 20, 200),
        output_tokens=22,
    ),
    ShortRun(policy="baseline", batch_size=12, prompts=spread(16, 30, 900), output_tokens=12),
    ShortRun(policy="focus", batch_size=3, prompts=spread(8, 40, 3200), output_tokens=30),
    ShortRun(policy="focus", batch_size=24, prompts=spread(30, 33, 600), output_tokens=18),
    ShortRun(policy="baseline", batch_size=1, prompts=(31,), output_tokens=24),
)


def measure(
    model: BlockDiffusionModel,
    *,
    seconds: float = 15.0,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
    runs: Sequence[ShortRun] = _RUNS,
) -> CalibrationSamples:
    """Measure every step of `runs` at least once, then again in the same order for `seconds`.

    The runs are deterministic, so each step is measured once a round; the median over the rounds
    is kept, which outlasts a disturbance that is shorter than half of them.
    """
    check_range("--seconds", seconds, low=0.0)
    served = [(_point(run, seed), _workload(model, run, seed)) for run in runs]
    served = [(point, workload) for point, workload in served if workload.requests]
    warm_up(model, served[0][0])
    begin = clock()
    rounds: list[list[tuple[StepCounts, dict[str, float]]]] = []
    round_s = 0.0
    while not rounds or clock() - begin + round_s <= seconds:
        round_begin = clock()
        rounds.append([step for run in served for step in _measure_run(model, *run)])
        round_s = clock() - round_begin
    steps = [
        (same[0][0], {p: float(np.median([t[p] for _, t in same])) for p in TIMED_PARTS})
        for same in zip(*rounds, strict=True)
    ]
    counts, timed = samples_of(steps)
    settings = device_settings(model)
    return CalibrationSamples(
        device=settings["device"],
        kind="gpu" if model.device.type == "cuda" else "cpu",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        settings={**settings, "rounds": str(len(rounds))},
        model=model.spec.name,
        dimensions=dimensions_of(model.spec),
        counts=counts,
        seconds=timed,
    )


def _measure_run(
    model: BlockDiffusionModel, point: PointConfig, workload: Workload
) -> list[tuple[StepCounts, dict[str, float]]]:
    """Counts and seconds per part of every step of one run."""
    if model.device.type == "cuda":
        release_memory()  # of the last run's pages
    seen: list[tuple[Plan, Outcome]] = []
    record, _ = run_point(
        model, point, workload, on_step=lambda plan, outcome: seen.append((plan, outcome))
    )
    counts = [
        StepCounts.of(
            step_shape(
                plan,
                kept=outcome.kept,
                progress=outcome.progress,
                evicting=outcome.evicting,
                page_size=point.scheduler.page_size,
                attention_cover=point.decode.attention_cover,
            )
        )
        for plan, outcome in seen
    ]
    return list(zip(counts, _seconds_per_part(record), strict=True))


def _seconds_per_part(record: RunRecord) -> list[dict[str, float]]:
    """Timed parts of every step; the time up to the next step's start that none has is host's."""
    starts = [step.start_s for step in record.steps] + [record.duration_s]
    parts = []
    for step, whole_s in zip(record.steps, np.diff(starts), strict=True):
        timed = {p: getattr(step.timing, f"{p}_s") for p in TIMED_PARTS if p != "host"}
        timed["host"] = max(0.0, float(whole_s) - sum(timed.values()))
        parts.append(timed)
    return parts


def _point(run: ShortRun, seed: int) -> PointConfig:
    return PointConfig(
        decode=DecodeConfig(policy=run.policy, block_length=PRESET_BLOCK_LENGTH),
        acceptance=AcceptanceConfig(kind="synthetic", mean=2.5),
        importance=ImportanceConfig(
            kind="synthetic", tau=DEFAULT_IMPORTANCE_TAU, noise=DEFAULT_IMPORTANCE_NOISE
        ),
        scheduler=SchedulerConfig(batch_size=run.batch_size, num_pages=run.num_pages),
        engine=EngineConfig(model="measured", cuda_graphs=run.cuda_graphs),
        seed=seed,
    )


def _workload(model: BlockDiffusionModel, run: ShortRun, seed: int) -> Workload:
    """Random prompts in random order; those that the model's positions cannot take are left out."""
    spec = model.spec
    rng = generator(seed, f"calibrate/{run.policy}/{run.batch_size}")
    ids_below = min(spec.mask_token_id, spec.tokenizer_size or spec.vocab_size)
    room = spec.max_position_embeddings - run.output_tokens - PRESET_BLOCK_LENGTH
    prompts = [length for length in rng.permutation(run.prompts).tolist() if length <= room]
    requests = tuple(
        RequestSpec(
            request_id=i,
            prompt_ids=rng.integers(0, ids_below, size=length).astype(np.int32),
            max_new_tokens=run.output_tokens,
        )
        for i, length in enumerate(prompts)
    )
    provenance = Provenance(
        dataset="calibration", origin="synthetic", tokenizer="none", synthetic=True
    )
    return Workload(requests=requests, provenance=provenance)
