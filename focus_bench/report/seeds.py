"""Comparisons of one point at several seeds, taken together. Renders nothing.

A seed's error is that of its run of median throughput, as everywhere; noise is between seeds.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from focus_bench.core.config import PointConfig
from focus_bench.report.compare import (
    Comparison,
    ErrorSummary,
    Figure,
    error_percent,
    noise_percent,
    spread_of,
    summary_of,
    without_seed,
)
from focus_bench.report.spread import Spread


@dataclass(frozen=True, kw_only=True)
class SeedGroup:
    """A point without its seed: one comparison for each measured seed, at least one."""

    pairs: tuple[Comparison, ...]

    @property
    def point(self) -> PointConfig:
        """The point, with seed 0."""
        return without_seed(self.pairs[0].point)

    @property
    def num_runs(self) -> int:
        """Measured runs of all seeds."""
        return sum(len(p.measured.all_runs) for p in self.pairs if p.measured is not None)

    def error_percent(self, figure: Figure) -> float | None:
        """Mean over the seeds of the error in percent, with its sign; None if it has none."""
        known = [e for pair in self.pairs if (e := error_percent(pair, figure)) is not None]
        return statistics.fmean(known) if known else None

    def noise_percent(self, figure: Figure) -> float | None:
        """Half of the 95 % t-interval of the measured mean over seeds (each the mean of its runs),
        in percent of the mean; over the runs of an only seed; None for a single value.
        """
        if len(self.pairs) == 1:
            return noise_percent(self.pairs[0], figure)
        means = (spread_of(p.measured, figure).mean for p in self.pairs if p.measured is not None)
        return Spread.of([mean for mean in means if mean is not None]).half_width_percent


def by_point(pairs: Iterable[Comparison]) -> tuple[SeedGroup, ...]:
    """Pairs with both sides by point without seed and by both devices, in order of the first."""
    groups: dict[tuple[PointConfig, str, str], list[Comparison]] = {}
    for pair in pairs:
        if pair.measured is None or pair.predicted is None:
            continue
        key = (without_seed(pair.point), pair.measured.hardware, pair.predicted.hardware)
        groups.setdefault(key, []).append(pair)
    return tuple(SeedGroup(pairs=tuple(group)) for group in groups.values())


def has_several_seeds(groups: Sequence[SeedGroup]) -> bool:
    """Whether any point was measured with more than one seed."""
    return any(len(group.pairs) > 1 for group in groups)


def summary_over_points(groups: Iterable[SeedGroup], figure: Figure) -> ErrorSummary:
    """Mean and worst absolute error over points, each with the mean of its seeds' errors."""
    return summary_of(group.error_percent(figure) for group in groups)
