"""Mean, standard deviation and t-interval of a few repeated runs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from focus_bench.report.statistics import CONFIDENCE, t_quantile


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of `count` repeats: mean, sample standard deviation, 95 % t-interval of the mean.

    Fewer than two repeats have neither deviation nor interval; none at all have no mean.
    """

    count: int
    mean: float | None
    std: float | None
    ci95_low: float | None
    ci95_high: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of the values, in their own unit."""
        count = len(values)
        if count < 2:
            mean = values[0] if values else None
            return cls(count=count, mean=mean, std=None, ci95_low=None, ci95_high=None)
        mean, std = statistics.fmean(values), statistics.stdev(values)
        half = t_quantile(0.5 + 0.5 * CONFIDENCE, count - 1) * std / count**0.5
        return cls(count=count, mean=mean, std=std, ci95_low=mean - half, ci95_high=mean + half)

    @property
    def half_width_percent(self) -> float | None:
        """Half of the interval in percent of the mean: how far chance may have moved the mean."""
        if self.mean is None or self.ci95_high is None or self.mean == 0.0:
            return None
        return 100.0 * abs((self.ci95_high - self.mean) / self.mean)

    @property
    def cv_percent(self) -> float | None:
        """Coefficient of variation in percent: how far one run is from the mean, typically."""
        if self.mean is None or self.std is None or self.mean == 0.0:
            return None
        return 100.0 * abs(self.std / self.mean)
