"""The paper's quality tables and figures as lists of settings, and as plans of an evaluation.

Knows which points each part needs and what the paper reports of them; runs and renders nothing.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from focus_bench.bench.paper_speed import ALL_SPEED, SPEED_PARTS
from focus_bench.bench.quality import TaskChoice
from focus_bench.core.config import SELECTIONS, DecodeConfig, PointConfig
from focus_bench.core.errors import check_choice
from focus_bench.report.paper.published import Published, table3, table4, table6
from focus_bench.report.quality_results import QualityPlan

OBSERVED_PARTS = ("fig2", "fig3", "fig14")  # from one observed run of the baseline
QUALITY_PARTS = ("table3", "table6", "table4", "choices", "fig16")
PARTS = (*OBSERVED_PARTS, *QUALITY_PARTS)  # in the order in which they run: cheap and vital first
ALL_QUALITY = "all-quality"

DEFAULT_THRESHOLD = 0.9
PAPER_THRESHOLD = 0.8  # of FOCUS in the paper's Table 6
RETAINS = (2, 4, 8)
TABLE4_THRESHOLDS = (0.9, 0.8, 0.7)
TABLE4_ALPHAS = (1.2, 1.5, 1.8)
FIG16_THRESHOLDS = (0.9, 0.8, 0.7, 0.6, 0.5)
FIG16_ALPHAS = (1.2, 1.5, 1.8, 2.1)
OBSERVED_ALPHAS = FIG16_ALPHAS


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of a part: its names in the table, how it decodes and what the paper says of it.

    `compared_with`: the setting to whose answers its answers are compared; None: to nothing.
    """

    names: tuple[str, ...]
    decode: DecodeConfig
    published: Published = field(default_factory=dict)
    compared_with: DecodeConfig | None = None


def parts_named(names: Sequence[str]) -> tuple[str, ...]:
    """Those of the parts asked for that are measured, in running order; the others are in
    `paper_speed`. Raises UsageError naming what exists of both.
    """
    known = (*PARTS, *SPEED_PARTS, ALL_QUALITY, ALL_SPEED)
    for name in names:
        check_choice("part", name, known)
    wanted = set(PARTS) if ALL_QUALITY in names else set(names)
    return tuple(part for part in PARTS if part in wanted)


def settings_of(part: str, *, block_length: int) -> tuple[Setting, ...]:
    """The rows of one of QUALITY_PARTS, in the table's order."""
    return _SETTINGS[part](_Decodes(block_length))


def distinct_decodes(parts: Iterable[str], *, block_length: int) -> tuple[DecodeConfig, ...]:
    """What has to be run for the parts, each once, in the order in which it is first needed."""
    return tuple(
        dict.fromkeys(
            decode
            for part in parts
            if part in QUALITY_PARTS
            for setting in settings_of(part, block_length=block_length)
            for decode in (setting.decode, setting.compared_with)
            if decode is not None
        )
    )


def observed_point(base: PointConfig, *, num_problems: int) -> PointConfig:
    """The baseline run that is observed for OBSERVED_PARTS."""
    return dataclasses.replace(
        base,
        decode=_Decodes(base.decode.block_length).baseline(DEFAULT_THRESHOLD),
        workload=dataclasses.replace(base.workload, num_prompts=num_problems),
    )


def plan_of(decode: DecodeConfig, base: PointConfig, task: TaskChoice) -> QualityPlan:
    """The evaluation of one setting; `base` gives model, batch and workload."""
    return QualityPlan(
        point=dataclasses.replace(base, decode=decode),
        scorer=task.scorer,
        benchmark=task.benchmark,
        metric=task.metric,
        num_fewshot=task.num_fewshot,
        chat=task.chat,
        num_runs=task.num_runs,
    )


@dataclass(frozen=True)
class _Decodes:
    """The decoding of each policy; what a policy does not read stays at its default, so that equal
    work has equal plans whatever table asks for it.
    """

    block_length: int

    def baseline(self, threshold: float) -> DecodeConfig:
        return self.plain("baseline", threshold)

    def plain(self, policy: str, threshold: float) -> DecodeConfig:
        return DecodeConfig(policy=policy, block_length=self.block_length, threshold=threshold)

    def focus(self, threshold: float, alpha: float = 1.5) -> DecodeConfig:
        return dataclasses.replace(self.plain("focus", threshold), alpha=alpha)

    def fixed(self, retain: int, select: str) -> DecodeConfig:
        decode = self.plain("focus-fixed", DEFAULT_THRESHOLD)
        return dataclasses.replace(decode, retain=retain, select=select)


