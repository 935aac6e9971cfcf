"""The plot of predicted against measured throughput. Takes comparisons; decides no error."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure as Canvas

from focus_bench.core.errors import UsageError
from focus_bench.report.atomic import write_atomic
from focus_bench.report.compare import THROUGHPUT, Comparison, interval_of
from focus_bench.report.figures.theme import THEMES, policy_order, policy_sign

FORMATS = ("png", "svg", "pdf")
_SIZE_INCHES = 5.2
_BAND = 0.03  # the error that predictions are to stay within


def check_plot_name(path: Path) -> None:
    """Raise UsageError for a file whose ending is no format of a plot."""
    if path.suffix.removeprefix(".") not in FORMATS:
        raise UsageError("--plot", str(path), ", ".join(f"NAME.{f}" for f in FORMATS))


def write_predicted_plot(pairs: Sequence[Comparison], path: Path) -> int:
    """Write the plot; returns how many points are on it. Raises UsageError where there is none."""
    check_plot_name(path)
    points = [
        (pair, measured, predicted)
        for pair in pairs
        if pair.measured is not None
        and pair.predicted is not None
        and (measured := THROUGHPUT.get(pair.measured.metrics)) is not None
        and (predicted := THROUGHPUT.get(pair.predicted.metrics)) is not None
        and min(measured, predicted) > 0.0
    ]
    if not points:
        raise UsageError("--plot", str(path), "points with a measured and a predicted throughput")
    colours = THEMES["light"]
    with matplotlib.rc_context({"font.sans-serif": ["DejaVu Sans"], "svg.hashsalt": "focus-bench"}):
        canvas = Canvas(figsize=(_SIZE_INCHES, _SIZE_INCHES), dpi=150, layout="constrained")
        axes = canvas.add_subplot()
        low = 0.8 * min(min(m, p) for _, m, p in points)
        high = 1.25 * max(max(m, p) for _, m, p in points)
        axes.plot([low, high], [low, high], color=colours["muted"], linewidth=0.8)
        axes.fill_between(
            [low, high],
            [low * (1 - _BAND), high * (1 - _BAND)],
            [low * (1 + _BAND), high * (1 + _BAND)],
            color=colours["grid"],
            label=f"within {100 * _BAND:.0f} %",
        )
        policies = sorted({p.point.decode.policy for p, _, _ in points}, key=policy_order)
        for policy in policies:
            sign = policy_sign(policy)
            own = [point for point in points if point[0].point.decode.policy == policy]
            below, above = zip(*(_bars(pair, p) for pair, _, p in own), strict=True)
            axes.errorbar(
                [m for _, m, _ in own],
                [p for _, _, p in own],
                yerr=[below, above],
                fmt=sign.marker,
                markersize=5,
                linewidth=0,
                elinewidth=0.8,
                color=colours[sign.role],
                label=sign.short,
            )
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        axes.set_xlabel("measured output tokens/s")
        axes.set_ylabel("predicted output tokens/s (bars: 90 % interval)")
        axes.legend(frameon=False, fontsize=8)
        data = io.BytesIO()
        kind = path.suffix.removeprefix(".")
        stamp = {"CreationDate": None} if kind == "pdf" else {"Date": None} if kind == "svg" else {}
        canvas.savefig(data, format=kind, metadata=stamp)
    write_atomic(path, data.getvalue())
    return len(points)


def _bars(pair: Comparison, predicted: float) -> tuple[float, float]:
    """How far the interval reaches below and above the prediction."""
    interval = interval_of(pair, THROUGHPUT)
    if interval is None:
        return (0.0, 0.0)
    return (max(0.0, predicted - interval.low), max(0.0, interval.high - predicted))
