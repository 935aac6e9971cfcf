"""Workloads that every driver must serve with the same sequence of plans (contract 1).

A driver is a function that serves a loop to its end and returns the duration in seconds. The
executor is given the clock only where the driver lets the executor's work take time.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from fakes import CheckedCache, FakeClock, FakeExecutor, PlanLog, make_request

from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    ImportanceConfig,
    SchedulerConfig,
)
from focus_bench.core.records import RunRecord
from focus_bench.core.rng import generator
from focus_bench.core.workload import Provenance, Workload
from focus_bench.decoding.rules import StepRules
from focus_bench.decoding.trace import DecodeTrace, TraceWriter
from focus_bench.scheduling.loop import ServingLoop, run_wall_clock
from focus_bench.scheduling.recorder import Recorder
from focus_bench.scheduling.scheduler import Scheduler

NUM_REQUESTS = 24
IMPOSSIBLE = 5  # the request that fits into no pool
SCATTERED = AcceptanceConfig(kind="synthetic", mean=2.0, scatter=1.0)

Driver = Callable[[ServingLoop, FakeExecutor], float]


@dataclass(frozen=True, kw_only=True)
class LockstepCase:
    """One workload under one configuration.

    `arrivals`: "at-once", "poisson" (mean gap of about a step and a half) or "closed". `sizes`:
    prompt and output tokens of each request; none: random ones, one of them larger than any pool.
    """

    name: str
    policy: str = "focus"
    arrivals: str = "at-once"
    kind: str = "continuous"
    num_pages: int = 200
    batch_size: int = 6
    steps_per_round: int = 1
    acceptance: AcceptanceConfig = SCATTERED
    sizes: tuple[tuple[int, int], ...] = ()

    def workload(self) -> Workload:
        """The requests, made anew at each call."""
        random = generator(11, self.name)
        sizes = list(self.sizes)
        if not sizes:
            sizes = [tuple(random.integers(1, (60, 50)).tolist()) for _ in range(NUM_REQUESTS)]
            sizes[IMPOSSIBLE] = (100_000, 1)
        gaps = random.exponential(0.025, len(sizes))
        arrival_s = np.cumsum(gaps) if self.arrivals == "poisson" else np.zeros(len(sizes))
        requests = [
            make_request(i, prompt, output, arrival_s=float(when))
            for i, ((prompt, output), when) in enumerate(zip(sizes, arrival_s, strict=True))
        ]
        return Workload(
            requests=tuple(requests),
            provenance=Provenance(dataset="lockstep", origin="synthetic", tokenizer="formula"),
            max_concurrency=4 if self.arrivals == "closed" else None,
        )


CASES = (
    LockstepCase(name="baseline", policy="baseline"),
    LockstepCase(name="focus"),
    LockstepCase(name="confidence", acceptance=AcceptanceConfig()),
    LockstepCase(name="adaptive", policy="adaptive", arrivals="poisson", batch_size=20),
    LockstepCase(name="arrivals", arrivals="poisson"),
    LockstepCase(name="closed-loop", arrivals="closed"),
    LockstepCase(name="small-pool", num_pages=16, arrivals="poisson"),
    LockstepCase(name="small-pool-baseline", policy="baseline", num_pages=16),
    LockstepCase(name="static", kind="static", policy="delayed-cache-neighbor"),
    LockstepCase(name="rounds", policy="baseline", arrivals="poisson", steps_per_round=4),
)


@dataclass(frozen=True, kw_only=True)
class LockstepRun:
    """What a driver made of a case."""

    log: PlanLog
    record: RunRecord
    trace: DecodeTrace
    duration_s: float


def run_case(case: LockstepCase, driver: Driver) -> LockstepRun:
    """Serve the case with that driver."""
    decode = DecodeConfig(policy=case.policy, block_length=8)
    config = SchedulerConfig(
        kind=case.kind,
        batch_size=case.batch_size,
        page_size=8,
        max_prefill_tokens=64,
        steps_per_round=case.steps_per_round,
    )
    executor = FakeExecutor(
        rules=StepRules(
            decode=decode,
            acceptance=case.acceptance,
            importance=ImportanceConfig(kind="synthetic", tau=1.5, noise=0.3),
            seed=3,
        ),
        cache=CheckedCache(case.num_pages, config.page_size),
    )
    workload = case.workload()
    recorder = Recorder(
        workload=workload,
        source="predicted",
        trace=TraceWriter(policy=case.policy, block_length=8, alpha=1.5, threshold=0.9),
    )
    loop = ServingLoop(
        scheduler=Scheduler(config, decode, num_pages=case.num_pages),
        executor=executor,
        workload=workload,
        recorder=recorder,
    )
    duration_s = driver(loop, executor)
    trace = recorder.finished_trace()
    assert trace is not None
    return LockstepRun(
        log=executor.log,
        record=recorder.finish(duration_s, case.num_pages),
        trace=trace,
        duration_s=duration_s,
    )


def wall_clock_driver(loop: ServingLoop, executor: FakeExecutor) -> float:
    """The engine's driver, on a clock that the executor moves."""
    clock = FakeClock()
    executor.clock = clock
    return run_wall_clock(loop, clock=clock)
