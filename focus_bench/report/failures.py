"""Points that gave no result, and why: what a result folder keeps of them beside its results.

Knows no exception; whoever ran the point says the reason in words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.core.config import PointConfig

FAILED, FINISHED = "failed", "finished"


@dataclass(frozen=True, kw_only=True)
class PointFailure:
    """A point that failed. `point_hash`, `source` and `hardware` are those of the result that is
    missing; `reason` is one line.
    """

    point_hash: str
    source: str
    hardware: str
    point: PointConfig
    reason: str

    @property
    def key(self) -> tuple[str, str, str]:
        """That of the missing result."""
        return (self.point_hash, self.source, self.hardware)


@dataclass(frozen=True, kw_only=True)
class FailureFile:
    """Content of a file of failed/; `order`: failures are listed as they occurred."""

    schema_version: int
    order: int
    failure: PointFailure


def failed_points_table(failures: Sequence[PointFailure]) -> RenderableType | None:
    """The points that gave no result, with the reason of each; None if there are none."""
    if not failures:
        return None
    lines = [Text("failed points", style="bold red")]
    for failure in failures:
        point = failure.point
        lines.append(
            Text(
                f"{failure.source} {point.decode.policy}, batch {point.scheduler.batch_size}, "
                f"B {point.decode.block_length}, {point.engine.model}, {point.workload.dataset}"
                f" on {failure.hardware}: {failure.reason}"
            )
        )
    return Group(*lines)
