"""JSON schemas of the files that the program writes, made from its records and docs/files.md.

Run it to renew docs/schemas: ``python tests/docs/record_schemas.py``.
"""

import dataclasses
import inspect
import json
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from doc_text import DOCS, names_in, table

from focus_bench.core import config
from focus_bench.core.calibration import (
    COUNT_NAMES,
    SAMPLES_SCHEMA_VERSION,
    TIMED_PARTS,
    CalibrationSamples,
    dimensions_of,
)
from focus_bench.core.gpu_profile_file import KIND as GPU_KIND
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.op_curves import (
    CEILINGS,
    CURVES,
    STEP_MODES,
    GpuCalibration,
    MeasuredExperts,
    OpCurve,
    curves_of_model,
)
from focus_bench.core.op_curves import PROFILE_SCHEMA_VERSION as GPU_PROFILE_SCHEMA_VERSION
from focus_bench.core.records import FINISH_REASONS, SCHEMA_VERSION, SOURCES
from focus_bench.core.step_fits import StepsFit
from focus_bench.report import folder, quality_folder
from focus_bench.report.failures import FailureFile
from focus_bench.report.manifest import Manifest
from focus_bench.report.quality_results import Answer
from focus_bench.sim.calibration import PROFILE_SCHEMA_VERSION, Profile

Schema = dict[str, Any]

SCHEMAS = DOCS / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILES_PAGE = DOCS / "files.md"

_HASH: Schema = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
_NUMBER: Schema = {
    "description": "A number; JSON has no infinity, so it is a text.",
    "anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}],
}
_NUMBER_REF: Schema = {"$ref": "#/$defs/number"}
_SIMPLE: dict[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: _NUMBER_REF,
}
# What a field's type does not say.
_NARROWER: dict[tuple[str, str], Schema] = {
    ("DecodeConfig", "policy"): {"enum": list(config.POLICY_NAMES)},
    ("DecodeConfig", "unmasking_strategy"): {"enum": list(config.UNMASKING_STRATEGIES)},
    ("DecodeConfig", "select"): {"enum": list(config.SELECTIONS)},
    ("BackendConfig", "kind"): {"enum": list(config.BACKENDS)},
    ("PointResult", "source"): {"enum": list(SOURCES)},
    ("PointFailure", "source"): {"enum": list(SOURCES)},
    ("PlannedPoint", "source"): {"enum": list(SOURCES)},
    ("Answer", "finish_reason"): {"enum": list(FINISH_REASONS)},
    ("CalibrationSamples", "kind"): {"enum": ["cpu", "gpu"]},
}
_COLUMN_TYPES: dict[str, Schema] = {
    "text": _SIMPLE[str],
    "whole": _SIMPLE[int],
    "number": _NUMBER_REF,
    "yes or no": _SIMPLE[bool],
}


class _Definitions(dict[str, Schema]):
    """$defs of one file: a schema for each dataclass met, with its docstring as description.

    `has_infinity`: numbers may be texts, as report.codec writes infinity.
    """

    def __init__(self, *, has_infinity: bool = True) -> None:
        super().__init__()
        self._has_infinity = has_infinity

    def of(self, hint: Any) -> Schema:
        """The schema of values that have this type hint."""
        if dataclasses.is_dataclass(hint):
            name = getattr(hint, "__name__", "").lstrip("_")
            if name not in self:
                self[name] = {}  # in its place before those that it refers to
                self[name] = self.record(hint)
            return {"$ref": f"#/$defs/{name}"}
        if hint in _SIMPLE:
            if hint is float and not self._has_infinity:
                return {"type": "number"}
            if hint is float:
                self["number"] = _NUMBER
            return _SIMPLE[hint]
        origin, args = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            (inner,) = (arg for arg in args if arg is not type(None))
            return {"anyOf": [self.of(inner), {"type": "null"}]}
        if origin is tuple:
            return {"type": "array", "items": self.of(args[0])}
        if origin is Mapping:
            if get_origin(args[1]) in (Union, types.UnionType):  # int | str
                allowed = [self.of(arg) for arg in get_args(args[1])]
                return {"type": "object", "additionalProperties": {"anyOf": allowed}}
            return {"type": "object", "additionalProperties": self.of(args[1])}
        if origin is np.ndarray:
            kind = get_args(args[1])[0]
            item = "integer" if issubclass(kind, np.integer) else "number"
            return {"type": "array", "items": {"type": item}}
        raise TypeError(hint)

    def record(self, cls: Any) -> Schema:
        """An object with exactly the fields of a dataclass."""
        hints = get_type_hints(cls)
        properties = {
            name: _NARROWER.get((cls.__name__, name), self._field(name, hint))
            for name, hint in hints.items()
        }
        text = inspect.getdoc(cls) or ""
        return {"description": text.replace("`", ""), **_object(properties)}

    def _field(self, name: str, hint: Any) -> Schema:
        if name in ("point_hash", "plan_hash"):
            return _HASH
        return self.of(hint)


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _file(title: str, body: Schema, definitions: Mapping[str, Schema]) -> Schema:
    schema = {"$schema": DIALECT, "title": title, **body}
    return schema | ({"$defs": dict(definitions)} if definitions else {})


