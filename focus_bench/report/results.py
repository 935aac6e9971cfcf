"""One finished point: its configuration, where its figures came from, and what they rest on.

Results are what tables, comparisons and exports read; they know no file and no rendering.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from focus_bench.core.config import PointConfig
from focus_bench.core.errors import check_choice
from focus_bench.core.hardware import sheet_of_device
from focus_bench.core.labels import outside_labels, point_labels, throttling_labels
from focus_bench.core.records import SOURCES, RunRecord
from focus_bench.core.workload import Provenance
from focus_bench.report.goodput import GoodputThresholds
from focus_bench.report.metrics import PointMetrics, compute_metrics
from focus_bench.report.work import work_of

FOR = "for "  # a prediction's settings say under it what device it is for


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """A point's figures from one source on one piece of hardware.

    `hardware`: the device that measured, or the profile that a prediction is for (a sweep over
    profiles has one result for each). `notes`: what was not measured, from the run.
    `settings`: device and versions. `runs`: the figures of every run, in order, where a point was
    run more than once; `metrics` are then those of the run of median throughput.
    """

    point: PointConfig
    source: str
    metrics: PointMetrics
    provenance: Provenance
    hardware: str = ""
    notes: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[PointMetrics, ...] = ()

    def __post_init__(self) -> None:
        check_choice("source", self.source, SOURCES)

    @property
    def point_hash(self) -> str:
        """Hash of the configuration."""
        return self.point.hash()

    @property
    def key(self) -> tuple[str, str, str]:
        """What a result folder holds at most once: (point hash, source, hardware)."""
        return (self.point_hash, self.source, self.hardware)

    @property
    def all_runs(self) -> tuple[PointMetrics, ...]:
        """The figures of every run, also of a single one."""
        return self.runs or (self.metrics,)

    @property
    def repeats(self) -> tuple[float, ...]:
        """Output throughput of every run (tokens/s), where there was more than one."""
        return tuple(m.output_throughput for m in self.runs if m.output_throughput is not None)

    @property
    def is_outside(self) -> bool:
        """Whether an outside engine was measured; predictions beside it are this project's."""
        return self.point.backend.is_outside and self.source == "measured"

    @property
    def labels(self) -> tuple[str, ...]:
        """What stands for something else or held the GPU back, in words for tables and CSV rows."""
        dummy = self.point.engine.load_format == "dummy" and self.source == "measured"
        sampled = [m.environment for m in self.all_runs if m.environment is not None]
        reasons = dict.fromkeys(reason for e in sampled for reason in e.throttle_reasons)
        if self.is_outside:
            labels = outside_labels(self.point, self.provenance)
        else:
            labels = point_labels(self.point, self.provenance, dummy_weights=dummy)
        return (*labels, *throttling_labels(tuple(reasons)))

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Labels, then the data's notes, then the run's, each once."""
        return tuple(dict.fromkeys((*self.labels, *self.provenance.notes, *self.notes)))


def result_of(
    point: PointConfig,
    run: RunRecord,
    *,
    provenance: Provenance,
    hardware: str = "",
    goodput: GoodputThresholds | None = None,
    runs: Sequence[RunRecord] = (),
) -> PointResult:
    """The result of a run; `runs`: all of them, if there was more than one."""
    sheet = sheet_of_device(hardware) or sheet_of_device(run.settings.get(f"{FOR}device", ""))
    metrics, *others = (
        compute_metrics(record, goodput=goodput, work=work_of(point, record, sheet))
        for record in (run, *runs)
    )
    return PointResult(
        point=point,
        source=run.source,
        metrics=metrics,
        provenance=provenance,
        hardware=hardware,
        notes=run.notes,
        settings=dict(run.settings),
        runs=tuple(others),
    )
