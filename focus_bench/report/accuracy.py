"""A share of right answers with its interval."""

import math
from dataclasses import dataclass

_Z_975 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """`value` (0 to 1) of `count` problems, each right or wrong; None where there are none.

    `value` may be a mean over runs of the same problems: more runs make no more problems, so the
    interval stays that of one run.
    """

    value: float | None
    count: int

    @property
    def ci95(self) -> tuple[float, float] | None:
        """95 % interval for a binomial share (Wilson 1927), within 0 and 1 also at either end."""
        if self.value is None or self.count == 0:
            return None
        share, count, square = self.value, self.count, _Z_975**2
        centre = share + square / (2 * count)
        half = _Z_975 * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
        scale = 1 + square / count
        low = 0.0 if share == 0 else (centre - half) / scale  # exactly, whatever the rounding
        high = 1.0 if share == 1 else (centre + half) / scale
        return low, high
