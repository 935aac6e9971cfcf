"""What the figures show: the numbers of the results, sorted into panels; nothing is drawn here."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from figure_samples import data_of, quality_result, sweep, write_folder, write_quality
from report_samples import make_point, make_result

from focus_bench.core.config import EngineConfig, PointConfig
from focus_bench.core.costs import DecodeShape, decode_ops, total_bytes, total_flops
from focus_bench.core.errors import UsageError
from focus_bench.core.hardware import HARDWARE
from focus_bench.core.model_spec import PRESETS
from focus_bench.report.figures.catalogue import all_figures, rests_on
from focus_bench.report.figures.data import load_report
from focus_bench.report.figures.describe import describe, numbers
from focus_bench.report.figures.groups import BATCH, facets, plotted
from focus_bench.report.figures.latency import latency
from focus_bench.report.figures.panels import (
    MAX_PANELS,
    AbsentFigure,
    Figure,
    HeatPanel,
    LinePanel,
    RowPanel,
    StackPanel,
)
from focus_bench.report.figures.quality import quality
from focus_bench.report.figures.records import STEP_COLUMNS
from focus_bench.report.figures.roofline import roofline
from focus_bench.report.figures.steps import step_time, steps_per_block, tokens_per_step
from focus_bench.report.figures.throughput import (
    processed_per_decoded,
    speedup_by_alpha,
    speedup_by_block_length,
    throughput,
)
from focus_bench.report.results import PointResult
from focus_bench.report.spread import Spread


def filled(figure: Figure | AbsentFigure) -> Figure:
    assert isinstance(figure, Figure), figure
    return figure


def results_of(points: list[PointConfig]) -> list[PointResult]:
    return [
        make_result(p, output_tokens=100 * p.scheduler.batch_size * (1 + ("f" in p.decode.policy)))
        for p in points
    ]


# -- panels and series -----------------------------------------------------------------------------


def test_points_share_a_panel_unless_a_setting_differs() -> None:
    points = plotted(results_of(sweep(blocks=(16, 32, 4), alphas=(1.2, 1.5))))
    panels = facets(points, BATCH)
    assert [panel.title for panel in panels] == ["B 4", "B 16", "B 32"]
    assert {p.series for p in panels[0].members} == {
        "baseline",
        "focus \u03b11.2",
        "focus \u03b11.5",
    }
    assert len(panels[0].members) == 6


def test_one_panel_has_no_title_and_few_settings_tell_panels_apart() -> None:
    point = make_point()
    other = dataclasses.replace(
        point,
        engine=EngineConfig(model="sdar-8b", load_format="dummy"),
        workload=dataclasses.replace(point.workload, num_prompts=7, max_new_tokens=9),
    )
    (one,) = facets(plotted([make_result(point)]), BATCH)
    assert one.title == ""
    titles = [facet.title for facet in facets(plotted([make_result(p) for p in (point, other)]))]
    assert titles == ["dummy-tiny", "sdar-8b"]


def test_a_prediction_stands_beside_its_measurement_on_other_hardware() -> None:
    point, alone = make_point(batch_size=8), make_point(batch_size=16)
    results = [
        make_result(point, hardware="NVIDIA H200"),
        make_result(point, source="predicted", hardware="h200"),
        make_result(alone, source="predicted", hardware="h200"),
        make_result(alone, source="predicted", hardware="b200"),
    ]
    panels = facets(plotted(results), BATCH)
    assert [(panel.title, len(panel.members)) for panel in panels] == [
        ("NVIDIA H200", 3),
        ("b200", 1),
    ]


def test_policies_stand_in_a_fixed_order() -> None:
    shuffled = [make_result(make_point(p)) for p in ("focus", "ideal", "baseline")]
    assert [p.policy for p in plotted(shuffled)] == ["baseline", "focus", "ideal"]


# -- throughput and speed-ups ----------------------------------------------------------------------


def test_throughput_lines_hold_means_and_intervals_of_the_runs() -> None:
    runs = (400, 410, 430)
    results = [
        make_result(make_point("focus", batch_size=32), run_tokens=runs),
        make_result(make_point("focus", batch_size=8), output_tokens=200),
        make_result(make_point("focus", batch_size=8), source="predicted", output_tokens=240),
    ]
    (panel,) = filled(throughput(plotted(results))).panels
    assert isinstance(panel, LinePanel)
    measured, predicted = panel.series
    spread = Spread.of([tokens / 4.0 for tokens in runs])
    assert (measured.x, measured.y) == ((8.0, 32.0), (50.0, spread.mean))
    assert measured.low == (50.0, spread.ci95_low)
    assert measured.high == (50.0, spread.ci95_high)
    assert (predicted.x, predicted.y, predicted.is_predicted) == ((8.0,), (60.0,), True)
    assert predicted.low == ()
    assert panel.x_ticks == (8.0, 32.0)


def test_one_batch_size_gives_rows() -> None:
    results = results_of(sweep(batches=(8,), blocks=(32,)))
    (panel,) = filled(throughput(plotted(results))).panels
    assert isinstance(panel, RowPanel)
    assert [(row.label, row.marks[0].value) for row in panel.rows] == [
        ("baseline", 200.0),
        ("focus", 400.0),
    ]


def test_heat_maps_hold_the_quotients_and_gaps() -> None:
    points = [p for p in sweep() if (p.decode.policy, p.decode.block_length) != ("focus", 16)]
    points.append(make_point("focus", batch_size=8, block_length=16))
    (panel,) = filled(speedup_by_block_length(plotted(results_of(points)))).panels
    assert isinstance(panel, HeatPanel)
    assert (panel.columns, panel.rows) == (("8", "32"), ("16", "32"))
    assert panel.values == ((2.0, None), (2.0, 2.0))


def test_heat_maps_over_alpha_leave_alpha_out_of_the_title() -> None:
    points = sweep(blocks=(32,), alphas=(1.2, 1.5, 2.0))
    (panel,) = filled(speedup_by_alpha(plotted(results_of(points)))).panels
    assert panel.title == "focus"
    assert isinstance(panel, HeatPanel)
    assert panel.rows == ("1.2", "1.5", "2")
    without_baseline = [p for p in points if p.decode.policy != "baseline"]
    absent = speedup_by_alpha(plotted(results_of(without_baseline)))
    assert isinstance(absent, AbsentFigure)
    assert "needs a baseline" in absent.reason


def test_processed_positions_are_those_of_the_metrics() -> None:
    result = make_result(make_point())
    (panel,) = filled(processed_per_decoded(plotted([result]))).panels
    assert isinstance(panel, RowPanel)
    assert panel.rows[0].marks[0].value == result.metrics.processed_per_decoded == 4.0


# -- steps -----------------------------------------------------------------------------------------


def test_step_time_bars_sum_to_the_mean_step() -> None:
    results = [make_result(make_point()), make_result(make_point(), source="predicted")]
    (panel,) = filled(step_time(plotted(results))).panels
    assert isinstance(panel, StackPanel)
    assert [bar.is_predicted for bar in panel.bars] == [False, True]
    assert panel.bars[0].label == "focus \u00b7 8"
    assert panel.bars[0].total == pytest.approx(500.0)  # ms
    parts = {s.name: s.value for s in panel.bars[0].segments}
    assert parts["suffix"] == pytest.approx(200.0)
    assert parts["swap"] == 0.0


def test_distributions_are_shares_over_their_own_range() -> None:
    changes = {
        "tokens_per_step_counts": np.array([0, 6, 3, 1]),
        "steps_per_block": np.array([4, 4, 6, 5]),
    }
    points = plotted([make_result(make_point(), **changes)])
    (tokens,) = filled(tokens_per_step(points)).panels
    (steps,) = filled(steps_per_block(points)).panels
    assert isinstance(tokens, LinePanel)
    assert isinstance(steps, LinePanel)
    assert (tokens.series[0].x, tokens.series[0].y) == ((1.0, 2.0, 3.0), (0.6, 0.3, 0.1))
    assert (steps.series[0].x, steps.series[0].y) == ((4.0, 5.0, 6.0), (0.5, 0.25, 0.25))


def test_distributions_show_the_largest_batch_that_most_policies_have() -> None:
    counts = {"tokens_per_step_counts": np.array([0, 1])}
    points = [make_point(p, batch_size=b) for p in ("baseline", "focus") for b in (8, 16)]
    points.append(make_point("baseline", batch_size=64))
    figure = filled(tokens_per_step(plotted([make_result(p, **counts) for p in points])))
    assert [panel.title for panel in figure.panels] == ["batch 16"]
    assert "One batch size" in figure.left_out


# -- latency and roofline --------------------------------------------------------------------------


def test_latency_lines_are_the_share_of_requests_at_or_below() -> None:
    result = make_result(make_point())
    seconds = {
        "ttft_s": np.array([0.3, 0.1, 0.2, 0.4]),
        "tpot_s": np.array([0.0, 0.0, 0.5, 1.0]),
        "e2e_s": np.zeros(0),
    }
    first, per_token = filled(latency(plotted([result]), {result.key: seconds})).panels
    assert isinstance(first, LinePanel)
    assert isinstance(per_token, LinePanel)
    assert first.series[0].x == (0.1, 0.1, 0.2, 0.3, 0.4)
    assert first.series[0].y == (0.0, 0.25, 0.5, 0.75, 1.0)
    # Half of the requests took no time per token, which a logarithmic axis cannot show.
    assert (per_token.series[0].x, per_token.series[0].y) == ((0.5, 0.5, 1.0), (0.5, 0.75, 1.0))
    assert isinstance(latency(plotted([result]), {}), AbsentFigure)


def test_long_latency_lines_are_thinned_and_keep_their_ends() -> None:
    result, values = make_result(make_point()), np.linspace(1.0, 2.0, 5000)
    seconds = dict.fromkeys(("ttft_s", "tpot_s", "e2e_s"), values)
    panel = filled(latency(plotted([result]), {result.key: seconds})).panels[0]
    assert isinstance(panel, LinePanel)
    line = panel.series[0]
    assert len(line.x) < 200
    assert (line.x[0], line.x[-1], line.y[-1]) == (1.0, 2.0, 1.0)
    # The share at each place is exact.
    for x, y in itertools.islice(zip(line.x, line.y, strict=True), 1, None):
        assert y == pytest.approx(np.count_nonzero(values <= x) / 5000)


def test_roofline_counts_what_alike_rows_cost() -> None:
    point = dataclasses.replace(
        make_point(block_length=32),
        engine=EngineConfig(model="sdar-8b", load_format="dummy"),
    )
    result = make_result(point, hardware="h200", source="predicted")
    row = {
        "num_rows": 4, "commit_rows": 0, "evicting_rows": 4, "fed_tokens": 80, "kept_tokens": 40,
        "masked_tokens": 60, "context_tokens": 400, "duration_s": 0.5, "prefill_s": 0.125,
        "swap_s": 0.0, "host_s": 0.125, "prefill_tokens": 0, "schedule_s": 0.0,
    }  # fmt: skip
    steps = np.array([[row[name] for name in STEP_COLUMNS]] * 3)
    (panel,) = filled(roofline(plotted([result]), {result.key: steps})).panels
    assert isinstance(panel, LinePanel)
    four = np.full(4, 1, dtype=np.int64)
    ops = tuple(
        decode_ops(
            PRESETS["sdar-8b"],
            DecodeShape(
                fed=20 * four,
                kept=10 * four,
                masked_fed=15 * four,
                first_keys=132 * four,
                later_keys=132 * four,
                head_rows=20,  # of 40 kept 20 were decoded before
            ),
        )
    )
    flops = total_flops(ops)
    assert panel.series[0].x == pytest.approx((flops / total_bytes(ops),))
    assert panel.series[0].y == pytest.approx((flops / 0.25,))
    memory = panel.guides[0]
    assert memory.y[0] / memory.x[0] == pytest.approx(HARDWARE["h200"].memory_bandwidth)


def test_roofline_of_unknown_models_and_hardware() -> None:
    steps = np.ones((2, len(STEP_COLUMNS)))
    known = make_result(make_point(), hardware="cpu")
    (panel,) = filled(roofline(plotted([known]), {known.key: _timed(steps)})).panels
    assert isinstance(panel, LinePanel)
    assert panel.guides == ()
    gone = dataclasses.replace(make_point(), engine=EngineConfig(model="/no/such/folder"))
    result = make_result(gone)
    assert isinstance(roofline(plotted([result]), {result.key: _timed(steps)}), AbsentFigure)


def _timed(steps: np.ndarray) -> np.ndarray:
    """Steps of which a quarter is prefill and host each, nothing swap."""
    timed = steps.copy()
    for name, value in (("prefill_s", 0.25), ("host_s", 0.25), ("swap_s", 0.0)):
        timed[:, STEP_COLUMNS.index(name)] = value
    return timed


# -- quality, notes, limits ------------------------------------------------------------------------


def test_quality_has_a_mark_with_its_interval_for_each_way_of_decoding() -> None:
    results = [
        quality_result("focus", 0.9, threshold=0.8),
        quality_result("focus", 0.95, threshold=0.9),
        quality_result("baseline", 1.0),
    ]
    (panel,) = filled(quality(results)).panels
    assert isinstance(panel, LinePanel)
    assert [s.label for s in panel.series] == ["baseline", "focus 0.8", "focus 0.9"]
    assert panel.title == "focus-tasks-problems"
    for series, result in zip(panel.series, [results[2], *results[:2]], strict=True):
        assert (series.low[0], series.high[0]) == result.ci95
        assert series.x == (result.decoding.metrics.output_throughput,)


def test_what_figures_rest_on_is_said_once_and_short() -> None:
    results = [
        make_result(make_point()),
        make_result(make_point(), source="predicted", notes=("calibrated on cpu (x, y)",)),
        make_result(make_point(seed=1), notes=("only here",)),
    ]
    text = rests_on(results)
    assert "measured: dummy weights" in text
    assert "synthetic acceptance" in text
    assert "predicted: calibrated on cpu" in text
    assert "(" not in text
    assert text.endswith("some points: measured: only here")
    assert text.count("synthetic acceptance") == 1


def test_a_figure_has_few_panels_and_names_those_left_out() -> None:
    blocks = range(1, MAX_PANELS + 3)
    figures, _ = all_figures(data_of(results_of(sweep(("baseline",), (8,), tuple(blocks)))))
    figure = next(f for f in figures if f.name == "throughput")
    assert len(figure.panels) == MAX_PANELS
    assert "not drawn: B 13; B 14." in figure.left_out


def test_nothing_at_all_is_all_absent() -> None:
    figures, absent = all_figures(data_of())
    assert figures == ()
    assert len(absent) == 10
    assert all(item.reason for item in absent)


def test_folders_are_read_once_the_last_of_equal_points_counting(tmp_path: Path) -> None:
    points = sweep(blocks=(32,))
    one = write_folder(tmp_path / "one", points)
    two = write_folder(tmp_path / "two", points[:1])
    evaluated = write_quality(tmp_path / "eval")
    data = load_report([one, two, evaluated])
    assert len(data.results) == 8
    assert len(data.quality) == 2
    assert [name for name, _ in data.manifests] == ["one", "two", "eval"]
    key = data.results[0].key
    assert data.records.latencies[key]["ttft_s"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert data.records.steps[key].shape == (3, len(STEP_COLUMNS))
    figures, _ = all_figures(data)
    assert {"throughput", "latency", "roofline", "step-time", "quality"} <= {
        f.name for f in figures
    }


def test_a_broken_file_beside_the_results_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "one", sweep(blocks=(32,), batches=(8,)))
    (file, *_) = (folder / "points").glob("*.requests.csv")
    file.write_text("point_hash,source\n1,2\n")
    with pytest.raises(UsageError, match=file.name):
        load_report([folder])


def test_descriptions_and_number_tables_hold_every_value(tmp_path: Path) -> None:
    data = load_report([write_folder(tmp_path / "one", sweep()), write_quality(tmp_path / "eval")])
    figures, _ = all_figures(data)
    kinds = set()
    for panel in (panel for figure in figures for panel in figure.panels):
        kinds.add(type(panel))
        table = numbers(panel)
        assert table.rows
        assert all(len(row) == len(table.headings) for row in table.rows)
        assert describe(panel).endswith(".")
    assert kinds == {LinePanel, RowPanel, StackPanel, HeatPanel}
    lines = next(f for f in figures if f.name == "throughput").panels[0]
    assert "baseline measured: 8: 82, 32: 322" in describe(lines)
    assert ("baseline", "predicted", "8", "80", "") in numbers(lines).rows
