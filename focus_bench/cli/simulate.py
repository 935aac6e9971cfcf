"""focus-bench simulate: predicts points on data sheets and calibrated profiles, without torch."""

import gc
from typing import TYPE_CHECKING

from focus_bench.cli.flags import takes
from focus_bench.cli.sweep_options import SimulateFlags

if TYPE_CHECKING:
    from focus_bench.api.prediction import Target
    from focus_bench.cli.sweeps import Campaign
    from focus_bench.core.config import EngineConfig, PointConfig
    from focus_bench.report.folder import ResultFolder

_GC_THRESHOLD = 100_000  # objects made


@takes(SimulateFlags)
def command(flags: SimulateFlags) -> int:
    """Predict policies on some hardware, without running a model."""
    from focus_bench.api.prediction import check_can_simulate
    from focus_bench.bench.workload_cache import WorkloadCache
    from focus_bench.cli.paths import check_writable
    from focus_bench.cli.plan import show_plan
    from focus_bench.cli.points import points_from_flags
    from focus_bench.cli.predictions import say_unusable_profiles
    from focus_bench.cli.sweeps import run_campaigns
    from focus_bench.cli.what_if import with_default_sweep, with_full_batches

    # Records of steps and requests form no cycles: looking for some took 0.1 s of 5,000 requests.
    gc.set_threshold(_GC_THRESHOLD)
    check_writable("--output-dir", flags.output_dir, is_folder=True)
    check_writable("--perfetto", flags.perfetto, inputs=[flags.output_dir, flags.profile])
    if flags.what_if:
        flags = with_default_sweep(flags)
    points = points_from_flags(flags, simulated=True)
    if flags.what_if:
        points = with_full_batches(points)
    for point in points:
        check_can_simulate(point)
    if flags.profile is None:
        say_unusable_profiles(quiet=flags.quiet)
    campaigns = _campaigns(flags, points)
    workloads = WorkloadCache()
    if flags.dry_run:
        return show_plan(campaigns, flags, workloads)
    # Most of encoding text, and reading it, leaves a second processor core to the costs.
    workloads.load_ahead(points)
    for campaign in campaigns:
        campaign.get_ready()
    return run_campaigns(
        campaigns,
        command="simulate",
        flags=flags,
        workloads=workloads,
        show=lambda folder: _show(folder, flags),
    )


def _show(folder: "ResultFolder", flags: SimulateFlags) -> None:
    """The table of results and hardware side by side; or, with --what-if, what it found."""
    from focus_bench.cli.sweeps import show_end, show_results
    from focus_bench.cli.what_if import show_what_if
    from focus_bench.report.console import make_console
    from focus_bench.report.intervals_table import intervals_table
    from focus_bench.report.what_if import hardware_table

    if flags.what_if:
        show_what_if(folder, quiet=flags.quiet)
        show_end(folder, quiet=flags.quiet, perfetto=flags.perfetto)
        return
    show_results(folder, quiet=flags.quiet, perfetto=flags.perfetto)
    beside = hardware_table(folder.results)
    for table in (beside, intervals_table(folder.results)):
        if table is not None:
            make_console(quiet=flags.quiet).print(table)


def _campaigns(flags: SimulateFlags, points: "tuple[PointConfig, ...]") -> "list[Campaign]":
    """One for each model and piece of hardware; the profile of a CPU may be a model's own."""
    from focus_bench.cli.predictions import prediction_campaign

    campaigns = []
    for engine in dict.fromkeys(point.engine for point in points):
        own = tuple(point for point in points if point.engine == engine)
        for target in _targets(flags, engine):
            _check_predicts(target, own[0], flags)
            campaigns.append(prediction_campaign(own, target, interval=flags.interval))
    return campaigns


def _check_predicts(target: "Target", point: "PointConfig", flags: SimulateFlags) -> None:
    """Raise UsageError naming the flag, also one that was not given, before any point fails."""
    from focus_bench.core.errors import UsageError

    try:
        target.check_predicts(target.spec_of(point))
    except UsageError as error:
        if error.field != "--gpu":
            raise
        if flags.profile is not None:
            raise UsageError("--profile", str(flags.profile), error.allowed) from error
        given = error.value if flags.gpu is not None else f"not given, so {target.name}"
        raise UsageError(error.field, given, error.allowed) from error


def _targets(flags: SimulateFlags, engine: "EngineConfig") -> "list[Target]":
    from focus_bench.api.prediction import find_target, target_of_file
    from focus_bench.api.profiles import CPU, naming_flag
    from focus_bench.cli.points import comma_list
    from focus_bench.core.errors import UsageError

    if flags.profile is None:
        names = comma_list("--gpu", CPU if flags.gpu is None else flags.gpu, str, "names")
        targets: dict[str, Target] = {}
        asked: dict[str, str] = {}
        for name in dict.fromkeys(names):
            target = find_target(name, engine)
            if target.name in targets:  # results are kept by it
                both = f"{asked[target.name]} and {name}"
                raise UsageError("--gpu", both, f"one of them: both predict for {target.name}")
            targets[target.name], asked[target.name] = target, name
        return list(targets.values())
    if flags.gpu is not None:
        raise UsageError("--profile", str(flags.profile), "--profile or --gpu, not both")
    with naming_flag("--profile"):
        return [target_of_file(flags.profile)]
