"""How well importance tells decodable positions from others: AUC, delta statistics, miss rates.

Computed from DecodabilityRecords; renders nothing. "Decodable" are the masked positions that a
step without eviction decoded, "others" the masked ones that it did not (paper, section 3).
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.core.decodability import DecodabilityRecords
from focus_bench.report.distribution import ratio

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def auc(scores: npt.ArrayLike, positive: BoolArray) -> float | None:
    """The chance that a positive scores above a negative, ties half; None without both."""
    values = np.asarray(scores, dtype=np.float64)
    num_positive = int(positive.sum())
    num_negative = len(values) - num_positive
    if not num_positive or not num_negative:
        return None
    # Mann-Whitney: mean ranks, so that ties count half.
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2
    above = mean_rank[place][positive].sum() - num_positive * (num_positive + 1) / 2
    return float(above / (num_positive * num_negative))


def auc_within_rows(scores: npt.ArrayLike, records: DecodabilityRecords) -> float | None:
    """The chance that a decodable position scores above another one of its own row, ties half.

    This is what counts for a selection, which compares within a step; each pair weighs the same.
    None where no row has both kinds.
    """
    starts, lengths = records.row_starts[:-1], records.masked_per_row
    values = np.asarray(scores, dtype=np.float64)
    above, pairs = 0.0, 0
    for length in np.unique(lengths[lengths > 1]):
        rows = starts[lengths == length]
        for part in np.array_split(rows, max(1, len(rows) * int(length) ** 2 >> 22)):
            index = part[:, None] + np.arange(length)
            decoded = records.decoded[index]
            pair = decoded[:, :, None] & ~decoded[:, None, :]
            own, other = values[index][:, :, None], values[index][:, None, :]
            above += float(((own > other) & pair).sum() + 0.5 * ((own == other) & pair).sum())
            pairs += int(pair.sum())
    return ratio(above, pairs)


def gaussian_tail(x: float) -> float:
    """Q(x) = P(Z > x) of a standard normal Z."""
    return 0.5 * math.erfc(x / math.sqrt(2))


@dataclass(frozen=True, kw_only=True)
class LayerImportance:
    """Importance of one layer, Eq. 2: means over decodable and other positions.

    Both are divided by the number of heads, so that 1 is a uniform share. `auc_within_rows`: of the
    importance itself; `delta_auc`, `delta_auc_within_rows`: of this layer's importance minus the
    layer's before (None for layer 0).
    """

    layer: int
    decodable_mean: float | None
    other_mean: float | None
    auc: float | None
    auc_within_rows: float | None
    delta_auc: float | None
    delta_auc_within_rows: float | None


@dataclass(frozen=True, kw_only=True)
class ClassStatistics:
    """Delta (layer 1 minus layer 0) over one kind of position; `std` is the population's."""

    count: int
    mean: float | None
    std: float | None
    skewness: float | None


@dataclass(frozen=True, kw_only=True)
class DeltaStatistics:
    """The signal of FOCUS (Eq. 3) against the model of Appendix D.

    `gamma` = mu / sigma with mu the mean delta of decodable positions and sigma the standard
    deviation of the others'; `bound` = Q(gamma - 1), what Appendix D expects to be missed at the
    limit sigma. Measured shares of decodable positions missed: `missed_at_sigma` (delta < sigma),
    `missed_at_row_limit` (delta < mean + std of the row, Eq. 5), `missed_by_rule` (not kept by the
    whole rule) for each alpha. `kept_by_rule`: masked positions that the rule keeps, for each
    alpha. `rows_without_loss`: rows of which the rule keeps all that was decodable.
    `auc_within_passing_rows`: only of rows in which something reached the threshold, where the
    decodable are not just the most confident one.
    """

    decodable: ClassStatistics
    other: ClassStatistics
    gamma: float | None
    bound: float | None
    auc: float | None
    auc_within_rows: float | None
    missed_at_sigma: float | None
    missed_at_row_limit: float | None
    auc_within_passing_rows: float | None
    alphas: tuple[float, ...]
    missed_by_rule: tuple[float | None, ...]
    kept_by_rule: tuple[float | None, ...]
    rows_without_loss: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class StepShareStatistics:
    """How much of a step's work is decoded (paper, Fig. 2). Per row: one step of one sequence.

    `decoded_counts[c]`: rows that decoded c positions, 0 to B; `share_of_block` = decoded / B,
    `share_of_masked` = decoded / masked, means over rows. `forced`: rows in which nothing reached
    the threshold, so that the most confident position was taken.
    """

    num_rows: int
    block_length: int
    threshold: float
    tokens_per_step: float
    share_of_block: float
    share_of_masked: float
    forced: float
    decoded_counts: tuple[int, ...]


