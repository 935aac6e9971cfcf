"""A GPU's measured operations as a JSON file, schema 2.

Reading refuses what is not such a file, and figures that no measurement can give; whether figures
are believable is profile_check's business.
"""

import dataclasses
import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from focus_bench.core import step_fits
from focus_bench.core.calibration import (
    COUNT_NAMES,
    DIMENSIONS,
    TIMED_PARTS,
    CalibrationSamples,
    read_json,
)
from focus_bench.core.errors import UsageError
from focus_bench.core.expert_load import MeasuredLoad
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.model_spec import DTYPE_BYTES
from focus_bench.core.op_curves import (
    CEILINGS,
    CURVES,
    PROFILE_SCHEMA_VERSION,
    STEP_MODES,
    GpuCalibration,
    MeasuredExperts,
    OpCurve,
    curves_of_model,
)

KIND = "gpu-operations"
# No calibration takes longer, so nothing in it does.
LONGEST_S = 86_400.0
# A spread, relative to the median: beyond it no interval can be drawn.
LARGEST_SPREAD = 100.0
# More than any count, and than any of one step: far beyond what a GPU holds, and few enough that a
# step's sequences can be laid out one by one.
MOST = 2**53
MOST_SEQUENCES, MOST_TOKENS, MOST_KEYS = 2**16, 2**24, 2**32
_MOST_OF_STEP = {
    **dict.fromkeys(
        ("prefill_chunks", "forwards", "rows", "evicting_rows", "importance_groups"), MOST_SEQUENCES
    ),
    **dict.fromkeys(
        ("prefill_tokens", "prefill_blocks", "fed", "kept", "head_rows", "importance_masked"),
        MOST_TOKENS,
    ),
    **dict.fromkeys(("prefill_keys", "first_keys", "later_keys", "swapped_tokens"), MOST_KEYS),
    **dict.fromkeys(("prefill_pairs", "first_pairs", "later_pairs", "importance_pairs"), MOST),
}
# Slower and faster than any device, bytes or operations a second.
MIN_RATE, MAX_RATE = 1.0, 1e24


def save_gpu_calibration(calibration: GpuCalibration, path: Path) -> None:
    """Write as JSON."""
    value = to_json(calibration)
    if calibration.fits:
        value[step_fits.KEY] = step_fits.fits_to_json(calibration.fits, value)
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")


def load_gpu_calibration(path: Path) -> GpuCalibration:
    """The inverse of `save_gpu_calibration`; raises UsageError naming the file and the fault."""
    return from_json(read_json(path), source=f"profile {path}")


def is_gpu_calibration(value: object) -> bool:
    """Whether a parsed JSON file says that it is one (of any schema)."""
    return isinstance(value, dict) and value.get("kind") == KIND


def passed_over(path: Path, calibration: GpuCalibration | None = None) -> list[str]:
    """What reading a profile passes over, one line each: keys that an object has twice and, of a
    GPU's (`calibration`, as it was read), names that such a profile has not, and fits.
    """
    problems: list[str] = []

    def as_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        counts = Counter(key for key, _ in pairs)
        problems.extend(
            f"key {key!r}: {count} times in one object; allowed: once"
            for key, count in counts.items()
            if count > 1
        )
        return dict(pairs)

    value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=as_object)
    if calibration is None:
        return problems
    experts = calibration.experts
    curves = curves_of_model(None if experts is None else experts.spec)
    known = {"curves": curves, "steps": STEP_MODES, "ceilings": CEILINGS, "dimensions": DIMENSIONS}
    for key, names in known.items():
        others = [name for name in value[key] if name not in names]
        if others:
            of = f"those of {calibration.model}: " if key == "curves" else ""
            problems.append(
                f"{key} {', '.join(others)}: not known; allowed: {of}{', '.join(names)}"
            )
    return problems + step_fits.fits_passed_over(value)


def to_json(calibration: GpuCalibration) -> dict[str, object]:
    """Plain values of what was measured, so without fits: seconds to six digits; `experts` only of
    a model that has any.
    """
    experts = calibration.experts
    return {
        "schema_version": PROFILE_SCHEMA_VERSION,
        "kind": KIND,
        "device": calibration.device,
        "date": calibration.date,
        "settings": dict(calibration.settings),
        "model": calibration.model,
        "dimensions": dict(calibration.dimensions),
        **({} if experts is None else {"experts": _experts_to_json(experts)}),
        "kernel_revision": calibration.kernel_revision,
        "duration_s": round(calibration.duration_s, 1),
        "ceilings": {name: float(f"{calibration.ceilings[name]:.6g}") for name in CEILINGS},
        "curves": {name: _curve_to_json(curve) for name, curve in calibration.curves.items()},
        "steps": {mode: steps.to_json() for mode, steps in calibration.steps.items()},
    }


