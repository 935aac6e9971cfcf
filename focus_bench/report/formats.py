"""Figures as short text: decimal SI prefixes, four significant digits, "-" for undefined.

ASCII only, so that it prints under any locale.
"""

from collections.abc import Callable

from focus_bench.report.distribution import PERCENTILES, Distribution, samples_needed

UNDEFINED = "-"
FEW = "~"  # in front of a percentile that rests on few samples
FEW_SAMPLES = f"{FEW} fewer than " + ", ".join(
    f"{samples_needed(q)} samples for a p{q}" for q in PERCENTILES
)

_LARGE = ("", "k", "M", "G", "T", "P", "E")


def number(value: float | None) -> str:
    """12.35, 1.235k, 12.35M; whole numbers below 1,000 stay whole."""
    if value is None:
        return UNDEFINED
    scaled = _rounded(value, 4)
    if abs(scaled) in (float("inf"), 0.0):
        return f"{scaled:g}"
    prefix = 0
    while abs(scaled) >= 1000 and prefix < len(_LARGE) - 1:
        scaled, prefix = scaled / 1000, prefix + 1
    return f"{scaled:.4g}{_LARGE[prefix]}"


def seconds(value: float | None) -> str:
    """1.23 s, 12.3 ms, 450 us."""
    if value is None:
        return UNDEFINED
    if value == 0:
        return "0 s"
    rounded = _rounded(value, 3)
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if abs(rounded) * factor >= 1 or unit == "us":
            break
    scaled = _rounded(rounded * factor, 3)
    decimals = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:.{decimals}f} {unit}"


def percentile(
    sample: Distribution, name: str, show: Callable[[float | None], str] = seconds
) -> str:
    """A percentile ("p50", "p90", "p99"), behind a ~ where it rests on too few samples."""
    text = show(getattr(sample, name))
    return f"{FEW}{text}" if name in sample.few else text


def byte_size(value: float | None) -> str:
    """1.235 GB (decimal)."""
    if value is None:
        return UNDEFINED
    text = number(value)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{text} B"


def share(value: float | None) -> str:
    """0.1234 as 12.3 %."""
    return UNDEFINED if value is None else f"{100 * value:.1f} %"


def signed_percent(value: float | None) -> str:
    """A relative error in percent with its sign, as +12.3."""
    return UNDEFINED if value is None else f"{value:+.1f}"


def fixed(value: float | None, decimals: int = 2) -> str:
    """A ratio or a percentage with that many decimals."""
    return UNDEFINED if value is None else f"{value:.{decimals}f}"


def factor(value: float | None) -> str:
    """A speed-up, as 1.45x."""
    return UNDEFINED if value is None else f"{value:.2f}x"


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
