"""Frozen records to plain JSON values and back, checked against their type hints.

Knows no file and no particular record. JSON has no infinity, so it is written as the text "inf".
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from focus_bench.core.errors import UsageError

T = TypeVar("T")

_KINDS = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}


def to_plain(value: Any) -> Any:
    """Nested dictionaries, lists, texts and numbers that `json.dumps(allow_nan=False)` takes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_plain(cls: type[T], data: Any, where: str) -> T:
    """The record of dataclass `cls` that `to_plain` made `data` from.

    Raises UsageError naming `where` (a file) and the key for anything missing, unknown or of
    another type, and whatever the record's own validation raises.
    """
    return cast(T, _read(cls, data, where))


def _read(hint: Any, data: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(cast(type, hint), data, where)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):  # only "X | None" occurs
        if data is None:
            return None
        (inner,) = (arg for arg in args if arg is not type(None))
        return _read(inner, data, where)
    if origin is tuple and isinstance(data, list):
        return tuple(_read(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is Mapping and isinstance(data, dict):
        return {key: _read(args[1], item, f"{where} {key}") for key, item in data.items()}
    if hint is float and (_is_number(data) or data in ("inf", "-inf", "nan")):
        return float(data)
    if hint is int and isinstance(data, int) and not isinstance(data, bool):
        return data
    if hint in (str, bool) and isinstance(data, hint):
        return data
    raise UsageError(where, data, _KINDS.get(hint, "a list or an object"))


def _read_dataclass(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise UsageError(where, data, f"an object with {', '.join(get_type_hints(cls))}")
    hints = get_type_hints(cls)
    if data.keys() != hints.keys():
        odd = sorted(data.keys() ^ hints.keys())
        raise UsageError(where, ", ".join(odd), f"exactly these fields: {', '.join(hints)}")
    return cls(**{name: _read(hint, data[name], f"{where} {name}") for name, hint in hints.items()})


def _is_number(data: Any) -> bool:
    return isinstance(data, (int, float)) and not isinstance(data, bool)
