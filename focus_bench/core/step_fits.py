"""What a GPU profile's whole steps say of its curves, as the file keeps it beside them.

Kept so that no prediction has to fit it anew. Knows values and their limits; what they mean and how
they are found is the simulator's business.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from focus_bench.core.calibration import TIMED_PARTS
from focus_bench.core.errors import UsageError

FloatArray = npt.NDArray[np.float64]

KEY = "fits"
# Of how fits are made of steps, and signed. Those of another revision are not read but made anew.
FITS_REVISION = 2
_MOST = 1e300
# Relative; machines round sums differently.
SAME = 1e-6
_COEFFICIENTS = ("scale", "constant_s", "per_sequence_s")


@dataclass(frozen=True, kw_only=True)
class StepsFit:
    """The fit to the steps of one mode; every part is one of TIMED_PARTS.

    `row_tile` and `distinct_per_block`: what steps are made of; `scale`, `constant_s` and
    `per_sequence_s`: corrections of parts. `runs` [k, parts]: logarithms of measured over predicted
    seconds of whole runs, NaN where a run has no such part; `step_spread` and `part_spread`
    [parts]: standard deviations of single steps and of single measurements, relative.
    """

    row_tile: int
    distinct_per_block: float
    scale: Mapping[str, float]
    constant_s: Mapping[str, float]
    per_sequence_s: Mapping[str, float]
    runs: FloatArray
    step_spread: FloatArray
    part_spread: FloatArray


def fits_to_json(fits: Mapping[str, StepsFit], profile: Mapping[str, object]) -> dict[str, object]:
    """Plain values of the fits of a profile, by mode; `profile`: the plain values of the rest."""
    modes = {mode: _fit_to_json(fit) for mode, fit in fits.items()}
    return {"revision": FITS_REVISION, "of": _digest(profile, modes), "modes": modes}


def fits_from_json(profile: Mapping[str, object], *, source: str) -> dict[str, StepsFit]:
    """The inverse, of a profile's file; empty if it keeps none, or those of another revision, or
    if they or what they were fitted to was altered. Raises UsageError naming `source` and the key
    that is wrong.
    """
    if KEY not in profile:
        return {}
    value, source = profile[KEY], f"{source} {KEY}"
    if not isinstance(value, dict) or not isinstance(value.get("modes"), dict):
        raise UsageError(source, type(value).__name__, "revision, of and modes, by calibrate")
    modes = value["modes"]
    if value.get("revision") != FITS_REVISION or value.get("of") != _digest(profile, modes):
        return {}
    return {mode: _fit_from_json(fit, f"{source} {mode}") for mode, fit in modes.items()}


def fits_passed_over(profile: Mapping[str, object]) -> list[str]:
    """Why the fits that a profile's file keeps are not used, one line each; of another revision,
    which is no fault, none.
    """
    if KEY not in profile:
        return []
    value = profile[KEY]
    assert isinstance(value, dict)  # as it was read
    revision = value.get("revision")
    if type(revision) is not int:
        return [f"{KEY} revision: {json.dumps(revision)}; allowed: a whole number"]
    if "of" not in value:
        return [f"{KEY} of: missing; needed: the digest that calibrate writes"]
    if revision != FITS_REVISION or value["of"] == _digest(profile, value["modes"]):
        return []
    return [f"{KEY}: they or what they were fitted to was altered; they are not used"]


def is_alike(one: StepsFit, other: StepsFit) -> bool:
    """Whether two fits to the same steps are the same, but for how machines round."""
    if one.runs.shape != other.runs.shape:
        return False
    for name in ("row_tile", "distinct_per_block", "runs", "step_spread", "part_spread"):
        pair = getattr(one, name), getattr(other, name)
        if not np.allclose(*pair, rtol=SAME, atol=SAME, equal_nan=True):
            return False
    for name in _COEFFICIENTS:
        ours, theirs = getattr(one, name), getattr(other, name)
        if set(ours) != set(theirs):
            return False
        if not all(math.isclose(x, theirs[part], rel_tol=SAME) for part, x in ours.items()):
            return False
    return True


def _digest(profile: Mapping[str, object], modes: Mapping[str, object]) -> str:
    """Of a profile and its fits by mode."""
    text = json.dumps({**profile, KEY: modes}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _fit_to_json(fit: StepsFit) -> dict[str, object]:
    distinct = None if math.isinf(fit.distinct_per_block) else fit.distinct_per_block
    return {
        "row_tile": fit.row_tile,
        "distinct_per_block": distinct,
        **{name: dict(getattr(fit, name)) for name in _COEFFICIENTS},
        "runs": [[None if math.isnan(x) else x for x in run] for run in fit.runs.tolist()],
        "step_spread": fit.step_spread.tolist(),
        "part_spread": fit.part_spread.tolist(),
    }


def _fit_from_json(value: object, source: str) -> StepsFit:
    names = ("row_tile", "distinct_per_block", *_COEFFICIENTS, "runs", "step_spread", "part_spread")
    if not isinstance(value, dict) or not all(name in value for name in names):
        raise UsageError(source, "unreadable", ", ".join(names))
    tile, distinct = value["row_tile"], value["distinct_per_block"]
    if type(tile) is not int or tile < 1:
        raise UsageError(f"{source} row_tile", tile, "a whole number above 0")
    if distinct is not None and not (_is_number(distinct) and distinct > 0.0):
        raise UsageError(f"{source} distinct_per_block", distinct, "a number above 0, or null")
    for name in _COEFFICIENTS:
        given = value[name]
        if not isinstance(given, dict) or not set(given) <= set(TIMED_PARTS):
            raise UsageError(f"{source} {name}", str(given), f"numbers of {', '.join(TIMED_PARTS)}")
        for part, number in given.items():
            _check_from_0(number, f"{source} {name} {part}")
    for name in ("step_spread", "part_spread"):
        _check_parts(value[name], f"{source} {name}")
        for number in value[name]:
            _check_from_0(number, f"{source} {name}")
    if not isinstance(value["runs"], list):
        raise UsageError(f"{source} runs", type(value["runs"]).__name__, "a list of runs")
    for run in value["runs"]:
        _check_parts(run, f"{source} runs")
        for number in run:
            if number is not None and not _is_number(number):
                raise UsageError(f"{source} runs", number, "finite numbers, or null")
    runs = [[math.nan if x is None else x for x in run] for run in value["runs"]]
    return StepsFit(
        row_tile=tile,
        distinct_per_block=math.inf if distinct is None else float(distinct),
        scale=value["scale"],
        constant_s=value["constant_s"],
        per_sequence_s=value["per_sequence_s"],
        runs=np.array(runs, dtype=np.float64).reshape(-1, len(TIMED_PARTS)),
        step_spread=np.array(value["step_spread"], dtype=np.float64),
        part_spread=np.array(value["part_spread"], dtype=np.float64),
    )


def _is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -_MOST <= value <= _MOST


def _check_from_0(value: object, source: str) -> None:
    if not _is_number(value) or value < 0.0:
        raise UsageError(source, value, "a finite number from 0")


def _check_parts(value: object, source: str) -> None:
    if not isinstance(value, list) or len(value) != len(TIMED_PARTS):
        raise UsageError(source, value, f"{len(TIMED_PARTS)} numbers: {', '.join(TIMED_PARTS)}")
