"""Student's t: its distribution, quantiles, Welch's test and Holm's correction, in plain floats.

Written out, since only the simulator may need SciPy. Knows no result and no rendering.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95  # of every interval, and 1 - the level of every test

_TINY = 1e-300
_MOST_TERMS = 10_000  # Lentz's method needs some sqrt(df) terms, so this is far from reached


def regularized_beta(a: float, b: float, x: float, complement: float | None = None) -> float:
    """I_x(a, b), the regularized incomplete beta function, for positive a, b and 0 <= x <= 1.

    `complement`: 1 - x, where the caller knows it better than that difference would be. By its
    continued fraction (NIST DLMF 8.17.22) with Lentz's method, on the side of the mean where it
    converges fast. Relative error below 1e-9 for a, b up to 1e5 (the logarithms of gamma cancel).
    """
    rest = 1.0 - x if complement is None else complement
    if x <= 0.0 or rest <= 0.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - regularized_beta(b, a, rest, x)
    log_scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front = log_scale + a * math.log(x) + b * math.log(rest)
    return math.exp(log_front) / a / _beta_fraction(a, b, x)


def t_tail(t: float, df: float) -> float:
    """P(T > t) of Student's t with `df` > 0 degrees of freedom, not necessarily whole."""
    square = t * t
    both = regularized_beta(0.5 * df, 0.5, df / (df + square), square / (df + square))
    return 0.5 * both if t >= 0.0 else 1.0 - 0.5 * both


def t_quantile(probability: float, df: float) -> float:
    """The t with P(T <= t) = `probability`, for 0 < probability < 1 and `df` > 0."""
    if not 0.0 < probability < 1.0:
        raise ValueError(f"a quantile of probability {probability}")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, df)
    wanted = 1.0 - probability
    low, high = 0.0, 1.0
    while t_tail(high, df) > wanted:
        low, high = high, 2.0 * high
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return middle
        if t_tail(middle, df) > wanted:
            low = middle
        else:
            high = middle


@dataclass(frozen=True, kw_only=True)
class Welch:
    """Difference of two means of unequal variances: in the values' unit, with its 95 % interval.

    `p`: two-sided probability of a difference at least as large if the means were equal.
    """

    difference: float
    half_width: float
    p: float


def welch(first: Sequence[float], second: Sequence[float]) -> Welch | None:
    """Welch's t-test of mean(first) - mean(second); None unless both have at least two values.

    Degrees of freedom by Welch and Satterthwaite. Values without any spread on both sides differ
    for certain or not at all: p is then 0 or 1.
    """
    if len(first) < 2 or len(second) < 2:
        return None
    parts = [(statistics.variance(v) / len(v), len(v) - 1) for v in (first, second)]
    squared_error = sum(part for part, _ in parts)
    difference = statistics.fmean(first) - statistics.fmean(second)
    if squared_error == 0.0:
        return Welch(difference=difference, half_width=0.0, p=float(difference == 0.0))
    # Shares instead of squares of variances, which would underflow for small units.
    df = 1.0 / sum((part / squared_error) ** 2 / free for part, free in parts)
    error = math.sqrt(squared_error)
    return Welch(
        difference=difference,
        half_width=t_quantile(0.5 + 0.5 * CONFIDENCE, df) * error,
        p=min(1.0, 2.0 * t_tail(abs(difference) / error, df)),
    )


def ratio_half_width(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Relative half-width of the 95 % interval of mean(first) / mean(second).

    From Welch's interval of the difference of the logarithms, so 0.1 says: as likely up to 10 %
    more as 1 / 1.1 of it. None unless both have at least two values, all above 0.
    """
    if any(value <= 0.0 for value in (*first, *second)):
        return None
    test = welch([math.log(v) for v in first], [math.log(v) for v in second])
    return None if test is None else math.expm1(min(test.half_width, 700.0))


def holm(probabilities: Sequence[float]) -> tuple[float, ...]:
    """Holm's adjustment: testing each result at level a errs in any of them at most with chance a.

    In the order given (Holm 1979: sorted ascending, the i-th times n - i, made non-decreasing).
    """
    adjusted = [0.0] * len(probabilities)
    least = 0.0
    ascending = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    for rank, index in enumerate(ascending):
        least = max(least, min(1.0, (len(probabilities) - rank) * probabilities[index]))
        adjusted[index] = least
    return tuple(adjusted)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """1 + d1 / (1 + d2 / (1 + ...)) of DLMF 8.17.22, evaluated from the front (modified Lentz)."""
    value, above, below = 1.0, 1.0, 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1.0 / _not_zero(1.0 + d * below)
        above = _not_zero(1.0 + d / above)
        factor = above * below
        value *= factor
        if abs(factor - 1.0) < 1e-16:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
