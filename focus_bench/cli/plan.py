"""--dry-run of run and simulate: the points, which of them are finished, and what each will take.

Runs no model; times come from a simulation that is cut short, so that many points take seconds.
"""

import dataclasses
from collections.abc import Sequence

from focus_bench.bench.workload_cache import WorkloadCache
from focus_bench.cli.sweep_options import PointFlags
from focus_bench.cli.sweeps import Campaign
from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.workload import Workload
from focus_bench.report.console import make_console
from focus_bench.report.estimates import total_time
from focus_bench.report.folder import load_folder
from focus_bench.report.formats import FEW
from focus_bench.report.locked_folder import MANIFEST_FILE
from focus_bench.report.results import PointResult
from focus_bench.report.tables import plan_table

# Simulated steps of all points together (some seconds), and the fewest of one.
_STEPS_IN_ALL = 6000
_STEPS_AT_LEAST = 16


def show_plan(campaigns: Sequence[Campaign], flags: PointFlags, workloads: WorkloadCache) -> int:
    """Print the points of a dry run with their predicted times and memory; returns exit code 0.

    A data set that is not here leaves times and KV memory unknown, and is named; nothing is
    downloaded.
    """
    console = make_console(quiet=flags.quiet)
    done = _finished(flags)
    num_points = sum(len(campaign.points) for campaign in campaigns)
    max_steps = max(_STEPS_AT_LEAST, _STEPS_IN_ALL // max(1, num_points))
    missing: dict[str, None] = {}
    for campaign in campaigns:
        estimates = []
        for point in campaign.points:
            workload = _workload_here(point, workloads, missing)
            estimates.append(campaign.estimate(point, workload, max_steps))
        finished = [
            (found := done.get((point.hash(), campaign.source, campaign.hardware))) is not None
            and campaign.is_current(found)
            for point in campaign.points
        ]
        console.print(f"{campaign.source} on {campaign.hardware}")
        console.print(plan_table(campaign.points, finished if flags.resume else None, estimates))
        to_do = [e for e, is_done in zip(estimates, finished, strict=True) if not is_done]
        lines = [total_time(to_do)]
        if campaign.basis and any(estimate.seconds is not None for estimate in estimates):
            lines.append(f"predicted by: {campaign.basis}")
        if any(not estimate.is_whole for estimate in estimates):
            lines.append(f"{FEW}: the first {max_steps} steps were predicted, the rest follows")
        for line in filter(None, lines):
            console.print(line, soft_wrap=True)
    for line in missing:
        console.print(f"time and KV memory unknown: {line}", soft_wrap=True)
    return 0


def _finished(flags: PointFlags) -> dict[tuple[str, str, str], PointResult]:
    """The results that --resume would find; none where the folder was killed before its first."""
    path = flags.output_dir
    if not flags.resume or path is None or not (path / MANIFEST_FILE).is_file():
        return {}
    return {result.key: result for result in load_folder(path).results}


def _workload_here(
    point: PointConfig, workloads: WorkloadCache, missing: dict[str, None]
) -> Workload | None:
    workload = dataclasses.replace(point.workload, download=False)
    try:
        return workloads.of(dataclasses.replace(point, workload=workload))
    except UsageError as error:
        missing[str(error)] = None
        return None
