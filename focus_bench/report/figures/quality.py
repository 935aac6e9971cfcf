"""Accuracy against speed: what each way of decoding answers right, and how fast it does.

Takes results of eval; draws nothing.
"""

from collections.abc import Sequence

from focus_bench.report.figures.panels import AbsentFigure, Figure, LinePanel, Panel, Series
from focus_bench.report.figures.theme import policy_order, policy_sign
from focus_bench.report.quality_results import QualityResult, reads_alpha, reads_retain


def quality(results: Sequence[QualityResult]) -> Figure | AbsentFigure:
    """Score with its interval against output throughput, a panel for each task."""
    title = "Quality against throughput"
    known = [
        r
        for r in results
        if r.accuracy.value is not None and r.decoding.metrics.output_throughput is not None
    ]
    if not known:
        return AbsentFigure(title=title, reason="no folder of eval with scores is among them")
    panels: list[Panel] = []
    groups: dict[tuple[str, str, str, str], list[QualityResult]] = {}
    for result in sorted(known, key=lambda r: policy_order(r.plan.point.decode.policy)):
        engine = result.plan.point.engine
        key = (result.plan.task, result.plan.metric, engine.model, result.hardware)
        groups.setdefault(key, []).append(result)
    for key, group in groups.items():
        names = [
            value
            for place, value in enumerate(key)
            if place == 0 or len({other[place] for other in groups}) > 1
        ]
        panels.append(_panel(", ".join(names), group))
    return Figure(
        name="quality",
        title=title,
        text="Share of problems answered right, with its 95 % binomial interval, against the "
        "output throughput while answering; higher and farther right is better.",
        panels=tuple(panels),
    )


def _panel(title: str, results: Sequence[QualityResult]) -> LinePanel:
    series = []
    for result in results:
        policy = result.plan.point.decode.policy
        sign, value = policy_sign(policy), result.accuracy.value or 0.0
        name = " ".join([sign.short, *_variant(result, results)])
        low, high = result.ci95 or (value, value)
        series.append(
            Series(
                label=name,
                role=sign.role,
                marker=sign.marker,
                x=(result.decoding.metrics.output_throughput or 0.0,),
                y=(value,),
                low=(low,),
                high=(high,),
                join="none",
                names=(name,),
            )
        )
    return LinePanel(
        title=title,
        x_label="output tokens/s",
        y_label="problems answered right",
        series=tuple(series),
        labels="last",
        is_share=True,
        from_zero=False,
    )


def _variant(result: QualityResult, among: Sequence[QualityResult]) -> list[str]:
    """What tells a result apart from the others of its policy."""
    point = result.plan.point
    decode = point.decode
    peers = [r.plan.point for r in among if r.plan.point.decode.policy == decode.policy]
    parts = []
    if reads_alpha(decode.policy) and len({p.decode.alpha for p in peers}) > 1:
        parts.append(f"\u03b1{decode.alpha:g}")
    if reads_retain(decode.policy):
        parts += [f"K{decode.retain}"] if len({p.decode.retain for p in peers}) > 1 else []
        parts += [decode.select] if len({p.decode.select for p in peers}) > 1 else []
    if len({p.decode.threshold for p in peers}) > 1:
        parts.append(f"{decode.threshold:g}")
    if len({p.decode.block_length for p in peers}) > 1:
        parts.append(f"B{decode.block_length}")
    if len({p.decode.unmasking_strategy for p in peers}) > 1:
        parts.append(decode.unmasking_strategy.removeprefix("low_confidence_"))
    if len({p.scheduler.batch_size for p in peers}) > 1:
        parts.append(f"batch {point.scheduler.batch_size}")
    return parts
