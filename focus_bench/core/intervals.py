"""Intervals of predicted figures, and their written form among a run's settings.

Knows neither how an interval is found nor which figures there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from focus_bench.core.errors import UsageError

LEVEL = 0.9  # share of runs whose figure an interval is to hold
_PREFIX = "interval "
COVERS = "intervals cover"  # the setting in which a prediction says what its intervals allow for
COSTS = "costs"
COSTS_AND_SEEDS = "costs and other seeds"
DOMAIN = "domain"  # the setting in which a prediction says, in a word, what its costs rest on


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Where a figure lies in a share LEVEL of runs, in the figure's unit."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether the value lies inside."""
        return self.low <= value <= self.high


def interval_settings(intervals: Mapping[str, Interval]) -> dict[str, str]:
    """The intervals by figure, as texts that `intervals_in` reads back."""
    return {f"{_PREFIX}{name}": f"{i.low:.6g} to {i.high:.6g}" for name, i in intervals.items()}


def intervals_in(settings: Mapping[str, str]) -> dict[str, Interval]:
    """The intervals by figure that a run's settings hold; raises UsageError for a damaged one."""
    found = {}
    for key, text in settings.items():
        if not key.startswith(_PREFIX):
            continue
        low, to, high = text.partition(" to ")
        try:
            if not to:
                raise ValueError
            found[key.removeprefix(_PREFIX)] = Interval(low=float(low), high=float(high))
        except ValueError:
            raise UsageError(key, text, "LOW to HIGH") from None
    return found