def record_file(title: str, cls: Any, *, version: int | None = None) -> Schema:
    """The schema of a file that holds one record; `version`: its schema_version."""
    definitions = _Definitions()
    body = definitions.record(cls)
    if version is not None:
        body["properties"]["schema_version"] = {"const": version}
    return _file(title, body, definitions)


def column_types(heading: str) -> dict[str, str]:
    """Name and documented type of every column under a heading of files.md, in order."""
    return {name: row[1] for row in table(FILES_PAGE, heading) for name in names_in(row[0])}


def _columns(heading: str) -> Schema:
    """Properties of rows in JSON by their documented columns; empty cells are null there."""
    properties = {}
    for name, kind in column_types(heading).items():
        plain = kind.removesuffix(" or empty")
        value = _HASH if name in ("point_hash", "plan_hash") else _COLUMN_TYPES.get(plain)
        if value is None:
            value = {"type": {"texts": "array", "object": "object"}[plain]}
        elif kind != plain:
            value = {"anyOf": [value, {"type": "null"}]}
        properties[name] = value
    return properties


def results_file() -> Schema:
    """results.json."""
    names = _columns("Columns that name a point")
    runs = _object(_columns("A run in runs.csv and results.json"))
    point = names | _columns("results.json") | {"runs": {"type": "array", "items": runs}}
    failed = names | {"state": {"const": "failed"}, "failure": {"type": "string"}}
    body = {
        "schema_version": {"const": SCHEMA_VERSION},
        "points": {"type": "array", "items": _object(point)},
        "failed_points": {"type": "array", "items": _object(failed)},
    }
    return _file("results.json of run and simulate", _object(body), {"number": _NUMBER})


def quality_file() -> Schema:
    """quality.json."""
    point = _columns("quality.csv") | {
        "score_of_runs": {"type": "array", "items": {"type": "number"}},
        "other_scores": {"type": "object", "additionalProperties": {"type": "number"}},
        "finished_by_reason": {"type": "object", "additionalProperties": {"type": "integer"}},
        "labels": {"type": "array", "items": {"type": "string"}},
        "notes": {"type": "array", "items": {"type": "string"}},
    }
    body = {
        "schema_version": {"const": SCHEMA_VERSION},
        "points": {"type": "array", "items": _object(point)},
    }
    return _file("quality.json of eval", _object(body), {"number": _NUMBER})


def _number_arrays(names: Iterable[str], item: Schema) -> Schema:
    return _object({name: {"type": "array", "items": item} for name in names})


def _dimensions() -> Schema:
    dimensions = dimensions_of(next(iter(PRESETS.values())))
    return _object({name: _SIMPLE[type(value)] for name, value in dimensions.items()})


def _samples(definitions: _Definitions) -> Schema:
    """Measured steps, as CalibrationSamples writes them."""
    definitions.of(CalibrationSamples)
    samples = definitions[CalibrationSamples.__name__]
    fields = samples["properties"] | {
        "counts": _number_arrays(COUNT_NAMES, {"type": "integer", "minimum": 0}),
        "seconds": _number_arrays(TIMED_PARTS, {"type": "number", "minimum": 0}),
        "dimensions": _dimensions(),
    }
    return {
        "description": samples["description"],
        **_object({"schema_version": {"const": SAMPLES_SCHEMA_VERSION}, **fields}),
    }


def profile_file() -> Schema:
    """A cost profile of steps, from the dataclasses that read and write it."""
    definitions = _Definitions(has_infinity=False)
    profile = definitions.record(Profile)
    definitions[CalibrationSamples.__name__] = _samples(definitions)
    versioned = {"schema_version": {"const": PROFILE_SCHEMA_VERSION}, **profile["properties"]}
    body = {"description": profile["description"], **_object(versioned)}
    return _file("a cost profile of calibrate, schema 1: steps of a CPU", body, definitions)


