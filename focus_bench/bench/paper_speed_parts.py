"""From predictions to the throughput parts of the paper: a table and a chart each. Runs nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from focus_bench.bench.paper_parts import Part
from focus_bench.bench.paper_speed import (
    FAST_DLLM,
    MODELS,
    SPANS,
    PaperSetup,
    SpeedSetting,
    gap_reasons,
    on_paper_hardware,
    speed_settings,
)
from focus_bench.decoding.acceptance import PRESET_ALPHA, PRESET_BLOCK_LENGTH
from focus_bench.report.paper.published import SOURCE
from focus_bench.report.paper.published_speed import (
    PEAK_SPEEDUP,
    WORDS,
    PublishedSpeed,
    published_speed,
)
from focus_bench.report.paper.speed import (
    RATIO,
    THROUGHPUT,
    SpeedRow,
    basis_lines,
    policy_name,
    speed_table,
)
from focus_bench.report.plots import LineChart, Series
from focus_bench.report.results import PointResult

# The model and data set whose published ratio FOCUS's synthetic importance was fitted to.
_FITTED_FOR_FOCUS = ("sdar-8b", "sharegpt")


_Place = tuple[str, str, int, int]
"""GPU, data set, block length and batch size: what policies share."""


def _nothing_measured(setting: SpeedSetting) -> PointResult | None:
    return None


@dataclass(frozen=True, kw_only=True)
class SpeedFindings:
    """What was predicted and measured of settings, and what the predictions rest on.

    `hardware_of`: what a setting's GPU is called in results. `host_step_s`: of an assumed host
    profile; `is_host_fitted`: they came from the published throughput of the baseline at batch 1.
    """

    result_of: Callable[[SpeedSetting], PointResult | None]
    hardware_of: Callable[[SpeedSetting], str]
    is_calibrated: bool
    measured_of: Callable[[SpeedSetting], PointResult | None] = _nothing_measured
    host_step_s: float | None = None
    is_host_fitted: bool = False

    def rows(self, part: str, settings: Sequence[SpeedSetting]) -> list[SpeedRow]:
        """The settings of a part with everything that is known of them."""
        baselines = self._results_by_place(settings, "baseline")
        fast_dllm = self._results_by_place(settings, FAST_DLLM)
        return [
            SpeedRow(
                dataset=setting.dataset,
                hardware=self.hardware_of(setting),
                point=setting.point,
                result=self.result_of(setting),
                measured=self.measured_of(setting),
                baseline=baselines.get(_place(setting)),
                fast_dllm=fast_dllm.get(_place(setting)),
                published=_published(part, setting),
                fitted=_fitted(part, setting, self.is_host_fitted),
                host_step_s=self.host_step_s,
            )
            for setting in settings
        ]

    def _results_by_place(
        self, settings: Sequence[SpeedSetting], policy: str
    ) -> "dict[_Place, PointResult | None]":
        return {_place(s): self.result_of(s) for s in settings if _policy(s) == policy}


def speed_part(
    part: str,
    setup: PaperSetup,
    findings: SpeedFindings,
    *,
    gpus: Sequence[str] = (),
    lines: Sequence[str] = (),
) -> Part:
    """One of SPEED_PARTS; `gpus`: others than the paper's; `lines`: more to be said above."""
    rows = findings.rows(part, speed_settings(part, setup, gpus=gpus))
    reasons = gap_reasons(part, setup, is_calibrated=findings.is_calibrated)
    notes = [*_findings(part, rows), *reasons, *lines]
    table = speed_table(part, SPANS[part].title, rows, notes, model=setup.published_models(part))
    found = [row.result for row in rows if row.result is not None]
    footer = "; ".join((*basis_lines(found), f"published: {SOURCE}"))
    return Part(table=table, chart=_chart(part, rows, footer))


def _policy(setting: SpeedSetting) -> str:
    return setting.point.decode.policy


def _place(setting: SpeedSetting) -> _Place:
    point = setting.point
    size = point.scheduler.batch_size
    return setting.gpu, setting.dataset, point.decode.block_length, size


def _published(part: str, setting: SpeedSetting) -> PublishedSpeed:
    model = MODELS.get(setting.point.engine.model)  # nothing is printed of Fast-dLLM v2's own
    if model is None or not on_paper_hardware(part, setting.gpu):
        return PublishedSpeed()
    return published_speed(
        part,
        model=model,
        policy=_policy(setting),
        dataset=setting.dataset,
        batch=setting.point.scheduler.batch_size,
    )


def _fitted(part: str, setting: SpeedSetting, is_host_fitted: bool) -> frozenset[str]:
    """The figures whose published value went into the prediction."""
    decode = setting.point.decode
    of_baseline = decode.policy == "baseline"
    fitted = set()
    at_fit = decode.block_length == PRESET_BLOCK_LENGTH and decode.alpha == PRESET_ALPHA
    if at_fit and (
        of_baseline or (setting.point.engine.model, setting.dataset) == _FITTED_FOR_FOCUS
    ):
        fitted.add(RATIO)
    if part == "table7" and of_baseline and is_host_fitted:
        fitted.add(THROUGHPUT)
    return frozenset(fitted)


