"""How far whole steps are from what a time model says of them, and what follows for a run.

Compares measured steps (core.calibration) with their predictions, run by run; knows neither how a
model predicts nor what is made of its seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.core.calibration import TIMED_PARTS, CalibrationSamples
from focus_bench.core.costs import DecodeShape, PrefillShape, StepShape
from focus_bench.core.records import StepTiming
from focus_bench.sim.corrections import Corrections
from focus_bench.sim.nonnegative import FLOOR_S, robust_nnls

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# A run with fewer measured steps than this says nothing about the next one, as does a part.
MIN_STEPS = 4
NO_RUN = -1
# How strongly a scale of 1 and constants of 0 hold against what steps say, as a share of them.
_PRIOR = 0.2
# Parts in which a device waits for what the host says of every sequence.
_DESCRIBED = ("prefix", "eviction")
_SMALLEST_S = 1e-7


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Ratios of measured to predicted seconds, by part (TIMED_PARTS, in that order).

    `runs` [k, parts]: logarithms of the ratio of the sums over a run's steps, each run held out of
    the fit that predicts it; NaN where the run has no such part. `step_spread` [parts]: standard
    deviation of single steps around their run's. `part_spread` [parts]: of what one measurement of
    an operation in that part is, around its median.
    """

    runs: FloatArray
    step_spread: FloatArray
    part_spread: FloatArray

    def draw(self, rng: np.random.Generator, replicas: int, *, num_steps: int) -> FloatArray:
        """Factors [replicas, parts] by which a run of `num_steps` may differ from its prediction.

        Each replica is as far off as a measured run was, the same one in all its parts, drawn with
        replacement (a bootstrap over runs, smoothed and widened for their number), with the noise
        of single steps averaged over its own.
        """
        logs = np.zeros((replicas, len(TIMED_PARTS)))
        if len(self.runs):
            drawn = rng.integers(0, len(self.runs), size=replicas)
            noise = rng.standard_normal(replicas)
            for part in range(len(TIMED_PARTS)):
                known = np.flatnonzero(~np.isnan(self.runs[:, part]))
                if not len(known):
                    continue
                values = self.runs[known, part]
                count, mean, width = len(values), float(values.mean()), float(values.std())
                chosen = values[np.searchsorted(known, drawn) % count]
                # As wide as the runs are, but at any value between them.
                kernel = count**-0.2 if count > 1 else 0.0
                smooth = mean + np.sqrt(1.0 - kernel**2) * (chosen - mean) + kernel * width * noise
                logs[:, part] = np.sqrt((count + 1) / max(1, count - 1)) * smooth
        common = rng.standard_normal((replicas, 1)) * self.part_spread
        single = rng.standard_normal((replicas, len(TIMED_PARTS))) * self.step_spread
        factors: FloatArray = np.exp(logs + common + single / np.sqrt(max(1, num_steps)))
        return factors


def uncertainty_of(
    predicted: FloatArray,
    measured: FloatArray,
    runs: IntArray,
    *,
    refit: Callable[[BoolArray], FloatArray] | None = None,
    part_spread: Mapping[str, float] | None = None,
) -> Uncertainty:
    """From predicted and measured seconds [steps, parts] and the run of each step [steps], NO_RUN
    for steps of a run that is no example of another.

    `refit` gives the predictions of all steps, corrected by some of them ([steps], those of other
    runs than the one at hand); None: the predictions are final.
    """
    logs, spreads = [], []
    for run in np.unique(runs[runs != NO_RUN]):
        own = runs == run
        if own.sum() < MIN_STEPS:
            continue
        ours = predicted if refit is None or own.all() else refit(~own)
        ours = ours[own]
        logs.append(_log_ratio(measured[own].sum(axis=0), ours.sum(axis=0)))
        single = _log_ratio(measured[own], ours)
        spreads.append(np.square(single - np.nan_to_num(logs[-1])))
    parts = len(TIMED_PARTS)
    step_spread = np.zeros(parts)
    if spreads:
        squares = np.concatenate(spreads)
        for part in range(parts):
            known = squares[~np.isnan(squares[:, part]), part]
            # The median: a disturbed step is no measure of how steps usually spread.
            step_spread[part] = 1.48 * np.sqrt(np.median(known)) if len(known) else 0.0
    return Uncertainty(
        runs=np.array(logs).reshape(-1, parts),
        step_spread=step_spread,
        part_spread=np.array([(part_spread or {}).get(part, 0.0) for part in TIMED_PARTS]),
    )


def seconds_of(samples: CalibrationSamples) -> FloatArray:
    """Measured seconds [steps, parts]."""
    return np.stack([samples.seconds[part] for part in TIMED_PARTS], axis=1)


