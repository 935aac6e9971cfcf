"""A file of points that were fixed before anything was calibrated or measured.

JSON: {"points": [{"decode.policy": "focus", "scheduler.batch_size": 32, ...}, ...]}. Every entry
names settings of a point by their place in its configuration. Knows no result.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from focus_bench.core.config import EngineConfig, PointConfig
from focus_bench.core.errors import UsageError, reason_of

Value = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class FixedPoint:
    """Settings that a measured point must have to be the one that was fixed."""

    settings: Mapping[str, Value]

    @property
    def label(self) -> str:
        """The settings as written."""
        return ", ".join(f"{name} {value}" for name, value in self.settings.items())

    def is_met_by(self, point: PointConfig) -> bool:
        """Whether a point has all of the settings."""
        return all(_equal(_get(point, name), value) for name, value in self.settings.items())


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Which of some points a file names, and which of its entries none of them meets."""

    points: tuple[PointConfig, ...]
    absent: tuple[FixedPoint, ...]


def read_points(path: Path) -> tuple[FixedPoint, ...]:
    """The entries of a file; raises UsageError naming the file, the entry and what is wrong."""
    where = f"--points {path}"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            "--points", str(path), f"a readable JSON file ({reason_of(error)})"
        ) from error
    entries = data.get("points") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise UsageError(where, type(data).__name__, 'an object with a list "points"')
    known = _names()
    fixed = []
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict) or not entry:
            raise UsageError(f"{where} point {number}", entry, "an object of settings")
        for name in entry:
            if name not in known:
                raise UsageError(f"{where} point {number}", name, ", ".join(known))
        fixed.append(FixedPoint(settings=entry))
    return tuple(fixed)


def choose(fixed: Sequence[FixedPoint], points: Sequence[PointConfig]) -> Chosen:
    """The points that an entry names, in their order, and the entries that name none."""
    return Chosen(
        points=tuple(p for p in points if any(entry.is_met_by(p) for entry in fixed)),
        absent=tuple(e for e in fixed if not any(e.is_met_by(p) for p in points)),
    )


def _names() -> tuple[str, ...]:
    """Settings by their place in a point's configuration."""
    names = []
    point = PointConfig(engine=EngineConfig(model="any"))
    for field in dataclasses.fields(PointConfig):
        part = getattr(point, field.name)
        if dataclasses.is_dataclass(part):
            names += [f"{field.name}.{inner.name}" for inner in dataclasses.fields(part)]
        else:
            names.append(field.name)
    return tuple(names)


def _get(point: PointConfig, name: str) -> object:
    value: object = point
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _equal(have: object, wanted: Value) -> bool:
    if isinstance(have, float) and wanted == "inf":  # JSON has no infinity
        return have == float("inf")
    return have == wanted
