"""What run and simulate share: the result folder, progress, the final report and the exit code.

Knows neither engine nor simulator; what a point runs on comes as a Campaign.
"""

import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from rich.console import Console

from focus_bench.bench.replay_check import check_replay
from focus_bench.bench.sweep import FailedPoint, SweepResult, run_sweep
from focus_bench.bench.workload_cache import WorkloadCache
from focus_bench.cli.interrupts import Interrupted, Interrupts
from focus_bench.cli.points import key_values
from focus_bench.cli.sweep_options import PointFlags
from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Workload
from focus_bench.report.console import make_console
from focus_bench.report.estimates import PointEstimate
from focus_bench.report.failures import PointFailure, failed_points_table
from focus_bench.report.folder import ResultFolder
from focus_bench.report.formats import number
from focus_bench.report.goodput import GoodputThresholds
from focus_bench.report.locked_folder import POINTS_FOLDER
from focus_bench.report.manifest import PlannedPoint, new_manifest
from focus_bench.report.progress import SweepProgress
from focus_bench.report.results import PointResult, result_of
from focus_bench.report.tables import failures_table, results_table
from focus_bench.report.trace_files import write_traces
from focus_bench.scheduling.recorder import Recorder

SOME_FAILED = 1


@dataclass(kw_only=True)
class Sink:
    """Takes what a point gives, while it runs and when it has ended.

    `predictions_failed`: those that were to stand beside a measurement.
    """

    folder: ResultFolder
    goodput: GoodputThresholds | None
    progress: SweepProgress
    console: Console
    interrupts: Interrupts
    predictions_failed: list[PointFailure]

    def on_progress(self, recorder: Recorder) -> None:
        """A step has ended."""
        self.progress.update(recorder.num_finished, recorder.output_tokens)

    def store(
        self,
        point: PointConfig,
        workload: Workload,
        run: RunRecord,
        *,
        hardware: str,
        runs: Sequence[RunRecord] = (),
    ) -> PointResult:
        """Keep a result, with all files of the folder made anew; `runs`: all, if several."""
        result = result_of(
            point,
            run,
            provenance=workload.provenance,
            hardware=hardware,
            goodput=self.goodput,
            runs=runs,
        )
        with self.interrupts.deferred():
            self.folder.add_point(result, run)
        return result

    def store_failure(self, failure: PointFailure) -> None:
        """Keep why a point gave no result."""
        with self.interrupts.deferred():
            self.folder.add_failure(failure)

    def prediction_failed(self, point: PointConfig, error: Exception, *, hardware: str) -> str:
        """Keep why no prediction stands beside a measurement; returns a line about it."""
        failed = FailedPoint(point=point, error=error)
        failure = PointFailure(
            point_hash=point.hash(),
            source="predicted",
            hardware=hardware,
            point=point,
            reason=failed.reason,
        )
        self.store_failure(failure)
        self.predictions_failed.append(failure)
        if not failed.is_foreseen:  # say where it happened
            traceback.print_exception(error)
        return f"prediction failed: {failed.reason}"

    def describe(self, result: PointResult) -> str:
        """A result in a few words, for the line that progress leaves behind."""
        throughput = number(result.metrics.output_throughput)
        failed = result.metrics.num_failed
        return f"{throughput} tok/s" + (f", {failed} requests failed" if failed else "")

    def say(self, line: str) -> None:
        """A line of progress."""
        self.console.print(line, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Points on one piece of hardware.

    `run(point, workload, sink)` runs one, stores it and returns a line about it. `get_ready` may be
    called once before all points: it does what needs no requests. `prepare` comes
    before it and outside its time (loading a model, warming up). `complete` is asked instead for a
    point that is finished already: it adds what a killed run left out, or returns "". `release`
    comes after each point that was run: it gives back memory that no later point uses. `estimate`
    is for a dry run: what a point will take, from its requests (None: they are not here) and a
    number of simulated steps, by `basis`. `num_runs`: how often each point is run. `is_current`:
    whether a result that is there already is what would come out now; others are made anew.
    """

    points: tuple[PointConfig, ...]
    source: str
    hardware: str
    run: Callable[[PointConfig, Workload, Sink], str]
    get_ready: Callable[[], None] = lambda: None
    prepare: Callable[[PointConfig, Sink], None] = lambda point, sink: None
    complete: Callable[[PointConfig, Workload, Sink], str] = lambda point, workload, sink: ""
    release: Callable[[], None] = lambda: None
    estimate: Callable[[PointConfig, Workload | None, int], PointEstimate] = (
        lambda point, workload, max_steps: PointEstimate()
    )
    basis: str = ""
    num_runs: int = 1
    is_current: Callable[[PointResult], bool] = lambda result: True

    def finished_in(self, folder: ResultFolder, point: PointConfig) -> bool:
        """Whether the point needs no run, given what the folder has."""
        found = folder.finished(point, self.source, self.hardware)
        return found is not None and self.is_current(found)

    def planned(self) -> tuple[PlannedPoint, ...]:
        """What run.json says is to be done."""
        return tuple(
            PlannedPoint(
                point_hash=point.hash(), source=self.source, hardware=self.hardware, config=point
            )
            for point in self.points
        )


@dataclass(kw_only=True)
class _Totals:
    """What became of all campaigns."""

    failed: list[tuple[Campaign, FailedPoint]] = field(default_factory=list)
    predictions_failed: list[PointFailure] = field(default_factory=list)
    interrupted: bool = False


def run_campaigns(
    campaigns: Sequence[Campaign],
    *,
    command: str,
    flags: PointFlags,
    workloads: WorkloadCache,
    machine: Mapping[str, str] | None = None,
    notices: Sequence[str] = (),
    show: Callable[[ResultFolder], None] | None = None,
    given_dir: Path | None = None,
) -> int:
    """Run all points of all campaigns, keep and show the results; returns the exit code.

    `notices`: lines to print once no usage error can come any more. `show`: what to show of the
    folder in the place of `show_results`. `given_dir`: the --output-dir to go on with, where the
    results' own folder lies within it. Data that cannot be had is a usage error before anything
    runs. What is in the folder already (--resume) is not run again. Ctrl-C and SIGTERM raise
    Interrupted, with everything written.
    """
    goodput = GoodputThresholds.parse([i for item in flags.goodput or [] for i in item.split()])
    for campaign in campaigns:
        for point in campaign.points:
            check_replay(point, workloads.of(point))
    manifest = new_manifest(
        tuple(planned for campaign in campaigns for planned in campaign.planned()),
        command=command,
        seed=flags.seed,
        machine=machine,
        metadata=key_values("--metadata", flags.metadata),
    )
    if flags.resume and flags.output_dir is None:
        raise UsageError("--resume", "no --output-dir", "--resume with --output-dir FOLDER")
    path = flags.output_dir or new_folder(command.split()[0])
    totals = _Totals()
    messages = make_console(sys.stderr, quiet=flags.quiet)
    progress = SweepProgress(messages, sum(len(campaign.points) for campaign in campaigns))
    with ResultFolder.create(path, manifest, resume=flags.resume) as folder:

        def last_words() -> str:
            progress.abandon()
            return _how_to_go_on(folder, campaigns, given_dir or path)

        with Interrupts(last_words) as interrupts:
            sink = Sink(
                folder=folder,
                goodput=goodput,
                progress=progress,
                console=messages,
                interrupts=interrupts,
                predictions_failed=totals.predictions_failed,
            )
            others = folder.others_than(p.hash() for c in campaigns for p in c.points)
            kept = _kept_with_fewer_runs(folder, campaigns)
            for line in (*notices, others, *kept, *_made_anew(folder, campaigns)):
                if line:
                    sink.say(line)
            try:
                with progress:
                    _run_all(campaigns, workloads, sink, totals)
                if show is None:
                    show_results(folder, quiet=flags.quiet, perfetto=flags.perfetto)
                else:
                    show(folder)
            except KeyboardInterrupt:  # between two points, or while the results were shown
                totals.interrupted = True
            if totals.interrupted:
                raise Interrupted(_how_to_go_on(folder, campaigns, given_dir or path))
        return _exit_code(folder.results, totals)


def _kept_with_fewer_runs(folder: ResultFolder, campaigns: Sequence[Campaign]) -> list[str]:
    """In one line, which results of the folder come from fewer runs than are asked for."""
    kept: dict[int, list[str]] = {}
    asked = 0
    for campaign in campaigns:
        for point in campaign.points:
            found = folder.finished(point, campaign.source, campaign.hardware)
            if found is not None and len(found.all_runs) < campaign.num_runs:
                asked = campaign.num_runs
                name = f"{point.decode.policy} batch {point.scheduler.batch_size} ({point.hash()})"
                kept.setdefault(len(found.all_runs), []).append(name)
    if not kept:
        return []
    parts = [
        f"kept with {count} run{'s' if count > 1 else ''}: {_few(names, where='')}"
        for count, names in sorted(kept.items())
    ]
    file = folder.path / POINTS_FOLDER / "HASH*"
    return [f"{'; '.join(parts)}; delete {file} or use another --output-dir to measure {asked}"]


def _made_anew(folder: ResultFolder, campaigns: Sequence[Campaign]) -> list[str]:
    """In one line a campaign, how many of the folder's results rest on something else than now."""
    lines = []
    for campaign in campaigns:
        here = [folder.finished(p, campaign.source, campaign.hardware) for p in campaign.points]
        found = [result for result in here if result is not None]
        old = [result for result in found if not campaign.is_current(result)]
        if old:
            before = _few(tuple(dict.fromkeys(r.settings.get("device", "") for r in old)), where="")
            lines.append(
                f"{len(old)} of {len(found)} points on {campaign.hardware} were {campaign.source} "
                f"from other costs ({before}); {campaign.source} anew: {campaign.basis}"
            )
    return lines


def _run_all(
    campaigns: Sequence[Campaign], workloads: WorkloadCache, sink: Sink, totals: _Totals
) -> None:
    for campaign in campaigns:
        result = _run_campaign(campaign, workloads, sink)
        totals.failed += [(campaign, failed) for failed in result.failed]
        totals.interrupted = result.interrupted
        if result.interrupted:
            return


def _run_campaign(campaign: Campaign, workloads: WorkloadCache, sink: Sink) -> SweepResult:
    def run(index: int, point: PointConfig) -> None:
        workload = workloads.of(point)
        try:
            campaign.prepare(point, sink)
        finally:  # a point that fails here has a line of its own, too
            sink.progress.begin_point(_label(campaign, point), len(workload.requests))
        sink.progress.end_point(campaign.run(point, workload, sink))

    def is_finished(point: PointConfig) -> bool:
        done = campaign.finished_in(sink.folder, point)
        if done:
            sink.progress.begin_point(_label(campaign, point), 0)
            added = campaign.complete(point, workloads.of(point), sink)
            sink.progress.end_point(f"finished before, {added or 'skipped'}")
        return done

    def on_failed(failed: FailedPoint) -> None:
        sink.store_failure(
            PointFailure(
                point_hash=failed.point.hash(),
                source=campaign.source,
                hardware=campaign.hardware,
                point=failed.point,
                reason=failed.reason,
            )
        )
        sink.progress.end_point(f"failed: {failed.reason}")
        if not failed.is_foreseen:  # say where it happened
            traceback.print_exception(failed.error)

    return run_sweep(
        campaign.points,
        run=run,
        is_finished=is_finished,
        on_failed=on_failed,
        release=campaign.release,
    )


def _label(campaign: Campaign, point: PointConfig) -> str:
    decode = point.decode
    return (
        f"{campaign.source} {decode.policy}, batch {point.scheduler.batch_size}, "
        f"B {decode.block_length}, alpha {decode.alpha:g}, {point.engine.model}, "
        f"{point.workload.dataset} on {campaign.hardware}"
    )


def show_results(folder: ResultFolder, *, quiet: bool, perfetto: Path | None) -> None:
    """The table of results, then `show_end`."""
    make_console(quiet=quiet).print(results_table(folder.results))
    show_end(folder, quiet=quiet, perfetto=perfetto)


def show_end(folder: ResultFolder, *, quiet: bool, perfetto: Path | None) -> None:
    """What failed and where everything lies, traces included, which are written now."""
    console = make_console(quiet=quiet)
    for table in (failures_table(folder.results), failed_points_table(folder.failures)):
        if table is not None:
            console.print(table)
    console.print(f"results: {folder.path}", soft_wrap=True)
    if perfetto is not None:
        for file in write_traces([(folder.path, result) for result in folder.results], perfetto):
            console.print(f"trace: {file}", soft_wrap=True)


def _how_to_go_on(folder: ResultFolder, campaigns: Sequence[Campaign], path: Path) -> str:
    """What is written, and how the rest is run with --output-dir `path`."""
    planned = [(c, point) for c in campaigns for point in c.points]
    done = sum(campaign.finished_in(folder, point) for campaign, point in planned)
    return (
        f"{done} of {len(planned)} points are finished and written; to go on, repeat the command "
        f"with --resume --output-dir {shlex.quote(str(path))}"
    )


def _exit_code(results: Sequence[PointResult], totals: _Totals) -> int:
    """0, or 1 with what failed on stderr."""
    problems = [
        f"point {failed.point.hash()} ({_label(campaign, failed.point)}): {failed.reason}"
        for campaign, failed in totals.failed
    ]
    problems += [
        f"point {failure.point_hash} (predicted {failure.point.decode.policy}, batch "
        f"{failure.point.scheduler.batch_size}, on {failure.hardware}): {failure.reason}"
        for failure in totals.predictions_failed
    ]
    problems += [
        f"point {result.point_hash} ({result.source} {result.point.decode.policy}, batch "
        f"{result.point.scheduler.batch_size}): {result.metrics.num_failed} of "
        f"{result.metrics.num_requests} requests failed: {_few(result.metrics.failed_request_ids)}"
        f"{_reasons(result)}"
        for result in results
        if result.metrics.num_failed
    ]
    for problem in problems:
        print(f"focus-bench: failed: {problem}", file=sys.stderr)
    return SOME_FAILED if problems else 0


def _reasons(result: PointResult, most: int = 3) -> str:
    """The most frequent reasons of failed requests, each behind a semicolon."""
    reasons = list(result.metrics.failed_by_reason.items())
    rest = f"; {len(reasons) - most} other reasons" if len(reasons) > most else ""
    return "".join(f"; {count} x {reason}" for reason, count in reasons[:most]) + rest


def _few(items: Sequence[object], most: int = 10, *, where: str = " (requests.csv)") -> str:
    """The first items, and how many more there are (`where`)."""
    rest = f" and {len(items) - most} more{where}" if len(items) > most else ""
    return ", ".join(str(item) for item in items[:most]) + rest


def new_folder(command: str) -> Path:
    """./results/TIMESTAMP-COMMAND, with a number behind it where that exists."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{command}"
    path = Path("results") / stem
    copy = 2
    while path.exists():
        path = Path("results") / f"{stem}-{copy}"
        copy += 1
    return path
