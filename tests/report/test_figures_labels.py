"""Places of labels: apart, in order, near what they name, and out of each other's way."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from focus_bench.report.figures.labels import Box, emptiest_corner, place_names, spread_labels
from focus_bench.report.figures.lines import log_ticks

PLACES = st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=8)


@given(PLACES)
def test_spread_labels_are_apart_in_order_and_inside(places: list[float]) -> None:
    gap = 0.1
    placed = spread_labels(places, gap=gap)
    order = sorted(range(len(places)), key=lambda i: places[i])
    for a, b in itertools.pairwise(order):
        assert placed[b] - placed[a] >= gap - 1e-9
    assert min(placed) >= -1e-9
    assert max(placed) <= 1 + 1e-9


def test_labels_that_are_apart_already_stay() -> None:
    assert spread_labels([0.1, 0.9, 0.5], gap=0.1) == pytest.approx([0.1, 0.9, 0.5])
    assert spread_labels([0.5, 0.5], gap=0.2) == pytest.approx([0.4, 0.6])


def test_the_corner_with_the_least_in_it_is_chosen() -> None:
    rising = [(0.0, 0.0), (0.2, 0.1), (1.0, 1.0)]
    assert emptiest_corner([rising], width=0.3, height=0.3) == (False, True)
    falling = [(0.0, 1.0), (0.5, 0.1), (1.0, 0.0)]
    assert emptiest_corner([falling], width=0.3, height=0.3) == (True, True)
    assert emptiest_corner([], width=0.3, height=0.3) == (True, True)


def test_names_of_points_do_not_cover_each_other_or_the_points() -> None:
    frame = Box(0, 0, 300, 200)
    points = [("baseline", 100.0, 100.0), ("focus", 104.0, 101.0), ("DC+", 295.0, 100.0)]
    marks = [Box.around(x, y, 4.0) for _, x, y in points]
    boxes = []
    for (name, x, y), (dx, dy) in zip(
        points, place_names(points, frame=frame, taken=marks), strict=True
    ):
        boxes.append(Box(x + dx, y + dy - 6, x + dx + 6.0 * len(name), y + dy + 6))
    for one, other in itertools.combinations([*boxes, *marks], 2):
        assert (one in marks and other in marks) or one.overlap(other) == 0
    assert all(box.outside(frame) == 0 for box in boxes)


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 10.0), (0.004, 0.4), (3e9, 2e13), (50.0, 90.0), (8.0, 9.0)]
)
def test_log_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)
    assert ticks
