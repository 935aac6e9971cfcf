"""Tables of how good predictions are: errors beside noise, coverage of intervals, and causes.

Takes comparisons and attributions; computes no error itself.
"""

import dataclasses
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from focus_bench.core.intervals import COVERS, LEVEL
from focus_bench.report import formats
from focus_bench.report.attribution import Attribution
from focus_bench.report.compare import (
    E2E,
    E2E_P99,
    JUDGED,
    THROUGHPUT,
    Comparison,
    Figure,
    by_policy,
    coverage,
)
from focus_bench.report.error_columns import SEEDS_LINE, ErrorRow, error_columns
from focus_bench.report.layout import FittedTable, column
from focus_bench.report.seeds import SeedGroup, by_point, has_several_seeds
from focus_bench.report.tables import name_columns

Causes = Sequence[tuple[Comparison, Attribution]]


def errors_by_policy_table(pairs: Sequence[Comparison]) -> RenderableType:
    """MAPE, worst error and the measurements' own noise of every figure, policy by policy."""
    both = [p for p in pairs if p.measured is not None and p.predicted is not None]
    if not both:
        return Text("no point was both measured and predicted")
    groups = by_policy(both)
    if len(groups) > 1:
        groups = {**groups, "all": tuple(both)}
    lines = [
        (policy, row)
        for policy, own in groups.items()
        for figure in JUDGED
        if (row := ErrorRow(pairs=own, figure=figure)).summary.count
    ]
    several = has_several_seeds(by_point(both))
    return Group(
        Text("absolute errors in percent; noise: half of the 95 % interval of the measured mean"),
        *((Text(SEEDS_LINE),) if several else ()),
        Text(_basis(both)),
        FittedTable(
            columns=(
                column("policy", lines, lambda line: line[0], is_name=True),
                column("figure", lines, lambda line: line[1].figure.name, is_name=True),
                *error_columns([row for _, row in lines]),
                column("noise", lines, lambda line: formats.fixed(_noise(line[1]), 1)),
                column(
                    f"in {100 * LEVEL:.0f} %\ninterval",
                    lines,
                    lambda line: _covered(coverage(line[1].pairs, [line[1].figure])),
                ),
            )
        ),
    )


def seeds_table(pairs: Sequence[Comparison]) -> RenderableType | None:
    """One line a point, its seeds taken together; None where none has several."""
    groups = by_point(pairs)
    if not has_several_seeds(groups):
        return None
    # The names of a point without its seed, and of the devices, which all its pairs share.
    named = [dataclasses.replace(group.pairs[0], point=group.point) for group in groups]
    columns = name_columns(named, ("",) * len(named))
    columns.append(column("seeds", groups, lambda group: str(len(group.pairs))))
    columns.append(column("runs", groups, lambda group: str(group.num_runs)))
    for figure in (THROUGHPUT, E2E, E2E_P99):
        columns.append(column(figure.heading, groups, _mean_error(figure)))
        columns.append(column("noise", groups, _noise_over_seeds(figure)))
    return Group(
        Text("points, mean over seeds: error of the prediction in percent; noise: half of the"),
        Text("95 % interval of the measured mean over seeds (of an only seed: over its runs)"),
        FittedTable(columns=tuple(columns)),
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


def _mean_error(figure: Figure) -> Callable[[SeedGroup], str]:
    return lambda group: formats.signed_percent(group.error_percent(figure))


def _noise_over_seeds(figure: Figure) -> Callable[[SeedGroup], str]:
    return lambda group: formats.fixed(group.noise_percent(figure), 1)


def _noise(row: ErrorRow) -> float | None:
    """The mean of the points' noise, where they ran more than once or with several seeds."""
    groups = by_point(row.pairs)
    known = [n for group in groups if (n := group.noise_percent(row.figure)) is not None]
    return sum(known) / len(known) if known else None


def _basis(pairs: Sequence[Comparison]) -> str:
    """Which seeds predictions are of, and what their intervals allow for."""
    predicted = [pair.predicted for pair in pairs if pair.predicted is not None]
    own = all(p.point.seed == pair.point.seed for p, pair in zip(predicted, pairs, strict=True))
    seeds = ", ".join(str(seed) for seed in sorted({p.point.seed for p in predicted}))
    said = "each run's own seed" if own else f"seed {seeds}"
    covers = dict.fromkeys(p.settings[COVERS] for p in predicted if COVERS in p.settings)
    intervals = f"; intervals allow for {' or '.join(covers)}" if covers else ""
    return f"predicted with {said}{intervals}"


def _covered(counts: tuple[int, int]) -> str:
    inside, count = counts
    return f"{inside} of {count}" if count else formats.UNDEFINED
