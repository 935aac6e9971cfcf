"""Mean, standard deviation and t-interval of a few repeated runs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of `count` repeats: mean, sample standard deviation, 95 % t-interval of the mean.

    Fewer than two repeats have neither deviation nor interval; none at all have no mean. Above 31
    repeats the interval uses the value for 30 degrees of freedom, which is slightly wide.
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
        half = _T_975[min(count - 1, len(_T_975)) - 1] * std / count**0.5
        return cls(count=count, mean=mean, std=std, ci95_low=mean - half, ci95_high=mean + half)
