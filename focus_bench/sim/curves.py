"""Measured curves as functions: piecewise-linear inside, by the roofline beyond. Knows no steps.

What a value rests on is said beside it: measured densely, interpolated widely, or extrapolated.
"""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from focus_bench.core.config import MAX_BLOCK_LENGTH
from focus_bench.core.op_curves import CURVES, OpCurve
from focus_bench.sim.op_work import (
    Number,
    Peaks,
    WorkShape,
    reads_experts,
    roofline_s,
    rows_kernels,
    same_intensity_rows,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Values = FloatArray | IntArray

# Neighbours at most this factor apart count as measured densely: calibration's own grids.
DENSE_RATIO = 2.0
_EDGE = 1e-9
_TILE = 128.0
_MOST_MASKED = MAX_BLOCK_LENGTH
# Curves that grow with the square of a coordinate: their time over the roofline's is interpolated,
# since straight lines between distant points would be far above them.
RELATIVE = frozenset({"attention_prefill"})


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A curve over the product of its axes' values; corners that were not measured are filled.

    `values` and `measured` have one dimension an axis. Evaluating is multilinear, so it stays
    between its neighbours and keeps the steps that are measured.
    """

    axes: tuple[FloatArray, ...]
    values: FloatArray
    measured: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, curve: OpCurve, *, grows: bool = True) -> "Grid":
        """Of a curve's points. A missing corner takes its value from the nearest smaller one (else
        larger one) along the last axis that has one, in proportion to the coordinates if it `grows`
        with them.
        """
        axes = tuple(np.unique(curve.axis(name)) for name in curve.axes)
        shape = tuple(len(axis) for axis in axes)
        values, measured = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
        place = tuple(
            np.searchsorted(axis, curve.axis(name))
            for axis, name in zip(axes, curve.axes, strict=True)
        )
        values[place] = curve.seconds
        measured[place] = True
        for dimension in reversed(range(len(axes))):
            values = _filled(values, axes[dimension], dimension, grows=grows)
        return cls(axes=axes, values=values, measured=measured)

    def clamp(self, coordinates: tuple[Number, ...]) -> tuple[Number, ...]:
        """The coordinates moved to the edges of what was measured."""
        return tuple(
            np.minimum(np.maximum(value, axis[0]), axis[-1])
            for value, axis in zip(coordinates, self.axes, strict=True)
        )

    @cached_property
    def _axes(self) -> tuple["_Axis", ...]:
        return tuple(_Axis.of(axis) for axis in self.axes)

    @cached_property
    def table_axes(self) -> tuple["_TableAxis", ...]:
        """The second axis and those behind it, for tables at values of the first."""
        return tuple(_TableAxis(axis) for axis in self.axes[1:])

    @cached_property
    def _all_measured(self) -> bool:
        return bool(self.measured.all())

    def at(self, coordinates: tuple[Number, ...]) -> tuple[Number, Number, Number]:
        """Seconds at coordinates inside, and which of the values have all their corners measured,
        and which of those densely (as 0 or 1); all of the coordinates' common shape.
        """
        dense: Number = 1.0
        sides = []  # of each axis: place and share of the lower neighbour, and of the upper one
        for value, axis in zip(coordinates, self._axes, strict=True):
            index, weight, is_dense = axis.between(value)
            upper = index if axis.is_point else index + 1
            sides.append(((index, 1.0 - weight), (upper, weight)))
            dense = np.multiply(dense, is_dense, dtype=np.float64)
        seconds: Number = 0.0
        known: Number = 1.0
        # (Corners in the order of their bits, the first axis lowest: sums are rounded in order.)
        for corner in product(*reversed(sides)):
            share: Number = 1.0
            for _, weight in reversed(corner):
                share = share * weight
            at = tuple(place for place, _ in reversed(corner))
            seconds = seconds + share * self.values[at]
            if not self._all_measured:
                known = known * (self.measured[at] | (share <= _EDGE))
        if np.shape(known) != np.shape(seconds):
            known = np.full(np.shape(seconds), known)
        return seconds, known, dense * known


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """An axis's values, how far apart they are, and where two neighbours are far apart."""

    values: FloatArray
    steps: FloatArray
    wide: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, values: FloatArray) -> "_Axis":
        """Of ascending values."""
        wide = values[1:] > DENSE_RATIO * np.maximum(values[:-1], 1.0)
        return cls(values=values, steps=np.diff(values), wide=wide)

    @property
    def is_point(self) -> bool:
        """Whether there is one value only."""
        return len(self.values) == 1

    def between(self, value: Number) -> tuple[IntArray, FloatArray, npt.NDArray[np.bool_]]:
        """Place of the lower neighbour of values inside, their share of the way to the upper one,
        and whether both are near (or the value is one of them).
        """
        if self.is_point:
            nothing = np.zeros(np.shape(value))
            return nothing.astype(np.int64), nothing, np.ones(np.shape(value), dtype=np.bool_)
        # (The last value counts as the end of what lies before it.)
        index = self.values[1:-1].searchsorted(value, side="right")
        weight = (value - self.values[index]) / self.steps[index]
        is_between = (weight > _EDGE) & (weight < 1.0 - _EDGE)
        return index, weight, ~(self.wide[index] & is_between)