def layer_importance(records: DecodabilityRecords) -> tuple[LayerImportance, ...]:
    """One entry a layer, from layer 0."""
    decoded, layers = records.decoded, []
    for layer in range(records.num_layers):
        values = records.importance[:, layer] / records.num_heads
        delta = records.delta(layer, layer - 1) if layer else None
        layers.append(
            LayerImportance(
                layer=layer,
                decodable_mean=_mean(values[decoded]),
                other_mean=_mean(values[~decoded]),
                auc=auc(values, decoded),
                auc_within_rows=auc_within_rows(values, records),
                delta_auc=None if delta is None else auc(delta, decoded),
                delta_auc_within_rows=None if delta is None else auc_within_rows(delta, records),
            )
        )
    return tuple(layers)


def position_auc_within_rows(records: DecodabilityRecords) -> float | None:
    """The same for the rule "leftmost first", which looks at no attention at all."""
    return auc_within_rows(-records.rank, records)


def delta_statistics(records: DecodabilityRecords) -> DeltaStatistics:
    """Of the difference between layers 1 and 0, on which FOCUS decides."""
    delta, decoded = records.delta(1, 0).astype(np.float64), records.decoded
    decodable, other = _statistics(delta[decoded]), _statistics(delta[~decoded])
    gamma = None
    if decodable.mean is not None and other.std:
        gamma = decodable.mean / other.std
    limit = np.repeat(row_limits(delta, records), records.masked_per_row)
    kept = records.kept
    lost = np.stack(
        [records.sum_per_row(decoded & ~kept[:, i]) for i in range(len(records.alphas))]
    )
    return DeltaStatistics(
        decodable=decodable,
        other=other,
        gamma=gamma,
        bound=None if gamma is None else gaussian_tail(gamma - 1),
        auc=auc(delta, decoded),
        auc_within_rows=auc_within_rows(delta, records),
        auc_within_passing_rows=_auc_within_passing_rows(records),
        missed_at_sigma=None if other.std is None else _mean(delta[decoded] < other.std),
        missed_at_row_limit=_mean((delta < limit)[decoded]),
        alphas=records.alphas,
        missed_by_rule=tuple(_mean(~kept[decoded, i]) for i in range(len(records.alphas))),
        kept_by_rule=tuple(_mean(kept[:, i]) for i in range(len(records.alphas))),
        rows_without_loss=tuple(_mean(counts == 0) for counts in lost),
    )


def row_limits(delta: FloatArray, records: DecodabilityRecords) -> FloatArray:
    """Mean + population std of each row's deltas (Eq. 5), [rows]."""
    count, starts = records.masked_per_row, records.row_starts[:-1]
    mean = np.add.reduceat(delta, starts) / count
    deviation = delta - np.repeat(mean, count)
    std = np.sqrt(np.add.reduceat(deviation**2, starts) / count)
    return np.asarray(mean + std)


def step_shares(records: DecodabilityRecords) -> StepShareStatistics:
    """How many positions each step decodes, of those fed and of those masked."""
    decoded, masked = records.decoded_per_row, records.masked_per_row
    passing = records.sum_per_row(_passes(records))
    counts = np.bincount(decoded, minlength=records.block_length + 1)
    return StepShareStatistics(
        num_rows=len(masked),
        block_length=records.block_length,
        threshold=records.threshold,
        tokens_per_step=float(decoded.mean()),
        share_of_block=float(decoded.mean()) / records.block_length,
        share_of_masked=float((decoded / masked).mean()),
        forced=float((passing == 0).mean()),
        decoded_counts=tuple(counts.tolist()),
    )


def rows_that_pass(records: DecodabilityRecords) -> DecodabilityRecords:
    """Those rows in which at least one position reached the threshold."""
    passing = records.sum_per_row(_passes(records)) > 0
    masked = records.masked_per_row
    chosen = np.repeat(passing, masked)
    return dataclasses.replace(
        records,
        row_starts=np.concatenate([[0], np.cumsum(masked[passing])]),
        importance=records.importance[chosen],
        decoded=records.decoded[chosen],
        confidence=records.confidence[chosen],
        position=records.position[chosen],
        kept=records.kept[chosen],
    )


def _passes(records: DecodabilityRecords) -> BoolArray:
    return np.asarray(records.confidence >= np.float32(records.threshold))


def _auc_within_passing_rows(records: DecodabilityRecords) -> float | None:
    passing = rows_that_pass(records)
    return auc_within_rows(passing.delta(1, 0), passing)


def _statistics(values: FloatArray) -> ClassStatistics:
    if not len(values):
        return ClassStatistics(count=0, mean=None, std=None, skewness=None)
    mean, std = float(values.mean()), float(values.std())
    skewness = float(((values - mean) ** 3).mean()) / std**3 if std > 0 else None
    return ClassStatistics(count=len(values), mean=mean, std=std, skewness=skewness)


def _mean(values: npt.NDArray[np.generic]) -> float | None:
    return float(values.mean()) if len(values) else None
