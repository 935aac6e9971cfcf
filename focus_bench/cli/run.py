"""focus-bench run: measures points on this machine, and sets the simulator's prediction beside."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from focus_bench.cli.flags import takes
from focus_bench.cli.sweep_options import RunFlags

if TYPE_CHECKING:
    from focus_bench.api.engine import Engine
    from focus_bench.api.prediction import Target
    from focus_bench.cli.sweeps import Campaign, Sink
    from focus_bench.core.config import PointConfig
    from focus_bench.core.records import RunRecord
    from focus_bench.core.workload import Workload
    from focus_bench.report.estimates import PointEstimate


@takes(RunFlags)
def command(flags: RunFlags) -> int:
    """Measure policies on this machine, and predict the same points beside."""
    from focus_bench.cli.backend_options import backend_of
    from focus_bench.cli.outside import measure_outside
    from focus_bench.cli.paths import check_writable
    from focus_bench.core.errors import check_range

    check_range("--num-runs", flags.num_runs, low=1)
    check_range("--num-warmups", flags.num_warmups, low=0)
    check_writable("--output-dir", flags.output_dir, is_folder=True)
    sources = [flags.output_dir, flags.profile]
    check_writable("--perfetto", flags.perfetto, inputs=sources)
    check_writable("--decode-trace", flags.decode_trace, is_folder=True, inputs=sources)
    if backend_of(flags).is_outside:
        return measure_outside(flags)
    return _measure_engine(flags)


def _measure_engine(flags: RunFlags) -> int:
    from focus_bench.api.prediction import target_of_file
    from focus_bench.api.profiles import CPU, naming_flag
    from focus_bench.bench.workload_cache import WorkloadCache
    from focus_bench.cli.machine import gpu_facts
    from focus_bench.cli.plan import show_plan
    from focus_bench.cli.points import points_from_flags
    from focus_bench.cli.predictions import say_unusable_profiles
    from focus_bench.cli.sweeps import Campaign, run_campaigns
    from focus_bench.engine.device import busy_cores, device_name, resolve_device
    from focus_bench.engine.memory import release_memory
    from focus_bench.engine.runner import check_runnable

    points = points_from_flags(flags, device=flags.device)
    for point in points:
        check_runnable(point)
    measurement = _Measurement(flags=flags)
    if flags.predict and flags.profile is not None:
        with naming_flag("--profile"):
            measurement.target = target_of_file(flags.profile)
    elif flags.predict:
        say_unusable_profiles(quiet=flags.quiet)
    hardware = device_name(resolve_device(flags.device, cuda_graphs=flags.cuda_graphs))
    campaign = Campaign(
        points=points,
        source="measured",
        hardware=hardware,
        run=measurement.run,
        prepare=measurement.prepare,
        complete=measurement.complete,
        num_runs=flags.num_runs,
        release=release_memory,
    )
    workloads = WorkloadCache()
    if flags.dry_run:
        return show_plan([measurement.with_estimates(campaign)], flags, workloads)
    notices = []
    if flags.device == "auto" and hardware == CPU:
        notices.append("no GPU that PyTorch sees: on the CPU")
    load = busy_cores(hardware)
    if load:
        notices.append(
            f"other programs are using the cores ({load}): measurements are slower and predictions "
            "too fast"
        )
    return run_campaigns(
        [campaign],
        command="run",
        flags=flags,
        workloads=workloads,
        machine={"device": hardware, **gpu_facts()},
        notices=notices,
    )


@dataclass(kw_only=True)
class _Measurement:
    """Runs points on one engine at a time, which stays loaded while points use it.

    `target`: what predictions are for; None: the profile of each engine, calibrated when missing.
    """

    flags: RunFlags
    target: "Target | None" = None
    _engine: "Engine | None" = field(default=None, init=False)
    _engine_target: "Target | None" = field(default=None, init=False)

    def prepare(self, point: "PointConfig", sink: "Sink") -> None:
        """Load and calibrate the point's engine unless it is there, and warm up."""
        engine = self._engine_of(point, sink)
        for _ in range(self.flags.num_warmups):
            engine.warm_up(point)

    def run(self, point: "PointConfig", workload: "Workload", sink: "Sink") -> str:
        """Measure --num-runs times, store, predict, store; returns a line about it."""
        engine = self._engine_of(point, sink)
        trace_file = self._trace_file(point, sink)
        runs = [
            engine.run(point, workload, on_progress=sink.on_progress, trace_file=trace_file)
            for _ in range(self.flags.num_runs)
        ]
        result = sink.store(
            point,
            workload,
            middle_run(runs),
            hardware=engine.hardware,
            runs=runs if len(runs) > 1 else (),
        )
        line = sink.describe(result)
        return f"{line}; {self._predict(point, workload, sink)}" if self.flags.predict else line

    def complete(self, point: "PointConfig", workload: "Workload", sink: "Sink") -> str:
        """Predict a point that was measured before a kill; "" if nothing is missing."""
        key = ("predicted", point.hash())
        present = any((r.source, r.point_hash) == key for r in sink.folder.results)
        if present or not self.flags.predict:
            return ""
        self._engine_of(point, sink)
        return self._predict(point, workload, sink)

    def with_estimates(self, campaign: "Campaign") -> "Campaign":
        """The campaign for a dry run: what its points will take on this device."""
        from focus_bench.api.estimates import estimate_point, target_of_device
        from focus_bench.engine.device import resolve_device, use_cpu_threads
        from focus_bench.engine.memory import memory_budget_bytes

        threads = use_cpu_threads(self.flags.threads)  # those that the run would have
        targets = {
            point.engine: self.target
            or target_of_device(
                campaign.hardware, dataclasses.replace(point.engine, threads=threads)
            )
            for point in campaign.points
        }
        device = resolve_device(self.flags.device)
        budget = memory_budget_bytes(device, self.flags.gpu_memory_utilization)

        def estimate(
            point: "PointConfig", workload: "Workload | None", max_steps: int
        ) -> "PointEstimate":
            return estimate_point(
                point,
                workload,
                targets[point.engine],
                max_steps=max_steps,
                budget_bytes=budget,
                num_runs=self.flags.num_runs,
            )

        labels = dict.fromkeys(target.label for target in targets.values() if target is not None)
        return dataclasses.replace(campaign, estimate=estimate, basis="; ".join(labels))

    def _predict(self, point: "PointConfig", workload: "Workload", sink: "Sink") -> str:
        """Predict the point and store it; the measurement stands also where that is impossible."""
        from focus_bench.api.prediction import needs_trace, replaying
        from focus_bench.core.errors import UsageError

        target = self.target or self._engine_target
        assert target is not None
        trace_file = self._trace_file(point, sink)
        simulated = point
        if needs_trace(point) and trace_file is not None:
            simulated = replaying(point, trace_file)
        try:
            record = target.predict(simulated, workload)
        except UsageError as error:
            return f"not predicted: {error}"
        except Exception as error:  # nor is the measurement what failed
            return sink.prediction_failed(point, error, hardware=target.name)
        result = sink.store(point, workload, record, hardware=target.name)
        return f"predicted {sink.describe(result)}"

    def _engine_of(self, point: "PointConfig", sink: "Sink") -> "Engine":
        """The engine of the point's model, calibrated if predictions need it."""
        from focus_bench.api.engine import Engine
        from focus_bench.api.operations import target_of_engine
        from focus_bench.api.prediction import target_of_profile
        from focus_bench.api.profiles import (
            CALIBRATION_S,
            cache_problem,
            calibrate,
            profile_of_engine,
        )

        if self._engine is not None and self._engine.config == point.engine:
            return self._engine
        self._engine = None  # frees the last model's memory before the next one is loaded
        engine = Engine.for_point(point)
        if self.flags.predict and self.target is None:
            self._engine_target = target_of_engine(engine)
            profile = profile_of_engine(engine)
            if profile is None and self._engine_target is None:
                sink.say(
                    f"no cost profile of {engine.spec.name} on {engine.hardware} yet: "
                    f"calibrating for about {CALIBRATION_S:g} s"
                )
                profile = calibrate(engine)
                problem = cache_problem()
                if problem:
                    sink.say(f"{problem} beyond this command")
            if self._engine_target is None and profile is not None:
                self._engine_target = target_of_profile(profile)
        self._engine = engine
        return engine

    def _trace_file(self, point: "PointConfig", sink: "Sink") -> Path | None:
        from focus_bench.api.prediction import needs_trace, trace_file_of

        if self.flags.decode_trace is not None:
            return self.flags.decode_trace / f"{point.hash()}.npz"
        if self.flags.predict and needs_trace(point):
            return trace_file_of(sink.folder.path, point)
        return None


def middle_run(runs: "list[RunRecord]") -> "RunRecord":
    """The run of median throughput (of two the slower)."""
    from focus_bench.report.metrics import compute_metrics

    throughputs = [compute_metrics(run).output_throughput or 0.0 for run in runs]
    order = sorted(range(len(runs)), key=throughputs.__getitem__)
    return runs[order[(len(runs) - 1) // 2]]