def from_json(value: object, *, source: str) -> GpuCalibration:
    """The inverse of `to_json`, with the fits that the value may have; raises UsageError naming
    `source` and the key that is wrong.
    """
    if not isinstance(value, dict):
        raise UsageError(source, type(value).__name__, "a JSON object that calibrate wrote")
    version = value.get("schema_version")
    if type(version) is not int or version != PROFILE_SCHEMA_VERSION:
        allowed = f"{PROFILE_SCHEMA_VERSION} (calibrate again)"
        raise UsageError(f"{source} schema_version", version, allowed)
    if not is_gpu_calibration(value):
        raise UsageError(f"{source} kind", value.get("kind"), KIND)
    experts = _experts_from_json(value, source) if "experts" in value else None
    names = curves_of_model(None if experts is None else experts.spec)
    curves = _object(value, "curves", source)
    steps = _object(value, "steps", source)
    for key, given, needed in (
        ("curves", curves, names),
        ("steps", steps, STEP_MODES),
        ("ceilings", _object(value, "ceilings", source), CEILINGS),
        ("dimensions", _object(value, "dimensions", source), DIMENSIONS),
    ):
        missing = [name for name in needed if name not in given]
        if missing:
            raise UsageError(f"{source} {key}", f"without {', '.join(missing)}", ", ".join(needed))
    dimensions = _object(value, "dimensions", source)
    return GpuCalibration(
        device=_text(value, "device", source),
        date=_text(value, "date", source),
        settings={k: str(v) for k, v in _object(value, "settings", source).items()},
        model=_text(value, "model", source),
        dimensions={name: _dimension(dimensions, name, source) for name in DIMENSIONS},
        kernel_revision=_text(value, "kernel_revision", source),
        duration_s=_number(value, "duration_s", source),
        curves={name: _curve_from_json(name, curves[name], source) for name in names},
        ceilings={
            name: _rate(_object(value, "ceilings", source), name, f"{source} ceilings")
            for name in CEILINGS
        },
        steps={
            mode: _steps_from_json(steps[mode], f"{source} steps {mode}") for mode in STEP_MODES
        },
        experts=experts,
        fits=step_fits.fits_from_json(value, source=source),
    )


def _experts_to_json(experts: MeasuredExperts) -> dict[str, object]:
    load = experts.load
    return {
        "spec": dataclasses.asdict(experts.spec),
        "dense_width": experts.dense_width,
        "load": {
            "rows": list(load.rows),
            "touched": [float(f"{value:.6g}") for value in load.touched],
            "largest_share": [float(f"{value:.6g}") for value in load.largest_share],
        },
    }


def _experts_from_json(value: Mapping[str, object], source: str) -> MeasuredExperts:
    given, source = _object(value, "experts", source), f"{source} experts"
    load = _object(given, "load", source)
    width = given.get("dense_width")
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise UsageError(f"{source} dense_width", width, "a whole number above 0")
    try:
        return MeasuredExperts(
            spec=ExpertSpec(**_object(given, "spec", source)),  # type: ignore[arg-type]
            dense_width=width,
            load=MeasuredLoad(
                rows=tuple(int(rows) for rows in _positive(load, "rows")),
                touched=_positive(load, "touched"),
                largest_share=_positive(load, "largest_share"),
            ),
        )
    except UsageError as error:
        raise UsageError(f"{source} {error.field}", error.value, error.allowed) from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        fields = ", ".join(field.name for field in dataclasses.fields(ExpertSpec))
        allowed = f"spec ({fields}) and load (rows, touched and largest_share)"
        raise UsageError(source, "unreadable", allowed) from error


def _positive(load: Mapping[str, object], key: str) -> tuple[float, ...]:
    _check_numbers(load[key], f"load {key}", low=0.0, high=MOST, is_open=True)
    return tuple(float(value) for value in np.array(load[key], dtype=np.float64))


def _curve_to_json(curve: OpCurve) -> dict[str, object]:
    def rounded(values: np.ndarray, digits: int) -> list[float]:
        return [float(f"{value:.{digits}g}") for value in values]

    return {
        "axes": list(curve.axes),
        "points": curve.points.astype(np.int64).tolist(),
        "seconds": rounded(curve.seconds, 6),
        "spread": rounded(curve.spread, 3),
        "held_out_p50": _rounded(curve.held_out_p50),
        "held_out_max": _rounded(curve.held_out_max),
    }


def _rounded(error: float | None) -> float | None:
    return None if error is None else round(error, 5)


