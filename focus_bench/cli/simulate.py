"""focus-bench simulate: predicts points on data sheets and calibrated profiles, without torch."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from focus_bench.cli.flags import takes
from focus_bench.cli.sweep_options import SimulateFlags

if TYPE_CHECKING:
    from focus_bench.api.prediction import Target
    from focus_bench.cli.sweeps import Campaign, Sink
    from focus_bench.core.config import EngineConfig, PointConfig
    from focus_bench.core.workload import Workload
    from focus_bench.report.estimates import PointEstimate


@takes(SimulateFlags)
def command(flags: SimulateFlags) -> int:
    """Predict policies on some hardware, without running a model."""
    from focus_bench.api.prediction import check_can_simulate
    from focus_bench.bench.workload_cache import WorkloadCache
    from focus_bench.cli.plan import show_plan
    from focus_bench.cli.points import points_from_flags
    from focus_bench.cli.sweeps import run_campaigns

    points = points_from_flags(flags, simulated=True)
    for point in points:
        check_can_simulate(point)
    campaigns = _campaigns(flags, points)
    workloads = WorkloadCache()
    if flags.dry_run:
        return show_plan(campaigns, flags, workloads)
    return run_campaigns(campaigns, command="simulate", flags=flags, workloads=workloads)


def _campaigns(flags: SimulateFlags, points: "tuple[PointConfig, ...]") -> "list[Campaign]":
    """One for each model and piece of hardware; the profile of a CPU may be a model's own."""
    from focus_bench.cli.sweeps import Campaign

    campaigns = []
    for engine in dict.fromkeys(point.engine for point in points):
        own = tuple(point for point in points if point.engine == engine)
        campaigns += [
            Campaign(
                points=own,
                source="predicted",
                hardware=target.name,
                run=_predict_on(target),
                estimate=_estimate_on(target),
                basis=target.label,
            )
            for target in _targets(flags, engine)
        ]
    return campaigns


def _targets(flags: SimulateFlags, engine: "EngineConfig") -> "list[Target]":
    from focus_bench.api.prediction import find_target, target_of_profile
    from focus_bench.api.profiles import CPU
    from focus_bench.cli.points import comma_list
    from focus_bench.core.errors import UsageError
    from focus_bench.sim.calibration import load_profile

    if flags.profile is None:
        names = comma_list("--gpu", flags.gpu or CPU, str, "names")
        return [find_target(name, engine) for name in dict.fromkeys(names)]
    if flags.gpu is not None:
        raise UsageError("--profile", str(flags.profile), "--profile or --gpu, not both")
    return [target_of_profile(load_profile(flags.profile))]


def _predict_on(target: "Target") -> "Callable[[PointConfig, Workload, Sink], str]":
    def run(point: "PointConfig", workload: "Workload", sink: "Sink") -> str:
        record = target.predict(point, workload, on_progress=sink.on_progress)
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
