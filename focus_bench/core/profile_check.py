"""Whether a GPU's measured operations can be believed: for profiles made elsewhere.

Knows curves and data sheets; reading the file is gpu_profile_file's business.
"""

import datetime
import math
import re
from collections.abc import Iterator

import numpy as np

from focus_bench.core.calibration import dimensions_of
from focus_bench.core.curve_floors import Widths, floor_s
from focus_bench.core.curve_samples import held_out_errors
from focus_bench.core.hardware import Hardware, sheet_of_device
from focus_bench.core.model_spec import DTYPE_BYTES, PRESETS
from focus_bench.core.op_curves import CURVES, STEP_MODES, GpuCalibration, MeasuredExperts, OpCurve

SETTINGS = ("driver", "cuda", "torch", "triton", "python", "page_size")
# How far a measurement may lie above the data sheet's peaks before it is not believed.
MAX_OVER_SHEET = 1.1
LONGEST_CALL_S = 10.0
LARGEST_SPREAD = {"device": 0.5, "host": math.inf}  # a host has other things to do
# Twice the work in less time, by more than all of these and three times the points' spreads, is a
# fault of the measurement. (Less than twice may well be faster: products have tiles. And where
# another kernel, tile or split is chosen for more work, what each takes at least may differ: on an
# H200, cuBLAS's product of one row takes 11 us more than that of 16.)
MAX_DROP = 0.1
MAX_DROP_S = 15e-6
# Half of a curve's points farther off than this when left out: the points are wrong, or too far
# apart. (Between neighbours, half as far apart, a smooth curve is a quarter as far off.)
MAX_HELD_OUT_P50 = 0.3
# Relative, between the error that the file gives and the one that its points have; rounding.
HELD_OUT_TOLERANCE = 0.01
# Of what is written with six digits.
_ROUNDING = 1e-4
VERDICT = (
    "ok: nothing is faster than a data sheet of the device allows, points left out of the device's "
    f"curves (not the host's) are at most {MAX_HELD_OUT_P50:.0%} off at p50, and kept fits are "
    "those of its own steps"
)
_EARLIEST = datetime.date(2020, 1, 1)
# More sequences may take less time: the fewer there are, the more parts are their keys split into.
_NOT_WORK = ("attention_decode", "sequences")


def profile_problems(
    calibration: GpuCalibration, *, today: datetime.date | None = None
) -> list[str]:
    """Everything that is wrong, one line each; empty if the profile can be believed.

    `today`: no measurement is of a later day; None: the day in UTC.
    """
    today = today or datetime.datetime.now(datetime.UTC).date()
    problems = [*_provenance(calibration, today), *_preset(calibration)]
    sheet = sheet_of_device(calibration.device)
    dtype = str(calibration.dimensions["dtype"])
    if dtype not in DTYPE_BYTES:
        allowed = ", ".join(DTYPE_BYTES)
        return [*problems, f"dimensions dtype: {dtype!r}; allowed: {allowed}"]
    if sheet is not None:
        problems += _ceilings(calibration, sheet)
    experts = calibration.experts
    if experts is not None:
        problems += _load(experts)
    for curve in calibration.curves.values():
        faults = list(_ranges(curve))
        if not faults:  # the other checks need numbers
            faults += _held_out(curve)
            if sheet is not None and DTYPE_BYTES[dtype] == 2:  # the sheets' peaks are of 16 bits
                faults += _above_floor(curve, Widths.of(calibration.dimensions, experts), sheet)
            if CURVES[curve.name].clock == "device":
                faults += _monotony(curve)
        problems += faults
    return problems


