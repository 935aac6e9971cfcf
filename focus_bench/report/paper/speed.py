"""Throughput tables of the paper: predictions beside its published figures, marked as such.

Takes rows as they come; which settings a table has, and why figures differ, is said by the caller.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from focus_bench.core.config import PointConfig
from focus_bench.report import formats
from focus_bench.report.captions import data_line, plain_lines
from focus_bench.report.compare import pair_results
from focus_bench.report.distribution import ratio
from focus_bench.report.export import Cell
from focus_bench.report.figures.theme import policy_sign
from focus_bench.report.paper.published import SOURCE
from focus_bench.report.paper.published_speed import PublishedSpeed
from focus_bench.report.paper.quality import PaperColumn, PaperTable
from focus_bench.report.results import PointResult

RATIO, THROUGHPUT = "processed_per_decoded", "output_throughput"


@dataclass(frozen=True, kw_only=True)
class SpeedRow:
    """One setting: its data set and hardware, what was predicted (None: it failed), what was
    measured on such hardware (None: nothing), the predicted baseline that its speed-up is over,
    what was predicted of Fast-dLLM v2 there (None: the part has it not), and what the paper prints
    of it.

    `fitted`: the figures, of RATIO and THROUGHPUT, whose published value went into the prediction.
    `host_step_s`: host seconds of a step that the prediction hides behind the device's, None where
    no host profile is assumed.
    """

    dataset: str
    hardware: str
    point: PointConfig
    result: PointResult | None
    baseline: PointResult | None
    published: PublishedSpeed
    fitted: frozenset[str] = frozenset()
    host_step_s: float | None = None
    measured: PointResult | None = None
    fast_dllm: PointResult | None = None

    @property
    def speedup(self) -> float | None:
        """Predicted throughput over the predicted baseline's."""
        return self._times_as_fast_as(self.baseline)

    @property
    def over_fast_dllm(self) -> float | None:
        """Predicted throughput over what was predicted of Fast-dLLM v2."""
        return self._times_as_fast_as(self.fast_dllm)

    def _times_as_fast_as(self, other: PointResult | None) -> float | None:
        if self.result is None or other is None:
            return None
        own, base = self.result.metrics.output_throughput, other.metrics.output_throughput
        return None if own is None or not base else own / base

    @property
    def throughput_host_added(self) -> float | None:
        """Tokens per second if the host's seconds came on top of the device's in every step: the
        other end of what the assumption can mean. All requests are there from the start, so that
        steps fill the run.
        """
        if self.result is None or self.host_step_s is None:
            return None
        metrics = self.result.metrics
        device_s = metrics.duration_s * (1.0 - (metrics.step_shares.host or 0.0))
        added_s = metrics.step_time_s.count * self.host_step_s
        return ratio(metrics.total_output_tokens, device_s + added_s)

    def over_published(self, figure: str) -> float | None:
        """Predicted over published; None where either is missing or the value was fitted to."""
        published = getattr(self.published, figure)
        if self.result is None or published is None or figure in self.fitted:
            return None
        predicted = getattr(self.result.metrics, figure)
        return None if predicted is None else ratio(predicted, published)


def policy_name(point: PointConfig) -> str:
    """The policy's short name, which says where a row is our model of someone else's engine."""
    decode = point.decode
    is_model_of_theirs = decode.policy == "fast-dllm-v2" and point.scheduler.kind == "static"
    return policy_sign(decode.policy).short + (" (our model)" if is_model_of_theirs else "")


def speed_table(
    name: str, title: str, rows: Sequence[SpeedRow], notes: Sequence[str], *, model: str
) -> PaperTable:
    """The table of a part; `notes` stand above it, behind what the predictions rest on; `model`:
    what the paper calls the model, or the models.
    """
    results = [row.result for row in rows if row.result is not None]
    if name == "table5":
        columns = [
            *_name_columns(rows),
            *_figure_columns(RATIO, rows),
            PaperColumn(key="tokens_per_step", heading="pred.\ntok/step", show=_fixed),
            *_hidden((*_figure_keys(THROUGHPUT), *_SPEED_KEYS)),
        ]
    else:
        has_host = any(row.host_step_s is not None for row in rows)
        is_narrow = all(row.published.output_throughput is None for row in rows)
        has_baseline = any(row.baseline is not None for row in rows)
        has_fast_dllm = any(row.fast_dllm is not None for row in rows)
        columns = [
            *_name_columns(rows),
            *_figure_columns(THROUGHPUT, rows),
            PaperColumn(
                key="throughput_host_added",
                heading="host added\ntok/s" if has_host else "",
                show=_number,
            ),
            PaperColumn(
                key="speedup", heading="x base\npred." if has_baseline else "", show=_factor
            ),
            PaperColumn(
                key="over_fast_dllm_v2",
                heading="x fast-dLLM\npred." if has_fast_dllm else "",
                show=_factor,
            ),
            PaperColumn(key=RATIO, heading="pred.\nproc./dec.", show=_fixed),
            PaperColumn(key="step_time_s", heading="step\nmean", show=_seconds),
            PaperColumn(key="host_share", heading="host\nshare" if is_narrow else "", show=_share),
            *_hidden((*_figure_keys(RATIO)[1:], "tokens_per_step")),
        ]
    columns += _hidden(_CSV_ONLY)
    lines = [
        title,
        *basis_lines(results),
        *notes,
        f"published: {SOURCE}, {model}; fitted: the published value went into the prediction, so "
        "it is no test of it",
    ]
    return PaperTable(
        name=name,
        lines=tuple(lines),
        columns=tuple(columns),
        rows=tuple(_cells(row) for row in rows),
    )