def _filled(values: FloatArray, axis: FloatArray, dimension: int, *, grows: bool) -> FloatArray:
    lines = np.moveaxis(values, dimension, -1).reshape(-1, len(axis)).copy()
    for line in lines:
        have = np.flatnonzero(~np.isnan(line))
        if 0 < len(have) < len(line):
            missing = np.flatnonzero(np.isnan(line))
            place = np.clip(np.searchsorted(have, missing) - 1, 0, None)
            near = have[place]
            ratio = axis[missing] / np.maximum(axis[near], 1e-9) if grows else 1.0
            line[missing] = line[near] * ratio
    moved = np.moveaxis(values, dimension, -1).shape
    return np.moveaxis(lines.reshape(moved), -1, dimension)


class _TableAxis:
    """Where numbers lie on an axis of a table: whole ones are looked up, others searched."""

    def __init__(self, values: FloatArray) -> None:
        self.values = values
        self.wide = _Axis.of(values).wide
        self._per_step = 1.0 / np.diff(values)

    def between(self, numbers: Values) -> tuple[IntArray, FloatArray]:
        """Place of the lower neighbour of numbers [n] up to the last value, and their share of the
        way to the upper one. Numbers below the first value count as it.
        """
        if not is_whole(numbers):
            return self._searched(numbers)
        place, share = self._whole
        return place.take(numbers), share.take(numbers)

    def _searched(self, numbers: Values) -> tuple[IntArray, FloatArray]:
        numbers = np.maximum(numbers, self.values[0])
        # (The last value counts as the end of what lies before it.)
        place = self.values[1:-1].searchsorted(numbers, side="right")
        return place, (numbers - self.values[place]) * self._per_step[place]

    @cached_property
    def _whole(self) -> tuple[IntArray, FloatArray]:
        """The same of 0, 1, 2, ..."""
        return self._searched(np.arange(self.values[-1] + 1.0))


def is_whole(numbers: Values) -> TypeGuard[IntArray]:
    """Whether an array holds whole numbers by its type."""
    return numbers.dtype.kind == "i"


class SequencesTable:
    """A curve of three axes at one value of the first (sequences alike), as a table [q, k].

    The same as Grid.at, for what is asked for every sequence of every step.
    """

    def __init__(self, grid: Grid, first: float) -> None:
        self._q, self._k = grid.table_axes
        seconds, known, dense = grid.at((first, self._q.values[:, None], self._k.values))
        known, dense = np.asarray(known), np.asarray(dense)
        # Of each cell, from its lowest corner: value, slopes along k and q, and their product.
        self._known = known[:-1, :-1].ravel()
        along_k, along_q = np.diff(seconds, axis=1), np.diff(seconds, axis=0)
        self._cells = np.stack(
            [
                np.asarray(seconds)[:-1, :-1].ravel(),
                along_k[:-1].ravel(),
                along_q[:, :-1].ravel(),
                np.diff(along_k, axis=0).ravel(),
            ]
        )
        self._dense = bool(np.all(dense >= known))
        self._all_known, self._some_wide = bool(np.all(known)), bool(np.any(self._k.wide))

    def reaches(self, q: Values, k: Values) -> bool:
        """Whether no coordinate is beyond what was measured. Those below the smallest measured ones
        cost as much as these, and are not beyond.
        """
        most_q, most_k = np.maximum.reduce(q), np.maximum.reduce(k)
        return bool(most_q <= self._q.values[-1] and most_k <= self._k.values[-1])

    def values(self, q: Values, k: Values) -> tuple[FloatArray, float, float]:
        """Seconds [n] inside; shares of the sequences inside and on dense measurements (by the
        corners towards zero).
        """
        i, of_q = self._q.between(q)
        j, of_k = self._k.between(k)
        corner = i * (len(self._k.values) - 1) + j
        value, along_k, along_q, twist = self._cells.take(corner, axis=1)
        seconds = value + along_k * of_k + (along_q + twist * of_k) * of_q
        # (Shares by counting where there is something to count: this runs twice a step.)
        inside = 1.0 if self._all_known else np.count_nonzero(self._known[corner]) / len(q)
        dense = 1.0 if self._dense else 0.0
        if self._dense and self._some_wide:
            dense = 1.0 - np.count_nonzero(self._k.wide[j]) / len(q)
        return seconds, inside, min(inside, dense)