def _provenance(calibration: GpuCalibration, today: datetime.date) -> Iterator[str]:
    for name in SETTINGS:
        if not calibration.settings.get(name):
            yield f"settings {name}: missing; needed: {', '.join(SETTINGS)}"
    page_size = calibration.settings.get("page_size")
    if page_size and not re.fullmatch(r"[1-9][0-9]{0,3}", page_size):
        yield f"settings page_size: {page_size!r}; allowed: a whole number from 1 to 9999"
    try:
        date = datetime.date.fromisoformat(calibration.date)
    except ValueError:
        yield f"date: {calibration.date!r}; allowed: a day as YYYY-MM-DD"
    else:
        if not _EARLIEST <= date <= today:
            yield f"date: {date}; allowed: {_EARLIEST} to {today}"
    if not re.fullmatch(r"[0-9a-f]{12}", calibration.kernel_revision):
        yield f"kernel_revision: {calibration.kernel_revision!r}; allowed: 12 hexadecimal digits"
    if not 0.0 < calibration.duration_s < math.inf:
        yield f"duration_s: {calibration.duration_s}; allowed: above 0"
    for mode in STEP_MODES:
        steps = calibration.steps[mode]
        if dict(steps.dimensions) != dict(calibration.dimensions):
            yield f"steps {mode}: of another model than the curves ({steps.model})"
        elif steps.model != calibration.model:
            yield f"steps {mode}: of {steps.model}, the curves of {calibration.model}"
        if steps.device != calibration.device:
            yield f"steps {mode}: of {steps.device}, the curves of {calibration.device}"
        if not steps.num_steps:
            yield f"steps {mode}: none; at least 1 is needed"
        elif not all(np.isfinite(s).all() and (s >= 0).all() for s in steps.seconds.values()):
            yield f"steps {mode}: seconds that are negative or not finite"


def _preset(calibration: GpuCalibration) -> Iterator[str]:
    """A model by the name of a preset has its shape; any number format will do."""
    preset = PRESETS.get(calibration.model)
    if preset is None:
        return
    wanted = dimensions_of(preset) | {"dtype": calibration.dimensions["dtype"]}
    others = [
        f"{name} {calibration.dimensions[name]} (of that model {value})"
        for name, value in wanted.items()
        if calibration.dimensions[name] != value
    ]
    measured = None if calibration.experts is None else calibration.experts.spec
    if measured != preset.experts:
        others.append("other experts")
    if others:
        yield (
            f"model: {calibration.model!r}, but {', '.join(others)}; allowed: the name of the "
            "model that was measured"
        )


def _ceilings(calibration: GpuCalibration, sheet: Hardware) -> Iterator[str]:
    peaks = {
        "copy_bytes_per_s": sheet.memory_bandwidth,
        "gemm_flops_per_s": sheet.dense_16bit_flops,
    }
    for name, peak in peaks.items():
        rate = calibration.ceilings[name]
        if not 0.0 < rate <= MAX_OVER_SHEET * peak:
            yield (
                f"ceilings {name}: {rate:.4g}; allowed: above 0, at most {MAX_OVER_SHEET:g} times "
                f"the {peak:.4g} of {sheet.full_name}'s data sheet"
            )


def _load(experts: MeasuredExperts) -> Iterator[str]:
    """Every token goes to as many experts as the router says, each time to another."""
    spec, load = experts.spec, experts.load
    each = spec.experts_per_token
    for rows, touched, share in zip(load.rows, load.touched, load.largest_share, strict=True):
        most = min(spec.num_experts, rows * each)
        if not each <= touched <= most:
            yield f"experts at rows {rows}: {touched:g} touched; allowed: {each} to {most}"
        least = 1.0 / min(most, touched) if touched > 0 else 1.0
        if not least * (1.0 - _ROUNDING) <= share <= (1.0 + _ROUNDING) / each:
            yield (
                f"experts at rows {rows}: {share:g} of all choices are one expert's; allowed: "
                f"{least:.4g} to {1.0 / each:.4g}"
            )


def _ranges(curve: OpCurve) -> Iterator[str]:
    largest_spread = LARGEST_SPREAD[CURVES[curve.name].clock]
    for what, bad, allowed in (
        (
            "seconds",
            ~(np.isfinite(curve.seconds) & (curve.seconds > 0) & (curve.seconds < LONGEST_CALL_S)),
            f"above 0 and below {LONGEST_CALL_S:g}",
        ),
        (
            "spread",
            ~(np.isfinite(curve.spread) & (curve.spread >= 0) & (curve.spread <= largest_spread)),
            f"0 to {largest_spread:g}",
        ),
    ):
        if bad.any():
            index = int(bad.argmax())
            value = getattr(curve, what)[index]
            yield (
                f"{curve.name}{_at(curve, index)}: {what} {value:.4g}; allowed: {allowed}"
                f"{_more(int(bad.sum()))}"
            )
    least = np.array([0 if axis == "history" else 1 for axis in curve.axes])
    whole = np.isfinite(curve.points) & (curve.points >= least)
    if not (whole.all() and (np.mod(curve.points, 1.0) == 0).all()):
        yield f"{curve.name} points: allowed are whole numbers, at least {least.tolist()}"
    elif len(np.unique(curve.points, axis=0)) < curve.num_points:
        yield f"{curve.name} points: some twice; each may be given once"


