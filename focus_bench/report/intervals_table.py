"""The table of what predictions rest on and where runs would lie. Knows no cost model."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.core.intervals import DOMAIN, LEVEL, Interval, intervals_in
from focus_bench.report import formats
from focus_bench.report.layout import FittedTable, column
from focus_bench.report.results import PointResult


def intervals_table(results: Sequence[PointResult]) -> RenderableType | None:
    """One row a prediction that has intervals; None if none has."""
    rows = [(result, intervals_in(result.settings)) for result in results]
    rows = [(result, intervals) for result, intervals in rows if intervals]
    if not rows:
        return None

    def throughput(interval: Interval | None) -> str:
        if interval is None:
            return formats.UNDEFINED
        return f"{formats.number(interval.low)} - {formats.number(interval.high)}"

    def seconds(interval: Interval | None) -> str:
        if interval is None:
            return formats.UNDEFINED
        return f"{formats.seconds(interval.low)} - {formats.seconds(interval.high)}"

    return Group(
        Text(f"where {100 * LEVEL:.0f} % of runs would lie (bootstrap over calibration and seeds)"),
        FittedTable(
            columns=(
                column("hardware", rows, lambda r: r[0].hardware, is_name=True),
                column("policy", rows, lambda r: r[0].point.decode.policy, is_name=True),
                column("batch", rows, lambda r: str(r[0].point.scheduler.batch_size), is_name=True),
                column("B", rows, lambda r: str(r[0].point.decode.block_length), is_name=True),
                column("alpha", rows, lambda r: f"{r[0].point.decode.alpha:g}", is_name=True),
                column("costs", rows, lambda r: r[0].settings.get(DOMAIN, "")),
                column("tok/s", rows, lambda r: throughput(r[1].get("output_throughput"))),
                column("TTFT p50", rows, lambda r: seconds(r[1].get("ttft_p50_s"))),
                column("E2E p50", rows, lambda r: seconds(r[1].get("e2e_p50_s"))),
                column("E2E p99", rows, lambda r: seconds(r[1].get("e2e_p99_s"))),
            )
        ),
    )
