"""Distribution functions of latencies over requests. Takes records and results; draws nothing."""

from collections.abc import Mapping, Sequence

import numpy as np

from focus_bench.report.figures.groups import (
    BATCH,
    Plotted,
    facets,
    joined,
    one_batch,
)
from focus_bench.report.figures.panels import AbsentFigure, Figure, LinePanel, Panel, Series
from focus_bench.report.figures.records import FloatArray, Key
from focus_bench.report.figures.steps import only_one_batch

_NAMES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "e2e_s": "end-to-end time",
}
_MOST_POINTS = 160  # of one line: more than that a panel cannot show


def latency(
    points: Sequence[Plotted], latencies: Mapping[Key, Mapping[str, FloatArray]]
) -> Figure | AbsentFigure:
    """TTFT, TPOT and E2E of the finished requests of one batch size of each setting."""
    title = "Latency of requests"
    known = [p for p in points if p.result.key in latencies]
    panels: list[Panel] = []
    for facet in facets(known, BATCH):
        members = one_batch(facet.members)
        for name, words in _NAMES.items():
            series = [
                _distribution(point, values)
                for point in members
                if ((values := latencies[point.result.key][name]) > 0).any()
            ]
            if series:
                panels.append(
                    LinePanel(
                        title=joined(words, facet.title, f"batch {members[0].batch_size}"),
                        x_label=words,
                        y_label="share of requests",
                        series=tuple(series),
                        x_scale="log",
                        labels="corner",
                        is_share=True,
                        is_time=True,
                    )
                )
    if not panels:
        reason = "no requests.csv with finished requests lies beside the results"
        return AbsentFigure(title=title, reason=reason)
    return Figure(
        name="latency",
        title=title,
        text="The share of finished requests that took at most this long (from arrival; time per "
        "output token behind the first one); farther left is better. Solid lines are measured, "
        "dashed ones predicted.",
        panels=tuple(panels),
        left_out=only_one_batch(known),
    )


def _distribution(point: Plotted, values: FloatArray) -> Series:
    # Tokens that all arrive in one step take no time; a logarithmic axis starts behind those.
    zeros = int(np.count_nonzero(values <= 0))
    ordered = np.sort(values)[zeros:]
    shares = np.arange(zeros + 1, len(values) + 1) / len(values)
    if len(ordered) > _MOST_POINTS:
        places = np.unique(np.linspace(0, len(ordered) - 1, _MOST_POINTS).round().astype(int))
        ordered, shares = ordered[places], shares[places]
    return Series(
        label=point.series,
        role=point.sign.role,
        marker=point.marker,
        x=(float(ordered[0]), *(float(v) for v in ordered)),
        y=(zeros / len(values), *(float(s) for s in shares)),
        join="steps",
        is_predicted=point.is_predicted,
    )