def fit_corrections(
    predicted: FloatArray, measured: FloatArray, sequences: FloatArray
) -> Corrections:
    """What predictions of each part [steps, parts] lack, none negative, scales near 1 and the rest
    near 0. `sequences` [steps].

    Raises nothing; a part with few steps stays as it is predicted.
    """
    scale: dict[str, float] = {}
    constant_s: dict[str, float] = {}
    per_sequence_s: dict[str, float] = {}
    step_s = np.maximum(measured.sum(axis=1), _SMALLEST_S)
    for i, part in enumerate(TIMED_PARTS):
        some = (predicted[:, i] > 0.0) & (measured[:, i] > 0.0)
        count = int(some.sum())
        if count < 2 * MIN_STEPS:
            continue
        ours, theirs, steps = predicted[some, i], measured[some, i], step_s[some]
        columns = [ours, np.ones(count)]
        if part in _DESCRIBED:
            columns.append(sequences[some])
        # One more row each, worth a share of all steps, that hold the coefficients.
        typical = float(np.median(ours))
        strong = _PRIOR * np.sqrt(count)
        # (A row of s seconds weighs 1 / sqrt(s), at least FLOOR_S: the factors make up for it.)
        held, free = typical * strong**2, strong * np.sqrt(FLOOR_S / max(typical, FLOOR_S))
        weights = [held, *(free * float(np.median(column)) for column in columns[1:])]
        coefficients = robust_nnls(
            np.concatenate([np.stack(columns, axis=1), np.diag(weights)]),
            np.concatenate([theirs, [held], np.zeros(len(columns) - 1)]),
            np.concatenate([steps, np.full(len(columns), np.median(steps))]),
        )
        scale[part], constant_s[part] = float(coefficients[0]), float(coefficients[1])
        if part in _DESCRIBED:
            per_sequence_s[part] = float(coefficients[2])
    return Corrections(scale=scale, constant_s=constant_s, per_sequence_s=per_sequence_s)


def corrected(predicted: FloatArray, corrections: Corrections, sequences: FloatArray) -> FloatArray:
    """Predictions [steps, parts] of steps of `sequences` [steps] with each part's corrections."""
    return np.array(
        [
            [corrections.of(part, s, n) for part, s in zip(TIMED_PARTS, step, strict=True)]
            for step, n in zip(predicted.tolist(), sequences.tolist(), strict=True)
        ]
    ).reshape(predicted.shape)


def runs_of(samples: CalibrationSamples) -> IntArray:
    """The run of every measured step. Requests of one run come together: when some are prefilled
    after a step that prefilled none, it is the next run's.
    """
    prefills = samples.counts["prefill_chunks"] > 0
    begins = prefills & ~np.append(False, prefills[:-1])
    return np.cumsum(begins)


def shape_of_counts(counts: Mapping[str, int], *, block_length: int) -> StepShape:
    """A step of equal sequences and equal chunks with these sums: what is left of a measured step.

    Its arrays are fractions where the sums do not divide.
    """
    rows, chunks = counts["rows"], counts["prefill_chunks"]
    forwards: tuple[DecodeShape, ...] = ()
    if rows:
        evicting = counts["evicting_rows"]
        each = counts["importance_masked"] / max(1, evicting)
        forwards = (
            DecodeShape(
                fed=np.full(rows, counts["fed"] / rows),
                kept=np.full(rows, counts["kept"] / rows),
                masked_fed=np.where(np.arange(rows) < evicting, each, 0.0),
                first_keys=np.full(rows, counts["first_keys"] / rows),
                later_keys=np.full(rows, counts["later_keys"] / rows),
                head_rows=counts["head_rows"],
            ),
        )
    length = counts["prefill_tokens"] / max(1, chunks)
    start = counts["prefill_keys"] / max(1, chunks) - length
    return StepShape(
        prefill=PrefillShape(
            start=np.full(chunks, start),
            length=np.full(chunks, length),
            block_length=block_length,
        ),
        forwards=forwards,
        swapped_pages=counts["swapped_tokens"],
        page_size=1,
    )


def parts_of(timing: StepTiming) -> FloatArray:
    """Seconds of a step's parts, in the order of TIMED_PARTS."""
    return np.array([getattr(timing, f"{part}_s") for part in TIMED_PARTS])


def _log_ratio(measured: FloatArray, predicted: FloatArray) -> FloatArray:
    known = (measured > _SMALLEST_S) & (predicted > _SMALLEST_S)
    ratio = np.where(known, measured, 1.0) / np.where(known, predicted, 1.0)
    return np.where(known, np.log(ratio), np.nan)