def _curve_from_json(name: str, value: object, source: str) -> OpCurve:
    source = f"{source} curves {name}"
    if not isinstance(value, dict):
        raise UsageError(source, type(value).__name__, "an object")
    axes = CURVES[name].axes
    if value.get("axes") != list(axes):
        raise UsageError(f"{source} axes", value.get("axes"), str(list(axes)))
    try:
        points = np.array(value["points"], dtype=np.float64)
        seconds = np.array(value["seconds"], dtype=np.float64)
        spread = np.array(value["spread"], dtype=np.float64)
        errors = [_error(value[key]) for key in ("held_out_p50", "held_out_max")]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            source, "unreadable", "points, seconds, spread, held_out_p50 and held_out_max, numbers"
        ) from error
    if points.ndim != 2 or points.shape[1] != len(axes) or not len(points):
        shape = f"[n, {len(axes)}], n at least 1"
        raise UsageError(f"{source} points", f"of shape {list(points.shape)}", shape)
    for key, array in (("seconds", seconds), ("spread", spread)):
        if array.shape != (len(points),):
            raise UsageError(f"{source} {key}", f"of shape {list(array.shape)}", f"{len(points)}")
    _check_numbers(value["seconds"], f"{source} seconds", low=0.0, high=LONGEST_S, is_open=True)
    _check_numbers(value["spread"], f"{source} spread", low=0.0, high=LARGEST_SPREAD)
    for key in ("held_out_p50", "held_out_max"):
        if value[key] is not None:
            _check_numbers([value[key]], f"{source} {key}", low=0.0)
    for point in value["points"]:
        _check_numbers(point, f"{source} points", low=0.0, high=MOST)
    order = [tuple(point) for point in points.tolist()]
    for before, after in itertools.pairwise(order):
        if before >= after:
            shown = f"{_point_text(after)} after {_point_text(before)}"
            raise UsageError(f"{source} points", shown, "ascending, each point once")
    return OpCurve(
        name=name,
        axes=axes,
        points=points,
        seconds=seconds,
        spread=spread,
        held_out_p50=errors[0],
        held_out_max=errors[1],
    )


def _error(value: object) -> float | None:
    return None if value is None else float(str(value))


def _point_text(point: tuple[float, ...]) -> str:
    return "x".join(f"{value:g}" for value in point)


def _steps_from_json(value: object, source: str) -> CalibrationSamples:
    try:
        samples = CalibrationSamples.from_json(value, source=source)
    except OverflowError as error:
        raise UsageError(source, "unreadable", "samples written by calibrate") from error
    assert isinstance(value, dict)
    for part in TIMED_PARTS:
        given = value["seconds"][part]
        _check_numbers(given, f"{source} seconds {part}", low=0.0, high=LONGEST_S)
    for name in COUNT_NAMES:
        given, most = value["counts"][name], _MOST_OF_STEP[name]
        _check_numbers(given, f"{source} counts {name}", low=0.0, high=most)
    return samples


def _check_numbers(
    values: object, source: str, *, low: float, high: float = math.inf, is_open: bool = False
) -> None:
    """Raise UsageError for the first that is no finite number from `low` to `high`; `is_open`:
    `low` itself is refused, too.
    """
    if not isinstance(values, list):
        raise UsageError(source, type(values).__name__, "a list of numbers")
    for index, value in enumerate(values):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and low <= value <= high and value < math.inf and (value > low or not is_open):
            continue
        allowed = f"a finite number {'above' if is_open else 'from'} {low:g}"
        most = "" if high == math.inf else f"{', at most' if is_open else ' to'} {high:.10g}"
        shown = value if isinstance(value, str) else json.dumps(value)
        raise UsageError(f"{source}[{index}]", shown, allowed + most)


def _object(value: Mapping[str, object], key: str, source: str) -> Mapping[str, object]:
    given = value.get(key)
    if not isinstance(given, dict):
        raise UsageError(f"{source} {key}", type(given).__name__, "an object")
    return given


def _text(value: Mapping[str, object], key: str, source: str) -> str:
    given = value.get(key)
    if not isinstance(given, str) or not given:
        raise UsageError(f"{source} {key}", given, "a text that is not empty")
    return given


def _number(value: Mapping[str, object], key: str, source: str) -> float:
    given = value.get(key)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise UsageError(f"{source} {key}", given, "a number")
    try:
        return float(given)
    except OverflowError:
        return math.inf


def _rate(value: Mapping[str, object], key: str, source: str) -> float:
    given = _number(value, key, source)
    if not MIN_RATE <= given <= MAX_RATE:
        raise UsageError(f"{source} {key}", given, f"{MIN_RATE:g} to {MAX_RATE:g} a second")
    return given


def _dimension(value: Mapping[str, object], name: str, source: str) -> int | str:
    given = value[name]
    if name == "dtype":
        dtype = _text(value, name, f"{source} dimensions")
        if dtype not in DTYPE_BYTES:
            raise UsageError(f"{source} dimensions dtype", dtype, ", ".join(DTYPE_BYTES))
        return dtype
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UsageError(f"{source} dimensions {name}", given, "a whole number above 0")
    return given
