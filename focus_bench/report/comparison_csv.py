"""The CSV file of a comparison: measured, predicted, error, interval and noise of every figure.

Writes what compare and seeds compute; computes no error itself.
"""

from collections.abc import Sequence

from focus_bench.core.intervals import COVERS, Interval
from focus_bench.report.compare import (
    JUDGED,
    Comparison,
    error_percent,
    hardware_differences,
    interval_of,
    spread_of,
)
from focus_bench.report.export import Cell, csv_text
from focus_bench.report.seeds import by_point

_HEADER = (
    *("point_hash", "hardware", "policy", "model", "dataset", "batch_size", "block_length"),
    *("alpha", "threshold", "seed", "predicted_seed"),
    *("figure", "measured", "predicted", "error_percent"),
    *("interval_low", "interval_high", "interval_covers"),
    *("measured_runs", "measured_mean", "measured_cv_percent", "measured_half_width_percent"),
    *("seeds", "seeds_error_percent", "seeds_half_width_percent"),
    *("measured_failed_requests", "predicted_failed_requests"),
    *("measured_hardware", "hardware_differs", "notes"),
)


def comparison_csv(pairs: Sequence[Comparison]) -> str:
    """Tidy CSV: one row a point and figure that was both measured and predicted."""
    groups = {id(pair): group for group in by_point(pairs) for pair in group.pairs}
    rows: list[tuple[Cell, ...]] = []
    for pair in pairs:
        if pair.measured is None or pair.predicted is None:
            continue
        point, group = pair.point, groups[id(pair)]
        notes = "; ".join(dict.fromkeys((*pair.measured.all_notes, *pair.predicted.all_notes)))
        differences = "; ".join(hardware_differences([pair])) or None
        for figure in JUDGED:
            spread, interval = spread_of(pair.measured, figure), interval_of(pair, figure)
            rows.append(
                (
                    point.hash(),
                    pair.predicted.hardware,
                    point.decode.policy,
                    point.engine.model,
                    point.workload.dataset,
                    point.scheduler.batch_size,
                    point.decode.block_length,
                    point.decode.alpha,
                    point.decode.threshold,
                    point.seed,
                    pair.predicted.point.seed,
                    figure.name,
                    figure.get(pair.measured.metrics),
                    figure.get(pair.predicted.metrics),
                    error_percent(pair, figure),
                    *_ends(interval),
                    None if interval is None else pair.predicted.settings.get(COVERS),
                    spread.count,
                    spread.mean,
                    spread.cv_percent,
                    spread.half_width_percent,
                    len(group.pairs),
                    group.error_percent(figure),
                    group.noise_percent(figure),
                    pair.measured.metrics.num_failed,
                    pair.predicted.metrics.num_failed,
                    pair.measured.hardware,
                    differences,
                    notes,
                )
            )
    return csv_text(_HEADER, rows)


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)
