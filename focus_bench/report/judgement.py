"""Tables of how good predictions are: errors beside noise, coverage of intervals, and causes.

Takes comparisons and attributions; computes no error itself.
"""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.core.intervals import LEVEL
from focus_bench.report import formats
from focus_bench.report.attribution import Attribution
from focus_bench.report.compare import (
    JUDGED,
    Comparison,
    Figure,
    coverage,
    error_summary,
    noise_percent,
)
from focus_bench.report.layout import FittedTable, column

Causes = Sequence[tuple[Comparison, Attribution]]


def errors_by_policy_table(pairs: Sequence[Comparison]) -> RenderableType:
    """MAPE, worst error and the measurements' own noise of every figure, policy by policy."""
    both = [p for p in pairs if p.measured is not None and p.predicted is not None]
    if not both:
        return Text("no point was both measured and predicted")
    policies = dict.fromkeys(pair.point.decode.policy for pair in both)
    groups: Mapping[str, list[Comparison]] = {
        policy: [p for p in both if p.point.decode.policy == policy] for policy in policies
    }
    if len(groups) > 1:
        groups = {**groups, "all": both}
    rows = [(policy, own, figure) for policy, own in groups.items() for figure in JUDGED]
    summaries = [error_summary(own, figure) for _, own, figure in rows]
    lines = [(row, summary) for row, summary in zip(rows, summaries, strict=True) if summary.count]
    return Group(
        Text("absolute errors in percent; noise: half of the 95 % interval of the measured mean"),
        FittedTable(
            columns=(
                column("policy", lines, lambda line: line[0][0], is_name=True),
                column("figure", lines, lambda line: line[0][2].name, is_name=True),
                column("points", lines, lambda line: str(line[1].count)),
                column("MAPE", lines, lambda line: formats.fixed(line[1].mape, 1)),
                column("worst", lines, lambda line: formats.fixed(line[1].worst, 1)),
                column("noise", lines, lambda line: formats.fixed(_noise(*line[0][1:]), 1)),
                column(
                    f"in {100 * LEVEL:.0f} %\ninterval",
                    lines,
                    lambda line: _covered(coverage(line[0][1], [line[0][2]])),
                ),
            )
        ),
    )


def causes_table(causes: Causes) -> RenderableType | None:
    """What moves each point's predicted throughput, in percent; None without any."""
    if not causes:
        return None

    def percent(factor: float) -> str:
        return formats.signed_percent(100.0 * (factor - 1.0))

    return Group(
        Text("causes of the error of throughput in percent: costs of steps, steps per block, and"),
        Text("scheduling; seconds of the measured steps at predicted costs, and the reverse"),
        FittedTable(
            columns=(
                column("policy", causes, lambda c: c[0].point.decode.policy, is_name=True),
                column(
                    "batch", causes, lambda c: str(c[0].point.scheduler.batch_size), is_name=True
                ),
                column("point", causes, lambda c: c[0].point.hash()[:8], is_name=True),
                column("step\ncost", causes, lambda c: percent(c[1].step_cost)),
                column("steps/\nblock", causes, lambda c: percent(c[1].steps_per_block)),
                column("sched-\nuling", causes, lambda c: percent(c[1].scheduling)),
                column("all", causes, lambda c: percent(c[1].total)),
                column(
                    "meas. steps\nat pred. costs",
                    causes,
                    lambda c: formats.seconds(c[1].measured_steps_s),
                ),
                column(
                    "pred. steps\nat meas. costs",
                    causes,
                    lambda c: formats.seconds(c[1].predicted_steps_s),
                ),
            )
        ),
    )


def _noise(pairs: Sequence[Comparison], figure: Figure) -> float | None:
    """The mean of the points' noise, where they ran more than once."""
    known = [n for pair in pairs if (n := noise_percent(pair, figure)) is not None]
    return sum(known) / len(known) if known else None


def _covered(counts: tuple[int, int]) -> str:
    inside, count = counts
    return f"{inside} of {count}" if count else formats.UNDEFINED
