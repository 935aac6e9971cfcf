"""Runs the serving loop on SimPy's clock: arrivals, and one event per engine step.

Makes the same calls as the wall-clock driver in scheduling.loop; knows no cost and no rule.
"""

from collections.abc import Callable, Generator

import simpy

from focus_bench.scheduling.loop import ServingLoop
from focus_bench.scheduling.recorder import Recorder


def run_simulated(
    loop: ServingLoop, *, on_progress: Callable[[Recorder], None] | None = None
) -> float:
    """Serve the workload in simulated time; returns the duration in simulated seconds.

    `on_progress` is called after each step.
    """
    environment = simpy.Environment()
    environment.process(_engine(environment, loop, on_progress))
    environment.run()
    return float(environment.now)


def _engine(
    environment: simpy.Environment,
    loop: ServingLoop,
    on_progress: Callable[[Recorder], None] | None,
) -> Generator[simpy.Event, None, None]:
    while not loop.is_done:
        begin_s = float(environment.now)
        plan = loop.begin_step(begin_s)
        if plan is None:
            next_s = loop.arrivals.next_arrival_s()
            if next_s is not None:
                yield environment.timeout(max(0.0, next_s - begin_s))
            continue
        outcome = loop.executor.execute(plan)
        yield environment.timeout(outcome.timing.duration_s)
        loop.end_step(plan, outcome, start_s=begin_s, end_s=float(environment.now), schedule_s=0.0)
        loop.catch_up()
        if on_progress is not None:
            on_progress(loop.recorder)
    loop.catch_up()  # requests that ended when they arrived
