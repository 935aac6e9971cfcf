"""One finished point: its configuration, where its figures came from, and what they rest on.

Results are what tables, comparisons and exports read; they know no file and no rendering.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from focus_bench.core.config import PointConfig
from focus_bench.core.errors import check_choice
from focus_bench.core.labels import point_labels
from focus_bench.core.records import SOURCES, RunRecord
from focus_bench.core.workload import Provenance
from focus_bench.report.goodput import GoodputThresholds
from focus_bench.report.metrics import PointMetrics, Work, compute_metrics


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """A point's figures from one source on one piece of hardware.

    `hardware`: the device that measured, or the profile that a prediction is for (a sweep over
    profiles has one result for each). `notes`: what was not measured, from the run.
    `settings`: device and versions. `repeats`: output throughput of every run where a point was
    run more than once (tokens/s); `metrics` then belong to one of these runs.
    """

    point: PointConfig
    source: str
    metrics: PointMetrics
    provenance: Provenance
    hardware: str = ""
    notes: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    repeats: tuple[float, ...] = ()

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
    def labels(self) -> tuple[str, ...]:
        """What in this result stands for something else, in words for tables and CSV rows."""
        dummy = self.point.engine.load_format == "dummy" and self.source == "measured"
        return point_labels(self.point, self.provenance, dummy_weights=dummy)

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
    work: Work | None = None,
    repeats: tuple[float, ...] = (),
) -> PointResult:
    """The result of a run."""
    return PointResult(
        point=point,
        source=run.source,
        metrics=compute_metrics(run, goodput=goodput, work=work),
        provenance=provenance,
        hardware=hardware,
        notes=run.notes,
        settings=dict(run.settings),
        repeats=repeats,
    )
