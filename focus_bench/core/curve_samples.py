"""Raw samples of measured operations, what is kept of them in a curve, and their CSV file.

Knows points and seconds; neither what an operation is nor how it was timed.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from focus_bench.core.op_curves import CURVES, FloatArray, OpCurve

Point = tuple[int, ...]
CSV_COLUMNS = ("curve", "clock", "axes", "point", "round", "sample", "seconds")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One timed call of `curve` at `point`, in the given round of the measurement."""

    curve: str
    point: Point
    round: int
    sample: int
    seconds: float


def curves_of(samples: Sequence[Sample]) -> dict[str, OpCurve]:
    """One curve a name of CURVES that was sampled, in the order of CURVES.

    Of a host's points the fastest round is kept: other work on a host lasts for seconds, and makes
    nothing faster.
    """
    rounds: dict[str, dict[Point, dict[int, list[float]]]] = {name: {} for name in CURVES}
    for sample in samples:
        of_point = rounds[sample.curve].setdefault(sample.point, {})
        of_point.setdefault(sample.round, []).append(sample.seconds)
    return {name: _curve(name, _kept(name, of)) for name, of in rounds.items() if of}


def _kept(name: str, points: Mapping[Point, Mapping[int, list[float]]]) -> dict[Point, list[float]]:
    """Each point's samples that count."""
    if CURVES[name].clock == "host":
        return {point: min(of.values(), key=np.median) for point, of in points.items()}
    return {point: list(chain.from_iterable(of.values())) for point, of in points.items()}


def _curve(name: str, samples: Mapping[Point, list[float]]) -> OpCurve:
    order = sorted(samples)
    points = np.array(order, dtype=np.float64)
    medians = np.array([np.median(samples[point]) for point in order])
    low, high = np.array([np.percentile(samples[point], (16, 84)) for point in order]).T
    errors = held_out_errors(points, medians)
    return OpCurve(
        name=name,
        axes=CURVES[name].axes,
        points=points,
        seconds=medians,
        spread=0.5 * (high - low) / medians,
        held_out_p50=float(np.median(errors)) if len(errors) else None,
        held_out_max=float(errors.max()) if len(errors) else None,
    )


def held_out_errors(points: FloatArray, seconds: FloatArray) -> FloatArray:
    """Relative errors of points [n, axes] when each is left out and interpolated.

    On every axis on which a point has a neighbour on either side, all other coordinates equal, its
    seconds are interpolated linearly between the two; the mean over these axes is its estimate.
    Points without such an axis have no error.
    """
    estimates: list[list[float]] = [[] for _ in seconds]
    for axis in range(points.shape[1]):
        lines: dict[Point, list[int]] = {}
        for index, point in enumerate(np.delete(points, axis, axis=1).tolist()):
            lines.setdefault(tuple(point), []).append(index)
        for line in lines.values():
            line.sort(key=lambda index: points[index, axis])
            for low, middle, high in zip(line, line[1:], line[2:], strict=False):
                x = points[[low, middle, high], axis]
                share = (x[1] - x[0]) / (x[2] - x[0])
                estimates[middle].append(
                    float(seconds[low] + share * (seconds[high] - seconds[low]))
                )
    errors = [
        abs(float(np.mean(values)) / seconds[index] - 1.0)
        for index, values in enumerate(estimates)
        if values
    ]
    return np.array(errors, dtype=np.float64)


def samples_csv(samples: Sequence[Sample]) -> str:
    """All samples as CSV, one a row; axes and points are joined by ``x``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for sample in samples:
        kind = CURVES[sample.curve]
        writer.writerow(
            (
                sample.curve,
                kind.clock,
                "x".join(kind.axes),
                "x".join(str(value) for value in sample.point),
                sample.round,
                sample.sample,
                f"{sample.seconds:.6g}",
            )
        )
    return text.getvalue()
