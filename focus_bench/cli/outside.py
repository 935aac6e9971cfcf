"""focus-bench run --backend: measures the points of a sweep on an outside engine.

Knows no particular engine.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from focus_bench.cli.sweep_options import RunFlags

if TYPE_CHECKING:
    from focus_bench.api.prediction import Target
    from focus_bench.backends.backend import Backend
    from focus_bench.cli.sweeps import Sink
    from focus_bench.core.config import PointConfig
    from focus_bench.core.workload import Workload


def measure_outside(flags: RunFlags) -> int:
    """Run the points on the engine of --backend; predict only with --profile."""
    from focus_bench.api.backends import open_backend
    from focus_bench.api.prediction import target_of_file
    from focus_bench.api.profiles import naming_flag
    from focus_bench.bench.workload_cache import WorkloadCache
    from focus_bench.cli.backend_options import backend_of, outside_flags
    from focus_bench.cli.machine import gpu_facts
    from focus_bench.cli.plan import show_plan
    from focus_bench.cli.points import points_from_flags
    from focus_bench.cli.sweeps import Campaign, run_campaigns

    backend = backend_of(flags)
    flags = outside_flags(flags)
    points = points_from_flags(flags, backend=backend, simulated=flags.profile is not None)
    target = None
    if flags.predict and flags.profile is not None:
        with naming_flag("--profile"):
            target = target_of_file(flags.profile)
    workloads = WorkloadCache()
    for point in points:
        workloads.of(point)  # data that cannot be had are told before the engine is asked
    machine = {} if backend.kind == "openai" else gpu_facts()
    engine = open_backend(
        points[0],
        workloads.tokenizer_of(points[0]),
        device=machine.get("gpu name", "an unknown device"),
    )
    try:
        for point in points:
            engine.check(point)
        measurement = _Measurement(flags=flags, engine=engine, target=target)
        campaign = Campaign(
            points=points,
            source="measured",
            hardware=engine.hardware,
            run=measurement.run,
            prepare=measurement.prepare,
            complete=measurement.complete,
            num_runs=flags.num_runs,
        )
        if flags.dry_run:
            return show_plan([campaign], flags, workloads)
        engine.connect()
        return run_campaigns(
            [campaign],
            command="run",
            flags=flags,
            workloads=workloads,
            machine={"device": engine.hardware, **machine},
        )
    finally:
        engine.close()


@dataclass(kw_only=True)
class _Measurement:
    """Runs points on one engine. `target`: what predictions are for; None: there are none."""

    flags: RunFlags
    engine: "Backend"
    target: "Target | None" = None

    def prepare(self, point: "PointConfig", sink: "Sink") -> None:
        """Warm up."""
        for _ in range(self.flags.num_warmups):
            self.engine.warm_up(point)

    def run(self, point: "PointConfig", workload: "Workload", sink: "Sink") -> str:
        """Measure --num-runs times, store, predict, store; returns a line about it."""
        from focus_bench.cli.run import middle_run

        runs = [
            self.engine.run(point, workload, on_progress=sink.progress.update)
            for _ in range(self.flags.num_runs)
        ]
        result = sink.store(
            point,
            workload,
            middle_run(runs),
            hardware=self.engine.hardware,
            runs=runs if len(runs) > 1 else (),
        )
        line = sink.describe(result)
        predicted = self._predict(point, workload, sink)
        return f"{line}; {predicted}" if predicted else line

    def complete(self, point: "PointConfig", workload: "Workload", sink: "Sink") -> str:
        """Predict a point that was measured before a kill; "" if nothing is missing."""
        key = ("predicted", point.hash())
        present = any((r.source, r.point_hash) == key for r in sink.folder.results)
        return "" if present else self._predict(point, workload, sink)

    def _predict(self, point: "PointConfig", workload: "Workload", sink: "Sink") -> str:
        """Predict the point for the profile that was given; "" where none was."""
        from focus_bench.api.prediction import with_fitted_dynamics
        from focus_bench.core.errors import UsageError

        if self.target is None:
            return ""
        try:
            record = self.target.predict(with_fitted_dynamics(point), workload)
        except UsageError as error:
            return f"not predicted: {error}"
        result = sink.store(point, workload, record, hardware=self.target.name)
        return f"predicted {sink.describe(result)}"