def _above_floor(curve: OpCurve, widths: Widths, sheet: Hardware) -> Iterator[str]:
    points = curve.points.astype(np.int64).tolist()
    floors = np.array([floor_s(curve.name, tuple(point), widths, sheet) for point in points])
    bad = curve.seconds * MAX_OVER_SHEET < floors
    if bad.any():
        index = int(np.argmax(floors / curve.seconds))
        yield (
            f"{curve.name}{_at(curve, index)}: {curve.seconds[index] * 1e6:.4g} us; allowed: at "
            f"least {floors[index] / MAX_OVER_SHEET * 1e6:.4g} us, by the data sheet"
            f"{_more(int(bad.sum()))}"
        )


def _held_out(curve: OpCurve) -> Iterator[str]:
    errors = held_out_errors(curve.points, curve.seconds)
    for name, given, own in (
        ("held_out_p50", curve.held_out_p50, float(np.median(errors)) if len(errors) else None),
        ("held_out_max", curve.held_out_max, float(errors.max()) if len(errors) else None),
    ):
        if (given is None) != (own is None) or (
            given is not None and own is not None and not _agree(given, own)
        ):
            yield f"{curve.name} {name}: {_shown(given)}; its own points say {_shown(own)}"
            return
    is_noise = CURVES[curve.name].clock == "host"
    if not is_noise and (curve.held_out_p50 or 0.0) > MAX_HELD_OUT_P50:
        yield (
            f"{curve.name} held_out_p50: {curve.held_out_p50:.3g}; allowed: at most "
            f"{MAX_HELD_OUT_P50:g} (more points, or steadier ones)"
        )


def _agree(given: float, own: float) -> bool:
    return math.isclose(given, own, rel_tol=HELD_OUT_TOLERANCE, abs_tol=1e-4)


def _shown(error: float | None) -> str:
    return "none" if error is None else f"{error:.4g}"


def _monotony(curve: OpCurve) -> Iterator[str]:
    worst, place, count = 0.0, (0, 0), 0
    for low, high in _doublings(curve):
        noise = 3.0 * math.hypot(curve.spread[low], curve.spread[high])
        drop = 1.0 - curve.seconds[high] / curve.seconds[low]
        if drop > MAX_DROP + noise + MAX_DROP_S / curve.seconds[low]:
            count += 1
            if drop > worst:
                worst, place = drop, (low, high)
    if count:
        low, high = place
        yield (
            f"{curve.name}{_at(curve, high)}: {curve.seconds[high] * 1e6:.4g} us, less than the "
            f"{curve.seconds[low] * 1e6:.4g} us{_at(curve, low)}; allowed: {MAX_DROP:.0%}, "
            f"{MAX_DROP_S * 1e6:.0f} us and the noise less{_more(count)}"
        )


def _doublings(curve: OpCurve) -> Iterator[tuple[int, int]]:
    """Pairs of points of which the second has at least twice the work on one axis."""
    for axis, name in enumerate(curve.axes):
        if (curve.name, name) == _NOT_WORK:
            continue
        lines: dict[tuple[float, ...], list[int]] = {}
        for index, others in enumerate(np.delete(curve.points, axis, axis=1).tolist()):
            lines.setdefault(tuple(others), []).append(index)
        for line in lines.values():
            for low in line:
                for high in line:
                    if curve.points[high, axis] >= 2 * max(1.0, curve.points[low, axis]):
                        yield low, high


def _at(curve: OpCurve, index: int) -> str:
    parts = zip(curve.axes, curve.points[index].tolist(), strict=True)
    return " at " + ", ".join(f"{axis} {value:g}" for axis, value in parts)


def _more(count: int) -> str:
    return "" if count == 1 else f" (the worst of {count})"