def _findings(part: str, rows: Sequence[SpeedRow]) -> list[str]:
    """The largest speed-ups of FOCUS predicted, beside what the paper says of the figure."""
    lines: list[str] = []
    if part == "table5":
        return lines
    if any(row.host_step_s is not None for row in rows):
        lines.append(
            "host added: the host's time comes on top of the device's in every step instead of "
            "being hidden by it (FOCUS gives up running several forwards in a round, E.3.4)"
        )
    if part != "table7":
        lines += _largest(part, "baseline", rows)
        lines += _largest(part, FAST_DLLM, rows)
    if part in WORDS:
        lines.append(f"published, in words: {WORDS[part]}")
    return lines


def _largest(part: str, over: str, rows: Sequence[SpeedRow]) -> list[str]:
    """The largest speed-up of FOCUS over "baseline" or FAST_DLLM; nothing where either lacks."""
    known = [
        (factor, row.point)
        for row in rows
        for factor in (row.speedup if over == "baseline" else row.over_fast_dllm,)
        if row.point.decode.policy == "focus" and factor is not None
    ]
    if not known:
        return []
    best, point = max(known, key=lambda pair: pair[0])
    where = f"batch {point.scheduler.batch_size}, B = {point.decode.block_length}"
    (other,) = {policy_name(r.point) for r in rows if r.point.decode.policy == over}
    beside = "" if over == "baseline" else f" over {other}"
    peak = PEAK_SPEEDUP.get(part)
    published = ""
    if peak is not None and peak.over == over:
        published = f"; published: up to {peak.factor:g}x ({peak.where})"
    return [f"largest speed-up{beside} predicted: {best:.2f}x ({where}){published}"]


def _chart(part: str, rows: Sequence[SpeedRow], footer: str) -> LineChart:
    if len(SPANS[part].batches) == 1:
        return _chart_by_dataset(part, rows, footer)
    batches = sorted({row.point.scheduler.batch_size for row in rows})
    series = []
    for label, members in _grouped(rows).items():
        places = [float(row.point.scheduler.batch_size) for row in members]
        series += _both(label, members, places, THROUGHPUT)
    return LineChart(
        title=SPANS[part].title,
        x_label="batch size",
        y_label="output tokens per second",
        series=tuple(series),
        ticks=tuple((float(batch), str(batch)) for batch in batches),
        from_zero=True,
        footer=footer,
    )


def _chart_by_dataset(part: str, rows: Sequence[SpeedRow], footer: str) -> LineChart:
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    figure = RATIO if part == "table5" else THROUGHPUT
    series = []
    for label, members in _grouped(rows, apart=("dataset",)).items():
        places = [float(datasets.index(row.dataset)) for row in members]
        series += _both(label, members, places, figure)
    return LineChart(
        title=SPANS[part].title,
        x_label="",
        y_label="processed / decoded" if part == "table5" else "output tokens per second",
        series=tuple(series),
        ticks=tuple((float(place), name) for place, name in enumerate(datasets)),
        is_joined=False,
        from_zero=True,
        footer=footer,
    )


def _grouped(rows: Sequence[SpeedRow], *, apart: Sequence[str] = ()) -> dict[str, list[SpeedRow]]:
    """Rows by policy and whatever else varies beside batch size and what is named in `apart`."""
    words = [_words(row) for row in rows]
    varying = [name for name in words[0] if len({w[name] for w in words if w[name]}) > 1]
    shown = ["policy", *(name for name in varying if name not in ("policy", *apart))]
    groups: dict[str, list[SpeedRow]] = {}
    for row, word in zip(rows, words, strict=True):
        label = " ".join(word[name] for name in shown if word[name])
        groups.setdefault(label, []).append(row)
    return groups


def _words(row: SpeedRow) -> dict[str, str]:
    decode = row.point.decode
    return {
        "policy": policy_name(row.point),
        "model": row.point.engine.model,
        "alpha": f"alpha {decode.alpha:g}" if decode.policy == "focus" else "",
        "B": f"B {decode.block_length}",
        "dataset": row.dataset,
        "hardware": row.hardware,
    }


def _both(
    label: str, rows: Sequence[SpeedRow], places: Sequence[float], figure: str
) -> list[Series]:
    """What was predicted, measured and is published of one line; those without a value are left
    out.
    """

    def of(result: PointResult | None) -> float | None:
        return None if result is None else getattr(result.metrics, figure)

    values = {
        "predicted": [of(row.result) for row in rows],
        "measured": [of(row.measured) for row in rows],
        "published": [getattr(row.published, figure) for row in rows],
    }
    lines = []
    for source, column in values.items():
        known = [(x, y) for x, y in zip(places, column, strict=True) if y is not None]
        if known:
            x, y = zip(*known, strict=True)
            lines.append(Series(label=f"{label}, {source}", x=x, y=y))
    return lines
