"""Where labels go so that they do not cover each other. Knows no drawing library.

Places are in units of the panel, y upwards; a character is taken to be 6 units wide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_CHARACTER, _HEIGHT = 6.0, 12.0
_BETWEEN = 8  # parts of a line between two points


@dataclass(frozen=True)
class Box:
    """A rectangle from (x0, y0) to (x1, y1)."""

    x0: float
    y0: float
    x1: float
    y1: float

    @classmethod
    def around(cls, x: float, y: float, radius: float) -> "Box":
        """A square around a point."""
        return cls(x - radius, y - radius, x + radius, y + radius)

    def overlap(self, other: "Box") -> float:
        """Area that both cover."""
        width = min(self.x1, other.x1) - max(self.x0, other.x0)
        height = min(self.y1, other.y1) - max(self.y0, other.y0)
        return max(0.0, width) * max(0.0, height)

    def outside(self, frame: "Box") -> float:
        """Area that lies outside the frame."""
        return (self.x1 - self.x0) * (self.y1 - self.y0) - self.overlap(frame)


def spread_labels(places: Sequence[float], *, gap: float) -> list[float]:
    """The places (0 to 1), moved as little as needed to be `gap` apart, in their order.

    Neighbours that are too close form a group around the mean of their places, which stays within
    0 and 1 as far as its labels fit.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    groups: list[list[int]] = []
    for i in order:
        groups.append([i])
        while len(groups) > 1 and _top(groups[-2], places, gap) + gap > _bottom(
            groups[-1], places, gap
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    placed = [0.0] * len(places)
    for group in groups:
        low = _bottom(group, places, gap)
        for rank, i in enumerate(group):
            placed[i] = low + rank * gap
    return placed


def _bottom(group: Sequence[int], places: Sequence[float], gap: float) -> float:
    span = gap * (len(group) - 1)
    centre = sum(places[i] for i in group) / len(group)
    return max(0.0, min(centre - span / 2, 1.0 - span))


def _top(group: Sequence[int], places: Sequence[float], gap: float) -> float:
    return _bottom(group, places, gap) + gap * (len(group) - 1)


def emptiest_corner(
    curves: Sequence[Sequence[tuple[float, float]]], *, width: float, height: float
) -> tuple[bool, bool]:
    """(at the top, at the right) of the corner of the unit square that curves cross least.

    A curve is given by its points; the label takes `width` x `height` of the square. Of equal
    corners the first of upper right, lower right, upper left and lower left.
    """
    corners = [(top, right) for right in (True, False) for top in (True, False)]

    def crossed(corner: tuple[bool, bool]) -> int:
        top, right = corner
        return sum(
            (x > 1 - width if right else x < width) and (y > 1 - height if top else y < height)
            for curve in curves
            for x, y in dense(curve)
        )

    return min(corners, key=crossed)


def dense(curve: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The points of a curve and some between them."""
    yield from curve
    for (x0, y0), (x1, y1) in pairwise(curve):
        for i in range(1, _BETWEEN):
            share = i / _BETWEEN
            yield x0 + share * (x1 - x0), y0 + share * (y1 - y0)


def place_names(
    names: Sequence[tuple[str, float, float]], *, frame: Box, taken: Sequence[Box]
) -> list[tuple[float, float]]:
    """For each (name, x, y) the offset of its left centre from the point.

    The first of a few places around the point that covers least of what is there already (`taken`,
    and the names before) and of what lies outside the frame.
    """
    covered = list(taken)
    offsets = []
    for name, x, y in names:
        width = _CHARACTER * len(name)
        choices = [
            *((6.0, 0.0), (-6.0 - width, 0.0), (-width / 2, 11.0), (-width / 2, -11.0)),
            *((5.0, 9.0), (5.0, -9.0), (-5.0 - width, 9.0), (-5.0 - width, -9.0)),
            *((6.0, 20.0), (6.0, -20.0), (-6.0 - width, 20.0), (-6.0 - width, -20.0)),
            *((6.0, 34.0), (6.0, -34.0), (-6.0 - width, 34.0), (-6.0 - width, -34.0)),
        ]

        def box(offset: tuple[float, float], x: float = x, y: float = y, w: float = width) -> Box:
            left, middle = x + offset[0], y + offset[1]
            return Box(left, middle - _HEIGHT / 2, left + w, middle + _HEIGHT / 2)

        best = min(
            choices,
            key=lambda offset: (
                box(offset).outside(frame) * 2
                + sum(box(offset).overlap(other) for other in covered)
            ),
        )
        covered.append(box(best))
        offsets.append(best)
    return offsets