def gpu_profile_file() -> Schema:
    """A cost profile of a GPU's operations."""
    definitions = _Definitions(has_infinity=False)
    profile = definitions.record(GpuCalibration)
    definitions[CalibrationSamples.__name__] = _samples(definitions)
    curve = definitions.pop(OpCurve.__name__)
    for num_axes in sorted({len(kind.axes) for kind in CURVES.values()}):
        definitions[_curve_name(num_axes)] = _curve(curve, num_axes)
    models = ("sdar-8b", "sdar-30b-a3b", "llada2-mini")  # no experts, nothing else, and both
    kinds = [curves_of_model(PRESETS[name].experts) for name in models]
    curves = {
        name: {
            "description": f"Seconds of one call: {kind.call}.",
            "$ref": f"#/$defs/{_curve_name(len(kind.axes))}",
            "properties": {"axes": {"const": list(kind.axes)}},
        }
        for name, kind in CURVES.items()
    }
    properties = profile["properties"] | {
        "dimensions": _dimensions(),
        "ceilings": _object({n: {"type": "number", "exclusiveMinimum": 0} for n in CEILINGS}),
        "curves": {
            **_object(curves),
            "required": [name for name in CURVES if all(name in of for of in kinds)],
            "additionalProperties": True,
        },
        "steps": _object({mode: definitions.of(CalibrationSamples) for mode in STEP_MODES}),
    }
    head = {"schema_version": {"const": GPU_PROFILE_SCHEMA_VERSION}, "kind": {"const": GPU_KIND}}
    body = {"description": profile["description"], **_object(head | properties)}
    # Of a dense model they are left out.
    body["properties"]["experts"] = definitions.of(MeasuredExperts)
    body["required"].remove("experts")
    # Of a profile that was measured before they were kept, too.
    body["properties"]["fits"] = _fits(definitions)
    body["required"].remove("fits")
    return _file("a cost profile, schema 2: operations of a GPU", body, definitions)


def _fits(definitions: _Definitions) -> Schema:
    """What was fitted to a profile's steps, with what it is a fit to."""
    numbers = {"type": "number", "minimum": 0}
    parts = {"minItems": len(TIMED_PARTS), "maxItems": len(TIMED_PARTS)}
    fit = definitions.record(StepsFit)
    fit["properties"] |= {
        "row_tile": {"type": "integer", "minimum": 1},
        "distinct_per_block": {"type": ["number", "null"], "exclusiveMinimum": 0},
        "runs": {
            "type": "array",
            "items": {"type": "array", "items": {"type": ["number", "null"]}, **parts},
        },
        **{
            name: {"type": "array", "items": numbers, **parts}
            for name in ("step_spread", "part_spread")
        },
        **{
            name: {"type": "object", "additionalProperties": numbers}
            for name in ("scale", "constant_s", "per_sequence_s")
        },
    }
    definitions[StepsFit.__name__] = fit
    modes = {"type": "object", "additionalProperties": {"$ref": f"#/$defs/{StepsFit.__name__}"}}
    return _object({"revision": _SIMPLE[int], "of": _HASH, "modes": modes})


def _curve_name(num_axes: int) -> str:
    return f"curve_of_{num_axes}_axes"


def _curve(record: Schema, num_axes: int) -> Schema:
    """A curve in a file, where its name is its key."""
    fields = {name: value for name, value in record["properties"].items() if name != "name"}
    seconds = {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 1}
    point = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0},
        "minItems": num_axes,
        "maxItems": num_axes,
    }
    points = {"type": "array", "items": point, "minItems": 1}
    return _object(fields | {"points": points, "seconds": seconds, "spread": seconds})


def trace_file() -> Schema:
    """A trace of --perfetto: Chrome's JSON format, as far as this program writes it."""
    local = _object({"local": {"type": "string", "pattern": "^0x[0-9a-f]+$"}})
    event = {
        "type": "object",
        "properties": {
            "ph": {"enum": ["M", "X", "C", "b", "e"]},
            "ts": {"description": "Microseconds from the start.", "type": "number", "minimum": 0},
            "dur": {"description": "Microseconds.", "type": "number", "minimum": 0},
            "pid": {"type": "integer"},
            "tid": {"type": "integer"},
            "cat": {"enum": ["step", "phase", "schedule", "note", "request"]},
            "name": {"type": "string"},
            "id2": local,
            "args": {"type": "object"},
        },
        "required": ["ph", "pid", "name"],
        "additionalProperties": False,
        "if": {"properties": {"ph": {"const": "M"}}},
        "else": {"required": ["ts"]},
    }
    about = {"phase_order": {"type": "string"}, "runs": {"type": "array"}}
    body = {
        "displayTimeUnit": {"const": "ms"},
        "otherData": _object(about),
        "traceEvents": {"type": "array", "items": event},
    }
    return _file("a trace of --perfetto", _object(body), {})


def all_schemas() -> dict[str, Schema]:
    """Every schema by its file's name without the ending."""
    version = SCHEMA_VERSION
    return {
        "run": record_file("run.json", Manifest, version=version),
        "results": results_file(),
        "point": record_file(
            "points/*.json of run and simulate", folder._PointFile, version=version
        ),
        "failed": record_file("failed/*.json", FailureFile, version=version),
        "quality": quality_file(),
        "quality-point": record_file(
            "points/*.json of eval", quality_folder._PointFile, version=version
        ),
        "answer": record_file("a line of points/*.answers.jsonl", Answer),
        "profile": profile_file(),
        "gpu-profile": gpu_profile_file(),
        "trace": trace_file(),
    }


def schema_path(name: str) -> Path:
    """Where the schema of that name lies."""
    return SCHEMAS / f"{name}.schema.json"


def schema_text(schema: Schema) -> str:
    """The text of its file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMAS.mkdir(exist_ok=True)
    for name, schema in all_schemas().items():
        schema_path(name).write_text(schema_text(schema), encoding="utf-8")
