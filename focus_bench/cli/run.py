"""focus-bench run: measures points on this machine, and sets the simulator's prediction beside."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from focus_bench.cli.flags import takes
from focus_bench.cli.options import RunFlags

if TYPE_CHECKING:
    from focus_bench.api import Engine
    from focus_bench.cli.sweeps import Sink
    from focus_bench.core.config import PointConfig
    from focus_bench.core.records import RunRecord
    from focus_bench.core.workload import Workload


@takes(RunFlags)
def command(flags: RunFlags) -> int:
    """Measure policies on this machine, and predict the same points beside."""
    from focus_bench.bench.workload_cache import WorkloadCache
    from focus_bench.cli.machine import gpu_facts
    from focus_bench.cli.points import points_from_flags
    from focus_bench.cli.sweeps import Campaign, run_campaigns, show_plan
    from focus_bench.core.errors import check_range
    from focus_bench.engine.device import device_name, resolve_device
    from focus_bench.engine.runner import check_runnable

    check_range("--num-runs", flags.num_runs, low=1)
    check_range("--num-warmups", flags.num_warmups, low=0)
    points = points_from_flags(flags, device=flags.device)
    for point in points:
        check_runnable(point)
    hardware = device_name(resolve_device(flags.device))
    campaign = Campaign(
        points=points, source="measured", hardware=hardware, run=_Measurement(flags=flags).run
    )
    if flags.dry_run:
        return show_plan([campaign], flags)
    return run_campaigns(
        [campaign],
        command="run",
        flags=flags,
        workloads=WorkloadCache(),
        machine={"device": hardware, **gpu_facts()},
    )


@dataclass(kw_only=True)
class _Measurement:
    """Runs points on one engine at a time: the model stays loaded while points use it."""

    flags: RunFlags
    _engine: "Engine | None" = field(default=None, init=False)

    def run(self, point: "PointConfig", workload: "Workload", sink: "Sink") -> str:
        """Warm up, measure --num-runs times, store, predict; returns a line about it."""
        engine = self._engine_of(point)
        for _ in range(self.flags.num_warmups):
            engine.warm_up(point)
        trace_file = self._trace_file(point, sink)
        runs = [
            engine.run(point, workload, on_progress=sink.on_progress, trace_file=trace_file)
            for _ in range(self.flags.num_runs)
        ]
        record, throughputs = _middle(runs)
        result = sink.store(
            point,
            workload,
            record,
            hardware=engine.hardware,
            repeats=throughputs if len(runs) > 1 else (),
        )
        return sink.describe(result)

    def _engine_of(self, point: "PointConfig") -> "Engine":
        from focus_bench.api import Engine

        if self._engine is None or self._engine.config != point.engine:
            self._engine = None  # frees the last model's memory before the next one is loaded
            self._engine = Engine.for_point(point)
        return self._engine

    def _trace_file(self, point: "PointConfig", sink: "Sink") -> Path | None:
        if self.flags.decode_trace is not None:
            return self.flags.decode_trace / f"{point.hash()}.npz"
        return None


def _middle(runs: "list[RunRecord]") -> "tuple[RunRecord, tuple[float, ...]]":
    """The run of median throughput (of two the slower), and the throughputs of all."""
    from focus_bench.report.metrics import compute_metrics

    throughputs = [compute_metrics(run).output_throughput or 0.0 for run in runs]
    order = sorted(range(len(runs)), key=throughputs.__getitem__)
    return runs[order[(len(runs) - 1) // 2]], tuple(throughputs)
