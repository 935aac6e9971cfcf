"""Seconds of decode attention over unequal sequences, from curves of equal ones.

A sequence costs its share of a step in which all are like it; what unequal ones cost beyond that
has curves of its own. Knows no layer's products and no stage.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from focus_bench.core.costs import IntArray
from focus_bench.sim.curves import CurveFunction, Tally

# Coefficient of variation of lengths spread evenly from 0.2 to 1.8 of their mean, as those of
# attention_ragged are (queries and contexts independently).
RAGGED_VARIATION = 0.46
_SPREAD_PLACES = 17  # of these lengths, at which shares are averaged


@dataclass(frozen=True, kw_only=True)
class AttentionCost:
    """Decode attention by its curves; `tally` collects what the seconds rest on."""

    curves: Mapping[str, CurveFunction]
    tally: Tally
    _memo: dict[tuple[str, float, float, float], float] = field(
        default_factory=dict, repr=False, compare=False
    )

    def seconds(self, queries: IntArray, keys: IntArray, layers: int) -> float:
        """Decode attention of `layers` layers; arrays over sequences."""
        if not layers:
            return 0.0
        q, k = queries, keys
        if np.count_nonzero(q) < len(q):
            some = q > 0
            q, k = q[some], k[some]
        if not len(q):
            return 0.0
        n = float(len(q))
        curve = self.curves["attention_decode"]
        seconds, inside, dense = curve.mean_of_sequences(n, q, k)
        mean_q, mean_k = float(np.add.reduce(q)) / n, float(np.add.reduce(k)) / n
        variation = max(0.0, float(np.add.reduce(k * k)) / n / mean_k**2 - 1.0) ** 0.5
        if variation > 0.02:
            excess = self._excess(n, mean_q, mean_k)
            seconds *= 1.0 + excess * min(1.0, (variation / RAGGED_VARIATION) ** 2)
        longest = int((q * k).argmax())
        seconds = max(seconds, self._at_least(n, float(q[longest]), float(k[longest])))
        self.tally.add(seconds * layers, inside, dense)
        return seconds * layers

    # What follows changes slowly with the context and the number of sequences, and is asked for at
    # every step: it is taken at the nearest ones of a fine scale, and remembered (as is what
    # depends on rows alone).

    def _at_least(self, n: float, queries: float, keys: float) -> float:
        """The longest sequence, its keys split as few times as `n` sequences let them be."""
        if n < 2 or "attention_longest" not in self.curves:
            return self._remembered("alone", 1.0, queries, _on_scale(keys))
        return self._remembered("longest", _on_scale(n), 0.0, _on_scale(keys))

    def _excess(self, n: float, queries: float, keys: float) -> float:
        """What unequal sequences cost beyond their shares, as measured for a fixed spread."""
        if n < 2 or "attention_ragged" not in self.curves:
            return 0.0
        queries = 2.0 * round(queries / 2.0) or 1.0
        return self._remembered("excess", _on_scale(n), queries, _on_scale(keys))

    def _remembered(self, what: str, n: float, middle: float, keys: float) -> float:
        key = (what, n, middle, keys)
        value = self._memo.get(key)
        if value is None:
            value = self._memo[key] = self._asked(what, n, middle, keys)
        return value

    def _asked(self, what: str, n: float, middle: float, keys: float) -> float:
        curves = self.curves
        if what == "alone":
            return float(curves["attention_decode"].at((n, middle, keys))[0])
        if what == "longest":
            return float(curves["attention_longest"].at((n, keys))[0])
        n, middle, keys = (
            float(x) for x in curves["attention_ragged"].grid.clamp((n, middle, keys))
        )
        spread = np.linspace(0.2, 1.8, min(max(2, int(n)), _SPREAD_PLACES))
        ragged, _, _ = curves["attention_ragged"].at((n, middle, keys))
        shares, _, _ = curves["attention_decode"].at((n, middle * spread, keys * spread[:, None]))
        return float(np.clip(ragged / shares.mean(), 0.8, 1.6)) - 1.0


def _on_scale(keys: float) -> float:
    """The nearest of eight lengths an octave."""
    return math.exp2(round(8.0 * math.log2(max(keys, 1.0))) / 8.0)
