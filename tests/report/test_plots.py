"""Charts: files of both kinds, the same twice."""

from pathlib import Path

import numpy as np
import pytest

from focus_bench.report import plots
from focus_bench.report.plots import BarChart, Chart, DensityChart, LineChart, Series, write_chart

CHARTS: list[Chart] = [
    LineChart(
        title="lines",
        x_label="x",
        y_label="y",
        series=(
            Series(label="a", x=(1.0, 2.0), y=(3.0, 4.0), low=(2.5, 3.0), high=(3.5, 4.5)),
            Series(label="b", x=(1.0,), y=(2.0,), notes=("0.9",)),
            Series(label="empty", x=(), y=()),
        ),
        ticks=((1.0, "one"), (2.0, "two")),
        footer="measured " * 30,
    ),
    DensityChart(
        title="densities",
        x_label="delta",
        samples=(("some", np.linspace(-2, 2, 50)), ("none", np.zeros(0))),
        marks=((0.5, "mu"),),
    ),
    DensityChart(title="all equal", x_label="delta", samples=(("one", np.ones(3)),)),
    BarChart(title="bars", x_label="n", y_label="share", x=(1.0, 2.0), y=(60.0, 40.0)),
]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.title)
def test_charts_are_written_in_both_formats_and_equal_twice(chart: Chart, tmp_path: Path) -> None:
    first = write_chart(chart, tmp_path / "fig1.5")
    assert [file.name for file in first] == ["fig1.5.png", "fig1.5.svg"]
    before = [file.read_bytes() for file in first]
    assert before[0].startswith(b"\x89PNG")
    assert chart.title in before[1].decode()
    write_chart(chart, tmp_path / "fig1.5")
    assert [file.read_bytes() for file in first] == before


def test_error_bars_reach_exactly_from_low_to_high() -> None:
    chart = CHARTS[0]
    (axes,) = plots.draw(chart).axes
    segments = axes.containers[0].lines[2][0].get_segments()  # type: ignore[attr-defined]
    np.testing.assert_allclose([s[:, 1] for s in segments], [[2.5, 3.5], [3.0, 4.5]])
