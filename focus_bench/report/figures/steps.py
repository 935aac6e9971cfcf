"""Figures of decode steps: what a step decodes, how many a block takes, where its time goes.

Takes results sorted into facets; draws nothing.
"""

from collections.abc import Callable, Sequence

from focus_bench.report.figures.groups import BATCH, Plotted, facets, joined, one_batch
from focus_bench.report.figures.panels import (
    AbsentFigure,
    Bar,
    Figure,
    LinePanel,
    Panel,
    Segment,
    Series,
    StackPanel,
)
from focus_bench.report.figures.theme import STEP_PARTS

_TAIL = 0.002  # share of a distribution that the end of the axis may cut off
_SOURCES = "Solid lines are measured, dashed ones predicted."


def tokens_per_step(points: Sequence[Plotted]) -> Figure | AbsentFigure:
    """How many positions a decode step of a sequence decodes."""
    return _distributions(
        points,
        name="tokens-per-step",
        title="Tokens per step",
        text="How many positions a decode step of one sequence decodes (commit passes left out): "
        f"share of the steps. {_SOURCES}",
        x_label="positions decoded in a step",
        y_label="share of steps",
        counts=lambda p: p.result.metrics.tokens_per_step_counts,
    )


def steps_per_block(points: Sequence[Plotted]) -> Figure | AbsentFigure:
    """How many decode steps a block takes."""
    return _distributions(
        points,
        name="steps-per-block",
        title="Steps per block",
        text=f"How many decode steps a block takes until it has no mask left: share of the blocks. "
        f"{_SOURCES}",
        x_label="decode steps of a block",
        y_label="share of blocks",
        counts=lambda p: p.result.metrics.steps_per_block_counts,
    )


def step_time(points: Sequence[Plotted]) -> Figure | AbsentFigure:
    """Mean time of a step by its parts."""
    title = "Where a step's time goes"
    panels: list[Panel] = []
    for facet in facets(points, BATCH):
        bars = [bar for point in _by_batch(facet.members) if (bar := _bar(point)) is not None]
        if bars:
            panels.append(
                StackPanel(title=facet.title, x_label="ms per step (mean)", bars=tuple(bars))
            )
    if not panels:
        return AbsentFigure(title=title, reason="no point has timed steps")
    return Figure(
        name="step-time",
        title=title,
        text="Mean time of an engine step: prefill chunks; prefix (layers 0 and 1 up to its K/V "
        "write); eviction (importance, selection, compaction); suffix (the other layers); head "
        "(logits, sampling, unmasking); swap (copies of preempted requests); host (the rest). "
        "Each bar is a policy at a batch size; percentages are shares of it. Thin bars are "
        "predicted.",
        panels=tuple(panels),
    )


def _by_batch(members: Sequence[Plotted]) -> list[Plotted]:
    return sorted(members, key=lambda p: p.batch_size)


def _bar(point: Plotted) -> Bar | None:
    metrics = point.result.metrics
    mean_s, shares = metrics.step_time_s.mean, metrics.step_shares
    if mean_s is None or shares.host is None:
        return None
    segments = (
        Segment(name=part, role=f"part-{part}", value=1e3 * mean_s * (getattr(shares, part) or 0.0))
        for part in STEP_PARTS
    )
    return Bar(
        label=f"{point.series} \u00b7 {point.batch_size}",
        segments=tuple(segments),
        is_predicted=point.is_predicted,
    )


def _distributions(
    points: Sequence[Plotted],
    *,
    name: str,
    title: str,
    text: str,
    x_label: str,
    y_label: str,
    counts: Callable[[Plotted], tuple[int, ...]],
) -> Figure | AbsentFigure:
    known = [p for p in points if sum(counts(p))]
    if not known:
        return AbsentFigure(title=title, reason="no point counted its decode steps")
    panels: list[Panel] = []
    for facet in facets(known, BATCH):
        members = one_batch(facet.members)
        series = tuple(_shares(point, counts(point)) for point in members)
        batch = f"batch {members[0].batch_size}"
        panels.append(
            LinePanel(
                title=joined(facet.title, batch),
                x_label=x_label,
                y_label=y_label,
                series=series,
                labels="corner",
                is_share=True,
            )
        )
    return Figure(
        name=name,
        title=title,
        text=text,
        panels=tuple(panels),
        left_out=only_one_batch(known),
    )


def only_one_batch(points: Sequence[Plotted]) -> str:
    """What is said where a panel shows one batch size; "" if there is no other."""
    if len({p.batch_size for p in points}) < 2:
        return ""
    return "One batch size of each setting is shown: the largest of those that most policies ran."


def _shares(point: Plotted, counts: tuple[int, ...]) -> Series:
    total, seen, end = sum(counts), 0, len(counts)
    for value, count in enumerate(counts):
        seen += count
        if seen >= (1 - _TAIL) * total:
            end = value + 1
            break
    first = next(i for i, count in enumerate(counts) if count)
    return Series(
        label=point.series,
        role=point.sign.role,
        marker=point.marker,
        x=tuple(float(i) for i in range(first, end)),
        y=tuple(count / total for count in counts[first:end]),
        is_predicted=point.is_predicted,
    )