@dataclass(kw_only=True)
class Tally:
    """Seconds of predictions by what they rest on."""

    dense_s: float = 0.0
    wide_s: float = 0.0
    outside_s: float = 0.0

    def add(self, seconds: float, inside: float, dense: float) -> None:
        """`inside` and `dense`: shares, 0 to 1, of the seconds."""
        self.dense_s += seconds * dense
        self.wide_s += seconds * (inside - dense)
        self.outside_s += seconds * (1.0 - inside)

    @property
    def total_s(self) -> float:
        """All seconds."""
        return self.dense_s + self.wide_s + self.outside_s

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of all seconds: measured densely, interpolated widely, extrapolated."""
        total = self.total_s
        if total == 0.0:
            return (1.0, 0.0, 0.0)
        parts = (self.dense_s / total, self.wide_s / total, self.outside_s / total)
        return (float(parts[0]), float(parts[1]), float(parts[2]))


@dataclass(frozen=True, kw_only=True)
class CurveFunction:
    """One curve for one model on one device, from a measurement of maybe another.

    Seconds at coordinates x are those measured at x*, times roofline(x) here over roofline(x*)
    there: efficiency is carried over; `latency_s`, which a kernel takes whatever it does, stays. x*
    is x, clamped to what was measured; for products on another model or device, the rows of equal
    arithmetic intensity over the ridge. On the measured model and device, inside, that is the
    measured curve itself. On another device nothing takes longer or shorter than either peak's
    ratio would make it.
    """

    name: str
    grid: Grid
    shape: WorkShape
    peaks: Peaks
    measured_shape: WorkShape
    measured_peaks: Peaks
    latency_s: float = 0.0
    _memo: dict[float, tuple[float, float, float]] = field(
        default_factory=dict, repr=False, compare=False
    )

    _tables: dict[float, SequencesTable] = field(default_factory=dict, repr=False, compare=False)
    _lines: dict[float, tuple[FloatArray, FloatArray, FloatArray]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _rounded: dict[tuple[float, ...], tuple[float, float, float]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _alone: dict[tuple[float, ...], float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        curve: OpCurve,
        *,
        shape: WorkShape,
        peaks: Peaks,
        measured_shape: WorkShape,
        measured_peaks: Peaks,
        latency_s: float,
    ) -> "CurveFunction":
        """Of a measured curve."""
        if curve.name in RELATIVE:
            best = roofline_s(curve.name, measured_shape, measured_peaks, tuple(curve.points.T))
            ratio = np.maximum(curve.seconds - latency_s, 0.0) / best
            curve = replace(curve, seconds=ratio)
        return cls(
            name=curve.name,
            grid=Grid.of(curve, grows=curve.name not in RELATIVE),
            shape=shape,
            peaks=peaks,
            measured_shape=measured_shape,
            measured_peaks=measured_peaks,
            latency_s=latency_s,
        )

    @cached_property
    def is_carried(self) -> bool:
        """Whether another model or device, or another load of experts, was measured (and the curve
        is a device's).
        """
        other = self.shape != self.measured_shape or self.peaks != self.measured_peaks
        if reads_experts(self.name, self.shape):
            other = other or self.shape.load != self.measured_shape.load
        return other and CURVES[self.name].clock == "device"

    def at_rows(self, rows: float) -> tuple[float, float, float]:
        """Seconds of a curve with one axis; shares inside and dense."""
        found = self._memo.get(rows)
        if found is None:
            first, last = self.grid.axes[0][[0, -1]].tolist()
            if not self.is_carried and first <= rows <= last:
                found = self._inside(rows)
            elif CURVES[self.name].clock == "host" and rows > last:
                found = (float(self.grid.values[-1]), 0.0, 0.0)  # as much as the most measured
            else:
                seconds, inside, dense = self.at((rows,))
                found = (float(seconds), float(inside), float(dense))
            self._memo[rows] = found
        return found

    def _inside(self, rows: float) -> tuple[float, float, float]:
        axis, values = self.grid.axes[0], self.grid.values
        right = min(bisect_right(axis, rows), len(axis) - 1)
        left = max(0, right - 1)
        if left == right:
            return (float(values[right]), 1.0, 1.0)
        weight = (rows - axis[left]) / (axis[right] - axis[left])
        dense = axis[right] <= DENSE_RATIO * axis[left] or weight in (0.0, 1.0)
        seconds = values[left] + weight * (values[right] - values[left])
        return (float(seconds), 1.0, float(dense))

    def mean_of_sequences(
        self, sequences: float, q: Values, k: Values
    ) -> tuple[float, float, float]:
        """Mean seconds of a curve over sequences, q and k; shares inside and dense."""
        ends = self.grid.axes[0][[0, -1]]
        if not ends[0] <= sequences <= ends[1] or min(map(len, self.grid.axes[1:])) < 2:
            each = (sequences, q.astype(np.float64), k.astype(np.float64))
            seconds, inside_each, dense_each = self.at(each)
            return float(seconds.mean()), float(inside_each.mean()), float(dense_each.mean())
        table = self._tables.get(sequences)
        if table is None:
            table = self._tables[sequences] = SequencesTable(self.grid, sequences)
        beyond = not table.reaches(q, k)
        if not beyond and not self.is_carried and self.name not in RELATIVE:
            seconds, inside, dense = table.values(q, k)
            return float(np.add.reduce(seconds)) / len(seconds), inside, dense
        (least_q, *_, most_q), (least_k, *_, most_k) = self.grid.axes[1:]
        all_q: FloatArray = np.maximum(q, least_q, dtype=np.float64)
        all_k: FloatArray = np.maximum(k, least_k, dtype=np.float64)
        q_in, k_in = np.minimum(all_q, most_q), np.minimum(all_k, most_k)
        seconds, inside, dense = table.values(q_in, k_in)
        there = roofline_s(
            self.name, self.measured_shape, self.measured_peaks, (sequences, q_in, k_in)
        )
        if self.name in RELATIVE:
            seconds = self.latency_s + seconds * there
        if beyond or self.is_carried:
            here = roofline_s(self.name, self.shape, self.peaks, (sequences, all_q, all_k))
            seconds = self._scaled(seconds, here, there)
            within = (
                float(((all_q == q_in) & (all_k == k_in)).mean()) if not self.is_carried else 0.0
            )
            inside, dense = inside * within, dense * within
        return float(np.add.reduce(seconds)) / len(seconds), inside, dense

    def of_one(self, q: float, k: float) -> float:
        """Seconds of one sequence by itself, remembered."""
        found = self._alone.get((q, k))
        if found is None:
            found, _, _ = self.mean_of_sequences(1.0, np.array([q]), np.array([k]))
            self._alone[q, k] = found
        return found

    def at_choices(self, rows: float, choices: float) -> float:
        """Seconds of a curve over rows of which only `choices` choose experts for themselves.

        Of what more rows take than `choices` rows alone, as much is left as the roofline has.
        """
        seconds = self.at_rows(rows)[0]
        if choices >= rows:
            return seconds
        fewest = self.at_rows(choices)[0]
        best, wanted, least = (
            float(roofline_s(self.name, self.shape, self.peaks, (n,), choices=c))
            for n, c in ((rows, rows), (rows, choices), (choices, choices))
        )
        left = (wanted - least) / max(best - least, 1e-12)
        return fewest + max(0.0, seconds - fewest) * min(1.0, left)

    def _scaled(self, seconds: Number, here: Number, there: Number) -> FloatArray:
        """Measured seconds at another roofline; what a kernel takes at least stays."""
        fixed = np.minimum(self._kernels * self.latency_s, 0.5 * seconds)
        ratio = np.maximum(here, 1e-12) / np.maximum(there, 1e-12)
        scaled: FloatArray = fixed + (seconds - fixed) * ratio
        return scaled

    @cached_property
    def _peak_ratios(self) -> tuple[float, float] | None:
        """How much slower a kernel is here at most and at least; None on the measured device."""
        if self.peaks == self.measured_peaks or not rows_kernels(self.name, self.shape):
            return None
        there, here = self.measured_peaks, self.peaks
        ratios = (
            there.flops_per_s / here.flops_per_s,
            there.bytes_per_s / here.bytes_per_s,
        )
        return max(ratios), min(ratios)

    @cached_property
    def _on_measured_device(self) -> "CurveFunction":
        return replace(self, peaks=self.measured_peaks, _memo={}, _tables={}, _lines={})

    @cached_property
    def _kernels(self) -> int:
        return max(1, len(rows_kernels(self.name, self.shape)))

    def rounded(self, *coordinates: float) -> tuple[float, float, float]:
        """Seconds at whole coordinates near the given ones, remembered; shares inside and dense."""
        place = tuple(float(round(value)) for value in coordinates)
        found = self._rounded.get(place)
        if found is None:
            seconds, inside, dense = self.at(place)
            found = self._rounded[place] = (float(seconds), float(inside), float(dense))
        return found

    def mean_of_masked(self, sequences: float, masked: IntArray) -> tuple[float, float, float]:
        """Mean seconds of a curve over sequences and masked positions; shares inside and dense (of
        the number of sequences and the mean of the positions).
        """
        line = self._lines.get(sequences)
        if line is None:
            positions = np.arange(_MOST_MASKED + 1, dtype=np.float64)
            line = self._lines[sequences] = self.at((np.full(len(positions), sequences), positions))
        mean = int(np.add.reduce(masked)) // len(masked)
        seconds = float(np.add.reduce(line[0][masked])) / len(masked)
        return seconds, float(line[1][mean]), float(line[2][mean])

    def at(self, coordinates: tuple[Number, ...]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Seconds, and which rest on measurements inside and on dense ones (as 0 or 1)."""
        place = coordinates
        if self.is_carried and rows_kernels(self.name, self.shape):
            rows = same_intensity_rows(
                self.name,
                coordinates[0],
                self.shape,
                self.peaks,
                on_shape=self.measured_shape,
                on_peaks=self.measured_peaks,
            )
            # At whole tiles, since what a tile that is not full wastes is not carried over.
            place = (np.where(rows > _TILE, np.ceil(rows / _TILE) * _TILE, rows),)
        # What is smaller than the smallest that was measured costs as much.
        lowest = tuple(axis[0] for axis in self.grid.axes)
        place = tuple(np.maximum(value, low) for value, low in zip(place, lowest, strict=True))
        clamped = self.grid.clamp(place)
        seconds, inside, dense = self.grid.at(clamped)
        if self.name in RELATIVE:
            best = roofline_s(self.name, self.measured_shape, self.measured_peaks, clamped)
            seconds = self.latency_s + seconds * best
        within: FloatArray = np.ones(())
        for value, edge in zip(place, clamped, strict=True):
            within = within * (np.asarray(value) == edge)
        if CURVES[self.name].clock == "device" and (self.is_carried or not within.all()):
            raised = tuple(np.maximum(v, low) for v, low in zip(coordinates, lowest, strict=True))
            here = roofline_s(self.name, self.shape, self.peaks, raised)
            there = roofline_s(self.name, self.measured_shape, self.measured_peaks, clamped)
            seconds = self._scaled(seconds, here, there)
        if self._peak_ratios is not None:
            # (What few rows take is in part no peak's: at fewer still, its share looks larger.)
            slowest, fastest = self._peak_ratios
            as_measured = self._on_measured_device.at(coordinates)[0]
            seconds = np.clip(
                seconds,
                self._scaled(as_measured, fastest, 1.0),
                self._scaled(as_measured, slowest, 1.0),
            )
        inside = inside * within * (0.0 if self.is_carried else 1.0)
        return np.asarray(seconds), np.asarray(inside), np.asarray(dense * inside)