def _table3(of: _Decodes) -> tuple[Setting, ...]:
    baseline = of.baseline(DEFAULT_THRESHOLD)
    rows = [
        Setting(
            names=(str(retain), select),
            decode=of.fixed(retain, select),
            published=table3(retain, select),
            compared_with=baseline,
        )
        for retain in RETAINS
        for select in SELECTIONS
    ]
    published = table4(DEFAULT_THRESHOLD, None)
    return (*rows, Setting(names=("all", "baseline"), decode=baseline, published=published))


def _table4(of: _Decodes) -> tuple[Setting, ...]:
    rows = []
    for threshold in TABLE4_THRESHOLDS:
        baseline = of.baseline(threshold)
        names = (f"{threshold:g}", "baseline", "-")
        rows.append(Setting(names=names, decode=baseline, published=table4(threshold, None)))
        rows += [
            Setting(
                names=(f"{threshold:g}", "focus", f"{alpha:g}"),
                decode=of.focus(threshold, alpha),
                published=table4(threshold, alpha),
                compared_with=baseline,
            )
            for alpha in TABLE4_ALPHAS
        ]
    return tuple(rows)


def _table6(of: _Decodes) -> tuple[Setting, ...]:
    threshold = DEFAULT_THRESHOLD
    baseline = of.baseline(threshold)

    def row(method: str, decode: DecodeConfig, published: Published) -> Setting:
        names = (method, f"{decode.threshold:g}")
        return Setting(names=names, decode=decode, published=published, compared_with=baseline)

    return (
        Setting(
            names=("Baseline", f"{threshold:g}"),
            decode=baseline,
            published=table4(threshold, None),
        ),
        row("DC", of.plain("delayed-cache", threshold), table6("delayed-cache")),
        row("DC+", of.plain("delayed-cache-neighbor", threshold), table6("delayed-cache-neighbor")),
        # The paper's row is that of Table 4 at 0.8, its default; ours at 0.9 matches the others.
        row("FOCUS", of.focus(PAPER_THRESHOLD), table4(PAPER_THRESHOLD, 1.5)),
        row("FOCUS", of.focus(threshold), table4(threshold, 1.5)),
        row("ideal", of.plain("ideal", threshold), {}),
    )


def _fig16(of: _Decodes) -> tuple[Setting, ...]:
    baselines = [
        Setting(names=("baseline", "-", f"{threshold:g}"), decode=of.baseline(threshold))
        for threshold in FIG16_THRESHOLDS
    ]
    focus = [
        Setting(names=("focus", f"{alpha:g}", f"{threshold:g}"), decode=of.focus(threshold, alpha))
        for alpha in FIG16_ALPHAS
        for threshold in FIG16_THRESHOLDS
    ]
    return (*baselines, *focus)


def _choices(of: _Decodes) -> tuple[Setting, ...]:
    rows = []
    for threshold in (DEFAULT_THRESHOLD, PAPER_THRESHOLD):
        rule = of.focus(threshold)
        others = (
            ("attention to the rightmost kept", {"attention_cover": "rightmost"}),
            ("N_avg over the sequence", {"budget_average": "sequence"}),
            ("prompt tokens refreshed", {"refresh_prompt": True}),
        )
        rows.append(Setting(names=("the rule", "focus", f"{threshold:g}"), decode=rule))
        for name, changes in others:
            decode = dataclasses.replace(rule, **changes)
            names = (name, "focus", f"{threshold:g}")
            rows.append(Setting(names=names, decode=decode, compared_with=rule))
    frozen = of.plain("delayed-cache-neighbor", DEFAULT_THRESHOLD)
    refreshed = dataclasses.replace(frozen, refresh_prompt=True)
    end = (frozen.policy, f"{DEFAULT_THRESHOLD:g}")
    rows.append(Setting(names=("the rule", *end), decode=frozen))
    names = ("prompt tokens refreshed", *end)
    rows.append(Setting(names=names, decode=refreshed, compared_with=frozen))
    return tuple(rows)


_SETTINGS = {
    "table3": _table3,
    "table4": _table4,
    "table6": _table6,
    "fig16": _fig16,
    "choices": _choices,
}
