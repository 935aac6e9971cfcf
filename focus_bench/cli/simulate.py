"""focus-bench simulate: predicts points on data sheets and calibrated profiles, without torch."""

from focus_bench.cli.flags import takes
from focus_bench.cli.options import SimulateFlags


@takes(SimulateFlags)
def command(flags: SimulateFlags) -> int:
    """Predict policies on some hardware, without running a model."""
    from focus_bench import api
    from focus_bench.bench.workload_cache import WorkloadCache
    from focus_bench.cli.points import comma_list, points_from_flags
    from focus_bench.cli.sweeps import Campaign, Sink, run_campaigns, show_plan
    from focus_bench.core.config import PointConfig
    from focus_bench.core.hardware import get_hardware
    from focus_bench.core.workload import Workload
    from focus_bench.decoding.rules import StepRules
    from focus_bench.sim.executor import check_can_simulate

    points = points_from_flags(flags)

    def campaign(hardware: str) -> Campaign:
        def run(point: PointConfig, workload: Workload, sink: Sink) -> str:
            record = api.simulate(point, workload, hardware=hardware, on_progress=sink.on_progress)
            return sink.describe(sink.store(point, workload, record, hardware=hardware))

        return Campaign(points=points, source="predicted", hardware=hardware, run=run)

    names = comma_list("--gpu", flags.gpu or "h200", str, "names")
    for name in names:
        get_hardware(name)
    for point in points:
        check_can_simulate(StepRules.for_point(point))
    campaigns = [campaign(name) for name in names]
    if flags.dry_run:
        return show_plan(campaigns, flags)
    return run_campaigns(campaigns, command="simulate", flags=flags, workloads=WorkloadCache())
