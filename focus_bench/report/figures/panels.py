"""What the report's figures show, as records: panels with their numbers, and nothing drawn yet.

A panel is as wide as a phone; a figure is as many panels as its data need. Knows no library.
"""

from dataclasses import dataclass

MAX_PANELS = 12  # of one figure; what is beyond is said in its caption


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one colour and sign; `low` and `high` bound an interval around each y (or nothing).

    `join`: "line", "steps" (a distribution function) or "none". `is_predicted`: drawn dashed and
    hollow. `names`: a name beside each point (or nothing). `label` "" has no label of its own.
    """

    label: str
    role: str
    marker: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    join: str = "line"
    is_predicted: bool = False
    names: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Where the numbers come from, in words."""
        return "predicted" if self.is_predicted else "measured"


@dataclass(frozen=True, kw_only=True)
class Guide:
    """A bound that is no result, as a thin line from point to point, with its name at the end."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LinePanel:
    """Series over a common axis.

    `x_scale`, `y_scale`: "linear" or "log". `x_ticks`: the only values named on the axis (or
    nothing). `labels`: series are named at the "edge" beside their ends, at their "last" point, or
    in the "corner" that is emptiest. `is_share`: y is a share, shown in percent.
    `is_time`: x is in seconds, shown with the fitting unit.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_scale: str = "linear"
    y_scale: str = "linear"
    x_ticks: tuple[float, ...] = ()
    labels: str = "edge"
    is_share: bool = False
    is_time: bool = False
    from_zero: bool = True
    guides: tuple[Guide, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One value in a row, with its interval, if it has one."""

    value: float
    low: float | None = None
    high: float | None = None
    is_predicted: bool = False
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Values of one name, in one colour and sign."""

    label: str
    role: str
    marker: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, kw_only=True)
class RowPanel:
    """Rows of points on one axis from zero."""

    title: str
    x_label: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a bar."""

    name: str
    role: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of segments, left to right."""

    label: str
    segments: tuple[Segment, ...]
    is_predicted: bool = False

    @property
    def total(self) -> float:
        """Its length."""
        return sum(segment.value for segment in self.segments)


@dataclass(frozen=True, kw_only=True)
class StackPanel:
    """Stacked bars; a prediction is a thinner bar below the measurement of the same label."""

    title: str
    x_label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True)
class HeatPanel:
    """Factors over two settings: `values[row][column]`, None where there is none."""

    title: str
    x_label: str
    y_label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


Panel = LinePanel | RowPanel | StackPanel | HeatPanel


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure: `name` in files and links, `title`, `text` (how to read it), and its panels.

    `left_out` says what the panels do not show although the results have it ("" for nothing);
    `footer` what the numbers rest on: dummy weights, synthetic acceptance and the like.
    """

    name: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    left_out: str = ""
    footer: str = ""


@dataclass(frozen=True, kw_only=True)
class AbsentFigure:
    """A figure that these results cannot fill, and why."""

    title: str
    reason: str
