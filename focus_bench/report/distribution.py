"""Mean and percentiles of a sample, and of how many values. Knows nothing of what was measured."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PERCENTILES = (50, 90, 99)


def samples_needed(percentile: int) -> int:
    """How many values a percentile needs so that one of them is expected at or beyond it.

    2 for p50, 10 for p90 and 100 for p99: with fewer it is hardly more than the largest value.
    """
    return -(-100 // (100 - percentile))


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Summary of `count` values in their own unit; every figure is None where there is no value.

    Percentiles interpolate linearly between order statistics; `std` is the population's.
    """

    count: int
    mean: float | None
    std: float | None
    p50: float | None
    p90: float | None
    p99: float | None

    @property
    def few(self) -> tuple[str, ...]:
        """Percentiles, as "p99", that rest on too few values to be more than a hint.

        Tables mark them with ~, files name them in a column; none where there is no value at all.
        """
        return tuple(f"p{q}" for q in PERCENTILES if 0 < self.count < samples_needed(q))

    @classmethod
    def of(cls, values: npt.ArrayLike) -> "Distribution":
        """Summarise the values, any shape; NaN is refused since a missing value has no place."""
        array = np.asarray(values, dtype=np.float64).ravel()
        if np.isnan(array).any():
            raise ValueError("a distribution of values that are not all known")
        if not array.size:
            return cls(count=0, mean=None, std=None, p50=None, p90=None, p99=None)
        p50, p90, p99 = np.percentile(array, PERCENTILES).tolist()
        return cls(
            count=int(array.size),
            mean=float(array.mean()),
            std=float(array.std()),
            p50=p50,
            p90=p90,
            p99=p99,
        )


def ratio(numerator: float, denominator: float) -> float | None:
    """The quotient, None where the denominator is 0."""
    return numerator / denominator if denominator else None
