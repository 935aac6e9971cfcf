"""Points on hardware that is only simulated, as campaigns; shared by simulate and paper."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from focus_bench.cli.sweeps import Campaign, Sink

if TYPE_CHECKING:
    from focus_bench.api.prediction import Target
    from focus_bench.core.config import PointConfig
    from focus_bench.core.workload import Workload
    from focus_bench.report.estimates import PointEstimate


def prediction_campaign(
    points: "tuple[PointConfig, ...]", target: "Target", *, interval: bool = False
) -> Campaign:
    """The points on one piece of hardware; `interval`: with intervals of their figures."""
    return Campaign(
        points=points,
        source="predicted",
        hardware=target.name,
        run=_predict_on(target, interval=interval),
        get_ready=lambda: target.get_ready(points[0]),
        estimate=_estimate_on(target),
        basis=target.label,
        is_current=target.made,
    )


def say_unusable_profiles(*, quiet: bool) -> None:
    """A line on stderr for each file of the user's cache that predictions pass over."""
    from focus_bench.api.profiles import unusable_profiles
    from focus_bench.report.console import make_console

    for line in unusable_profiles():
        make_console(sys.stderr, quiet=quiet).print(line, soft_wrap=True)


def _predict_on(
    target: "Target", *, interval: bool
) -> "Callable[[PointConfig, Workload, Sink], str]":
    def run(point: "PointConfig", workload: "Workload", sink: Sink) -> str:
        record = target.predict(point, workload, on_progress=sink.on_progress, interval=interval)
        return sink.describe(sink.store(point, workload, record, hardware=target.name))

    return run


def _estimate_on(
    target: "Target",
) -> "Callable[[PointConfig, Workload | None, int], PointEstimate]":
    from focus_bench.api.estimates import estimate_point

    def estimate(
        point: "PointConfig", workload: "Workload | None", max_steps: int
    ) -> "PointEstimate":
        budget = None
        if target.hardware is not None:
            budget = int(target.hardware.memory_bytes * point.engine.gpu_memory_utilization)
        return estimate_point(point, workload, target, max_steps=max_steps, budget_bytes=budget)

    return estimate
