"""How far whole steps are from what a time model says of them, and what follows for a run.

Compares measured steps (core.calibration) with their predictions, kind by kind of step; knows
neither how a model predicts nor what is made of its seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.core.calibration import TIMED_PARTS, CalibrationSamples
from focus_bench.core.costs import DecodeShape, PrefillShape, StepShape
from focus_bench.core.records import RunRecord, StepTiming
from focus_bench.sim.corrections import Corrections
from focus_bench.sim.nonnegative import FLOOR_S, robust_nnls

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# A kind of step with fewer measured steps than this says nothing about the next run.
MIN_STEPS_OF_KIND = 4
# How strongly a scale of 1 and constants of 0 hold against what steps say, as a share of them.
_PRIOR = 0.2
# Parts in which a device waits for what the host says of every sequence.
_DESCRIBED = ("prefix", "eviction")
_SMALLEST_S = 1e-7


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Ratios of measured to predicted seconds, by part (TIMED_PARTS, in that order).

    `kinds` [k, parts]: logarithms of the ratio of the sums over a kind of steps, each kind held out
    of the fit that predicts it; NaN where the kind has no such part. `step_spread` [parts]:
    standard deviation of single steps around their kind's. `part_spread` [parts]: of what one
    measurement of an operation in that part is, around its median.
    """

    kinds: FloatArray
    step_spread: FloatArray
    part_spread: FloatArray

    def draw(
        self, rng: np.random.Generator, replicas: int, *, num_steps: int, num_kinds: int = 1
    ) -> FloatArray:
        """Factors [replicas, parts] by which a run of `num_steps` may differ from its prediction.

        Each replica's run is an equal mixture of `num_kinds` kinds drawn with replacement (a
        bootstrap over kinds, smoothed and widened for their number), the same for all its parts,
        with the noise of single steps averaged over the run's.
        """
        logs = np.zeros((replicas, len(TIMED_PARTS)))
        if len(self.kinds):
            drawn = rng.integers(0, len(self.kinds), size=(replicas, num_kinds))
            noise = rng.standard_normal((replicas, num_kinds))
            for part in range(len(TIMED_PARTS)):
                known = np.flatnonzero(~np.isnan(self.kinds[:, part]))
                if not len(known):
                    continue
                values = self.kinds[known, part]
                count, mean, width = len(values), float(values.mean()), float(values.std())
                chosen = values[np.searchsorted(known, drawn) % count]
                # As wide as the kinds are, but at any value between them.
                kernel = count**-0.2 if count > 1 else 0.0
                smooth = mean + np.sqrt(1.0 - kernel**2) * (chosen - mean) + kernel * width * noise
                logs[:, part] = np.sqrt((count + 1) / max(1, count - 1)) * smooth.mean(axis=1)
        common = rng.standard_normal((replicas, 1)) * self.part_spread
        single = rng.standard_normal((replicas, len(TIMED_PARTS))) * self.step_spread
        factors: FloatArray = np.exp(logs + common + single / np.sqrt(max(1, num_steps)))
        return factors


def uncertainty_of(
    predicted: FloatArray,
    measured: FloatArray,
    kinds: IntArray,
    *,
    refit: Callable[[BoolArray], FloatArray] | None = None,
    part_spread: Mapping[str, float] | None = None,
) -> Uncertainty:
    """From predicted and measured seconds [steps, parts] and the kind of each step [steps].

    `refit` gives the predictions of all steps, corrected by some of them ([steps], those of other
    kinds than the one at hand); None: the predictions are final.
    """
    logs, spreads = [], []
    for kind in np.unique(kinds):
        own = kinds == kind
        if own.sum() < MIN_STEPS_OF_KIND:
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
        kinds=np.array(logs).reshape(-1, parts),
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
        if count < 2 * MIN_STEPS_OF_KIND:
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


def kinds_of(samples: CalibrationSamples) -> IntArray:
    """The kind of every measured step."""
    counts = samples.counts
    return _kinds(counts["rows"], counts["evicting_rows"], counts["prefill_chunks"])


def num_kinds(record: RunRecord) -> int:
    """Of how many kinds a run's steps are, each counted by its share of the time, at least 1."""
    steps = record.steps
    kinds = _kinds(
        np.array([step.num_rows for step in steps], dtype=np.int64),
        np.array([step.evicting_rows for step in steps], dtype=np.int64),
        np.array([step.prefill_tokens for step in steps], dtype=np.int64),
    )
    seconds = np.array([step.timing.duration_s for step in steps])
    _, place = np.unique(kinds, return_inverse=True)
    shares = np.bincount(place, weights=seconds) / max(seconds.sum(), _SMALLEST_S)
    return max(1, round(1.0 / max(float(np.square(shares).sum()), 1e-9)))


def _kinds(rows: IntArray, evicting: IntArray, prefilled: IntArray) -> IntArray:
    """How many sequences (to a factor of 2), and what else a step does."""
    size = np.ceil(np.log2(np.maximum(rows, 1))).astype(np.int64)
    return np.asarray(size * 4 + 2 * (evicting > 0) + (prefilled > 0))


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
