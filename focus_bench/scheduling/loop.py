"""The serving loop: arrivals -> schedule -> execute -> commit -> record, under either driver.

The wall-clock driver is here; the simulator's driver in sim/ makes the same calls on SimPy's clock.
Both use ServingLoop, so they cannot drift apart.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from focus_bench.core.workload import Workload
from focus_bench.scheduling.arrivals import ArrivalQueue
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.recorder import Recorder
from focus_bench.scheduling.scheduler import Scheduler


def nothing() -> None:
    """What a step need not do meanwhile."""


class Executor(Protocol):
    """Carries out plans: the engine on a device, the simulator in a time model."""

    def execute(self, plan: Plan, meanwhile: Callable[[], None] = nothing) -> Outcome:
        """Do one step; `Outcome.timing.duration_s` says how long it took.

        `meanwhile`: work that the step does not depend on, done once, best while a device is busy.
        """
        ...


class Clock(Protocol):
    """Seconds since the run's start, and waiting."""

    def now(self) -> float:
        """Seconds since the run's start."""
        ...

    def sleep_until(self, when_s: float) -> None:
        """Wait until that time."""
        ...


class WallClock:
    """The real clock; starts when it is made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since this clock was made."""
        return time.perf_counter() - self._start

    def sleep_until(self, when_s: float) -> None:
        """Sleep until that many seconds after the start."""
        time.sleep(max(0.0, when_s - self.now()))


@dataclass(kw_only=True)
class ServingLoop:
    """The state of one run: who has arrived, what runs, what was recorded."""

    scheduler: Scheduler
    executor: Executor
    workload: Workload
    recorder: Recorder

    def __post_init__(self) -> None:
        self.arrivals = ArrivalQueue(self.workload)
        self._unrecorded: list[Callable[[], None]] = []

    @property
    def is_done(self) -> bool:
        """Whether every request has arrived and ended."""
        return self.arrivals.is_empty and not self.scheduler.has_work

    def begin_step(self, now_s: float) -> Plan | None:
        """Let arrivals in and plan the next step; None if there is nothing to run now."""
        closed_loop = self.workload.max_concurrency is not None
        while True:
            due = self.arrivals.due(now_s)
            self.recorder.on_arrival(due, now_s, closed_loop)
            for spec in due:
                self.scheduler.submit(spec)
            if not self._settle_finished(now_s) or self.arrivals.next_arrival_s() is None:
                break
        plan = self.scheduler.schedule()
        self.recorder.on_admitted(self.scheduler.drain_admitted(), now_s)
        return plan

    def end_step(
        self, plan: Plan, outcome: Outcome, *, start_s: float, end_s: float, schedule_s: float
    ) -> None:
        """Commit an executed plan; it is recorded when `catch_up` is called."""
        report = self.scheduler.commit(plan, outcome)
        self._unrecorded.append(
            lambda: self.recorder.on_step(
                plan, outcome, report, start_s=start_s, end_s=end_s, schedule_s=schedule_s
            )
        )
        self._settle_finished(end_s)

    def catch_up(self) -> None:
        """Record what was committed and not yet recorded, and which requests ended; prepare the
        commit of the step that runs, if any.
        """
        for record in self._unrecorded:
            record()
        self._unrecorded.clear()
        self.scheduler.prepare_commit()

    def _settle_finished(self, now_s: float) -> int:
        finished = self.scheduler.drain_finished()
        if finished:
            self._unrecorded.append(lambda: self.recorder.on_finished(finished, now_s))
        self.arrivals.on_finished(len(finished))
        return len(finished)


def run_wall_clock(
    loop: ServingLoop, *, clock: Clock, on_progress: Callable[[Recorder], None] | None = None
) -> float:
    """Serve the workload in real time; returns the duration in seconds.

    `on_progress` is called with what was recorded before each step, and at the end.
    """

    def catch_up() -> None:
        loop.catch_up()
        if on_progress is not None:
            on_progress(loop.recorder)

    while not loop.is_done:
        begin_s = clock.now()
        plan = loop.begin_step(begin_s)
        if plan is None:
            next_s = loop.arrivals.next_arrival_s()
            if next_s is not None:
                clock.sleep_until(next_s)
            continue
        planned_s = clock.now()
        outcome = loop.executor.execute(plan, catch_up)
        executed_s = clock.now()
        loop.end_step(
            plan,
            outcome,
            start_s=begin_s,
            end_s=executed_s,
            schedule_s=planned_s - begin_s,
        )
    catch_up()
    return clock.now()