_CSV_ONLY = (
    *("num_requests", "max_new_tokens", "scheduler", "steps_per_round", "host_step_s"),
    *("source", "published_source", "measured_on", "point_hash", "notes"),
)
_SPEED_KEYS = (
    *("throughput_host_added", "speedup", "over_fast_dllm_v2"),
    *("step_time_s", "host_share"),
)
_HEADINGS = {RATIO: "proc./dec.", THROUGHPUT: "tok/s"}


def basis_lines(results: Sequence[PointResult]) -> list[str]:
    """What was simulated and what it rests on, each once."""
    said = dict.fromkeys(
        f"predicted: {r.point.engine.model} on {r.hardware}, {r.point.workload.num_prompts:,} "
        f"requests, at most {r.point.workload.max_new_tokens:,} new tokens"
        for r in results
    )
    data = dict.fromkeys(data_line(r.provenance) for r in results)
    return [*said, *data, *plain_lines(pair_results(results))]


def _name_columns(rows: Sequence[SpeedRow]) -> list[PaperColumn]:
    """Policy always, the others where they vary; all of them in the CSV."""
    names = (
        ("hardware", "hardware", [row.hardware for row in rows]),
        ("dataset", "data set", [row.dataset for row in rows]),
        ("policy", "policy", [None, ""]),
        ("model", "model", [row.point.engine.model for row in rows]),
        ("batch_size", "batch", [row.point.scheduler.batch_size for row in rows]),
        ("block_length", "B", [row.point.decode.block_length for row in rows]),
        ("alpha", "alpha", [row.point.decode.alpha for row in rows]),
    )
    return [
        PaperColumn(key=key, heading=heading if len(set(values)) > 1 else "", is_name=True)
        for key, heading, values in names
    ]


def _figure_columns(figure: str, rows: Sequence[SpeedRow]) -> list[PaperColumn]:
    """Predicted, published, and how they stand to each other where anything is published."""
    heading = _HEADINGS[figure]
    show = _number if figure == THROUGHPUT else _fixed
    keys = _figure_keys(figure)
    predicted = PaperColumn(key=keys[0], heading=f"pred.\n{heading}", show=show)
    is_measured = any(row.measured is not None for row in rows)
    measured = PaperColumn(
        key=keys[4], heading=f"meas.\n{heading}" if is_measured else "", show=show
    )
    if all(getattr(row.published, figure) is None for row in rows):
        return [predicted, measured, *_hidden(keys[1:4])]
    return [
        predicted,
        measured,
        PaperColumn(key=keys[1], heading=f"publ.\n{heading}", show=show),
        PaperColumn(key=keys[2], heading="pred./\npubl.", show=_fixed),
        PaperColumn(key=keys[3], heading="publ.\nvalue", show=_text),
    ]


def _figure_keys(figure: str) -> tuple[str, ...]:
    return (
        *(figure, f"published_{figure}", f"{figure}_over_published", f"{figure}_is"),
        f"measured_{figure}",
    )


def _hidden(keys: Sequence[str]) -> list[PaperColumn]:
    """Columns of the CSV only."""
    return [PaperColumn(key=key) for key in keys]


def _cells(row: SpeedRow) -> dict[str, Cell]:
    point = row.point
    cells: dict[str, Cell] = {
        "hardware": row.hardware,
        "dataset": row.dataset,
        "policy": policy_name(point),
        "batch_size": point.scheduler.batch_size,
        "block_length": point.decode.block_length,
        "alpha": point.decode.alpha if point.decode.policy == "focus" else None,
        "model": point.engine.model,
        "num_requests": point.workload.num_prompts,
        "max_new_tokens": point.workload.max_new_tokens,
        "scheduler": point.scheduler.kind,
        "steps_per_round": point.scheduler.steps_per_round,
        "point_hash": point.hash(),
        "speedup": row.speedup,
        "over_fast_dllm_v2": row.over_fast_dllm,
        "host_step_s": row.host_step_s,
        "throughput_host_added": row.throughput_host_added,
    }
    for figure in (RATIO, THROUGHPUT):
        published = getattr(row.published, figure)
        _, of_paper, over, what, measured = _figure_keys(figure)
        if row.measured is not None:
            cells[measured] = getattr(row.measured.metrics, figure)
            cells["measured_on"] = row.measured.hardware
        cells[of_paper] = published
        cells[over] = row.over_published(figure)
        if published is not None:
            cells[what] = "fitted" if figure in row.fitted else "beside"
            cells["published_source"] = SOURCE
    if row.result is None:
        return cells
    metrics = row.result.metrics
    return cells | {
        RATIO: metrics.processed_per_decoded,
        THROUGHPUT: metrics.output_throughput,
        "tokens_per_step": metrics.tokens_per_step,
        "step_time_s": metrics.step_time_s.mean,
        "host_share": metrics.step_shares.host,
        "source": row.result.source,
        "notes": "; ".join(row.result.all_notes),
    }


def _text(cell: Cell) -> str:
    return formats.UNDEFINED if cell is None else str(cell)


def _value(cell: Cell) -> float | None:
    return None if cell is None else float(cell)


def _number(cell: Cell) -> str:
    return formats.number(_value(cell))


def _fixed(cell: Cell) -> str:
    return formats.fixed(_value(cell))


def _factor(cell: Cell) -> str:
    return formats.factor(_value(cell))


def _seconds(cell: Cell) -> str:
    return formats.seconds(_value(cell))


def _share(cell: Cell) -> str:
    return formats.share(_value(cell))
