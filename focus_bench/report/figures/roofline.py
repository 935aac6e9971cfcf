"""The roofline: how much arithmetic decoding does for each byte, and how fast it gets it done.

FLOPs and bytes are those of core.costs (Williams et al. 2009 for the figure); draws nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from focus_bench.core.costs import decode_ops, total_bytes, total_flops
from focus_bench.core.errors import UsageError
from focus_bench.core.hardware import Hardware, sheet_of_device
from focus_bench.core.model_folder import resolve_model, spec_on_device
from focus_bench.core.model_spec import ModelSpec
from focus_bench.report.figures.groups import BATCH, Plotted, facets, series_of
from focus_bench.report.figures.panels import (
    AbsentFigure,
    Figure,
    Guide,
    LinePanel,
    Panel,
    Series,
)
from focus_bench.report.figures.records import STEP_COLUMNS, FloatArray, Key, step_totals
from focus_bench.report.results import FOR

_STEPS = 64  # of one point, evenly spread, whose cost is counted
_COLUMN = {name: place for place, name in enumerate(STEP_COLUMNS)}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A point's decode forwards (layers and head, without prefill and host) in a roofline.

    `intensity`: FLOP for each byte that a fused implementation must move; `rate`: FLOP/s attained.
    """

    intensity: float
    rate: float


def places(points: Sequence[Plotted], steps: Mapping[Key, FloatArray]) -> dict[Key, Place]:
    """Where points stand, by key; without those of which nothing is known."""
    found: dict[Key, Place] = {}
    for point in points:
        rows = steps.get(point.result.key)
        place = None if rows is None else _place(point, rows)
        if place is not None:
            found[point.result.key] = place
    return found


def sheet_of(point: Plotted) -> Hardware | None:
    """The data sheet of the hardware that a point was measured on or is predicted for."""
    named = sheet_of_device(point.settings["hardware"])
    if named is not None:
        return named
    return sheet_of_device(point.result.settings.get(f"{FOR}device", ""))


def ridge_of(sheet: Hardware) -> float:
    """FLOP per byte at which a data sheet's memory and compute limits meet."""
    return sheet.dense_16bit_flops / sheet.memory_bandwidth


def roofline(
    points: Sequence[Plotted],
    steps: Mapping[Key, FloatArray],
    *,
    marks: Mapping[Key, str] | None = None,
) -> Figure | AbsentFigure:
    """Attained FLOP/s of the decode forwards against their FLOP per byte; `marks`: words beside
    single points, by key.
    """
    title = "Roofline of decoding"
    words = marks or {}
    placed = places(points, steps)
    if not placed:
        reason = "no steps.csv of a model whose shape is known lies beside the results"
        return AbsentFigure(title=title, reason=reason)
    known = [p for p in points if p.result.key in placed]
    panels: list[Panel] = []
    for facet in facets(known, BATCH):
        sheet = sheet_of(facet.members[0])
        lines = []
        for (name, _), group in series_of(facet.members).items():
            own = [placed[p.result.key] for p in group]
            said = [words.get(p.result.key, "") for p in group]
            names = [*said[:-1], f"{name}: {said[-1]}" if said[-1] else name]
            lines.append(
                Series(
                    label=name,
                    role=group[0].sign.role,
                    marker=group[0].marker,
                    x=tuple(place.intensity for place in own),
                    y=tuple(place.rate for place in own),
                    is_predicted=group[0].is_predicted,
                    names=tuple(names),
                )
            )
        # Of a series that was measured and predicted, the measurement carries the name.
        measured = {line.label for line in lines if not line.is_predicted}
        panels.append(
            LinePanel(
                title=facet.title,
                x_label="FLOP per byte moved",
                y_label="FLOP/s attained",
                series=tuple(
                    line if not line.is_predicted or line.label not in measured else _nameless(line)
                    for line in lines
                ),
                x_scale="log",
                y_scale="log",
                labels="last",
                guides=() if sheet is None else _roof(sheet, [x for s in lines for x in s.x]),
            )
        )
    return Figure(
        name="roofline",
        title=title,
        text="The decode forwards of a point (layers and head, without prefill and host): the "
        "FLOP/s that they attain against the FLOP they do for each byte that a fused "
        "implementation must move. A line goes from the smallest batch to the largest, where its "
        "name stands. Counted from the totals of each step, with its rows taken to be alike; the "
        "roof is the data sheet's, and absent for hardware without one.",
        panels=tuple(panels),
    )


def _nameless(series: Series) -> Series:
    return replace(series, names=("",) * len(series.x))


def _place(point: Plotted, rows: FloatArray) -> Place | None:
    """From the rows of a point's steps; None where nothing is known of them."""
    try:
        spec = _spec(point)
    except UsageError:
        return None
    decoding = rows[(rows[:, _COLUMN["num_rows"]] > 0) & ~np.isnan(rows).any(axis=1)]
    if not len(decoding):
        return None
    chosen = np.unique(np.linspace(0, len(decoding) - 1, _STEPS).round().astype(int))
    flops = moved = seconds = 0.0
    for row in decoding[chosen]:
        (forward,) = step_totals(row).shape(point.result.point.decode.block_length).forwards
        ops = tuple(decode_ops(spec, forward))
        flops += total_flops(ops)
        moved += total_bytes(ops)
        parts = ("prefill_s", "swap_s", "host_s")
        seconds += row[_COLUMN["duration_s"]] - sum(row[_COLUMN[part]] for part in parts)
    if not moved > 0 or not seconds > 0:
        return None
    return Place(intensity=flops / moved, rate=flops / seconds)


def _spec(point: Plotted) -> ModelSpec:
    config = point.result.point.engine
    kind = "cpu" if point.settings["hardware"].startswith("cpu") else "cuda"
    return spec_on_device(resolve_model(config), kind, dtype=config.dtype)


def _roof(sheet: Hardware, intensities: Sequence[float]) -> tuple[Guide, ...]:
    """The part of the data sheet's roof above the points."""
    ridge = ridge_of(sheet)
    low, high = 0.6 * min(intensities), 1.6 * max(intensities)
    memory = f"{sheet.memory_bandwidth / 1e12:.3g} TB/s"
    compute = f"{sheet.dense_16bit_flops / 1e12:.4g} TFLOP/s"
    if low >= ridge:
        peak = sheet.dense_16bit_flops
        return (Guide(name=compute, x=(low, high), y=(peak, peak)),)
    end = min(high, ridge)
    slope = Guide(
        name=memory, x=(low, end), y=(low * sheet.memory_bandwidth, end * sheet.memory_bandwidth)
    )
    if high <= ridge:
        return (slope,)
    peak = sheet.dense_16bit_flops
    return (slope, Guide(name=compute, x=(ridge, high), y=(peak, peak)))
