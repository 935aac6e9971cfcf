"""Cost profiles: a fitted time model of one device, from measured steps, as versioned JSON files.

Knows samples and terms; measuring is the engine's business.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

import numpy as np

from focus_bench.core.calibration import (
    COUNT_NAMES,
    TIMED_PARTS,
    CalibrationSamples,
    FloatArray,
    StepCounts,
    check_applies,
    dimensions_of,
    read_json,
)
from focus_bench.core.costs import StepShape
from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import DTYPE_BYTES, ModelSpec
from focus_bench.core.records import StepTiming
from focus_bench.sim.nonnegative import robust_nnls
from focus_bench.sim.terms import (
    TERMS,
    Dimensions,
    design,
    gemm_terms,
    gemm_weights,
    predicted_seconds,
)
from focus_bench.sim.uncertainty import Uncertainty, runs_of, seconds_of, uncertainty_of

PROFILE_SCHEMA_VERSION = 1
# Rows at which the curve of the matrix products has a knot, where enough steps were measured.
_KNOTS = (16.0, 64.0, 256.0, 1024.0, 4096.0)
_MIN_STEPS_AT_KNOT = 3.0


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was measured on a device and the coefficients (seconds per unit) fitted to it.

    `error_p50`, `error_p90`: quantiles of the absolute relative error of the fit over the measured
    steps; `error_total`: relative error of their sum.
    """

    name: str
    samples: CalibrationSamples
    knots: tuple[float, ...]
    coefficients: Mapping[str, float]
    error_p50: float
    error_p90: float
    error_total: float

    @property
    def label(self) -> str:
        """What every output says about predictions made with it."""
        measured = self.samples
        return f"calibrated on {measured.device} ({self.name}, {measured.date}, {measured.model})"

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """How far measured steps are from what the coefficients say."""
        return uncertainty_of(self._fitted_s, seconds_of(self.samples), runs_of(self.samples))

    @property
    def own_errors(self) -> dict[str, float]:
        """`error_p50`, `error_p90` and `error_total` as the samples and the coefficients say."""
        return _errors(self._fitted_s.sum(axis=1), seconds_of(self.samples).sum(axis=1))

    @cached_property
    def _fitted_s(self) -> FloatArray:
        """Seconds [steps, parts] by the coefficients."""
        seconds = predicted_seconds(
            self.samples.counts,
            _dimensions(self.samples.dimensions),
            self.knots,
            self.coefficients,
        )
        return np.stack([seconds[part] for part in TIMED_PARTS], axis=1)

    def save(self, path: Path) -> None:
        """Write as JSON, samples included."""
        path.write_text(json.dumps(self.to_json()) + "\n", encoding="utf-8")

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "schema_version": PROFILE_SCHEMA_VERSION,
            "name": self.name,
            "knots": list(self.knots),
            "coefficients": {k: float(f"{v:.6g}") for k, v in self.coefficients.items()},
            "error_p50": round(self.error_p50, 4),
            "error_p90": round(self.error_p90, 4),
            "error_total": round(self.error_total, 4),
            "samples": self.samples.to_json(),
        }


def load_profile(path: Path) -> Profile:
    """Read what `Profile.save` wrote; raises UsageError naming the file and what is wrong."""
    value = read_json(path)
    source = f"profile {path}"
    try:
        if not isinstance(value, dict) or not value.keys() & {"samples", "coefficients"}:
            raise UsageError(source, "not a profile", "a profile that calibrate wrote")
        if value["schema_version"] != PROFILE_SCHEMA_VERSION:
            raise UsageError(
                f"{source} schema_version",
                value["schema_version"],
                f"{PROFILE_SCHEMA_VERSION} (calibrate again)",
            )
        knots = tuple(float(knot) for knot in value["knots"])
        names = (*gemm_terms(knots), *TERMS)
        return Profile(
            name=str(value["name"]),
            samples=CalibrationSamples.from_json(value["samples"], source=source),
            knots=knots,
            coefficients={name: float(value["coefficients"][name]) for name in names},
            error_p50=float(value["error_p50"]),
            error_p90=float(value["error_p90"]),
            error_total=float(value["error_total"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(source, "unreadable", "a profile that calibrate wrote") from error


def bundled_profiles() -> dict[str, Path]:
    """The profiles that come with the package, by name."""
    folder = resources.files("focus_bench") / "profiles"
    paths = [Path(str(entry)) for entry in folder.iterdir() if entry.name.endswith(".json")]
    return {path.stem: path for path in sorted(paths)}


def get_profile(name: str) -> Profile:
    """The bundled profile called `name`; raises UsageError naming what exists."""
    profiles = bundled_profiles()
    if name not in profiles:
        raise UsageError("--profile", name, f"a file, or {', '.join(profiles)}")
    return load_profile(profiles[name])


def fit_profile(samples: CalibrationSamples, *, name: str) -> Profile:
    """Fit the terms' coefficients, none of them negative, to measured steps.

    Least squares over all parts of all steps at once, so that prefix, suffix and prefill share what
    a matrix product costs. A part's residual is weighted by 1 / sqrt(its seconds * its step's
    seconds), between absolute and relative, and reweighted by its size (Huber's function at twice
    the median), so that disturbed steps count little. Raises UsageError for too few steps.
    """
    if samples.num_steps < 2 * len(TERMS):
        raise UsageError(
            "calibration steps", samples.num_steps, f"at least {2 * len(TERMS)} measured steps"
        )
    knots = _usable_knots(samples)
    terms = (*gemm_terms(knots), *TERMS)
    parts = design(samples.counts, _dimensions(samples.dimensions), knots)
    absent = np.zeros(samples.num_steps)
    matrix = np.concatenate(
        [
            np.stack([parts[part].get(term, absent) for term in terms], axis=1)
            for part in TIMED_PARTS
        ]
    )
    seconds = np.concatenate([samples.seconds[part] for part in TIMED_PARTS])
    step_s = np.sum([samples.seconds[part] for part in TIMED_PARTS], axis=0)
    coefficients = robust_nnls(matrix, seconds, np.tile(step_s, len(TIMED_PARTS)))
    fitted_s = (matrix @ coefficients).reshape(len(TIMED_PARTS), -1).sum(axis=0)
    return Profile(
        name=name,
        samples=samples,
        knots=knots,
        coefficients=dict(zip(terms, coefficients.tolist(), strict=True)),
        **_errors(fitted_s, step_s),
    )


def _errors(fitted_s: FloatArray, step_s: FloatArray) -> dict[str, float]:
    """Of the seconds of steps."""
    errors = np.abs(fitted_s / step_s - 1.0)
    return {
        "error_p50": float(np.percentile(errors, 50)),
        "error_p90": float(np.percentile(errors, 90)),
        "error_total": float(fitted_s.sum() / step_s.sum() - 1.0),
    }


def _usable_knots(samples: CalibrationSamples) -> tuple[float, ...]:
    """Knots with enough steps near them: at others the curve would be free to be zero."""
    rows = np.concatenate([samples.counts[name] for name in ("prefill_tokens", "fed", "kept")])
    near = gemm_weights(rows[rows > 0], _KNOTS).sum(axis=0)
    usable = tuple(k for k, steps in zip(_KNOTS, near, strict=True) if steps >= _MIN_STEPS_AT_KNOT)
    if not usable:
        raise UsageError("calibration steps", "none with tokens", "steps that feed tokens")
    return usable


def _dimensions(values: Mapping[str, int | str]) -> Dimensions:
    def of(name: str) -> int:
        return int(values[name])

    head_dim = of("head_dim")
    kv_size = of("num_kv_heads") * head_dim
    return Dimensions(
        num_layers=of("num_layers"),
        hidden_size=of("hidden_size"),
        q_size=of("num_q_heads") * head_dim,
        kv_size=kv_size,
        intermediate_size=of("intermediate_size"),
        vocab_size=of("vocab_size"),
        kv_bytes_per_token=2 * of("num_layers") * kv_size * DTYPE_BYTES[str(values["dtype"])],
    )


@dataclass(frozen=True, kw_only=True)
class ProfileModel:
    """The time model of a calibrated device, for `spec`: terms times fitted coefficients."""

    spec: ModelSpec
    profile: Profile

    def __post_init__(self) -> None:
        check_applies(self.profile.samples.dimensions, self.spec, profile=self.profile.name)

    @property
    def is_extrapolated(self) -> bool:
        """Whether another model was measured."""
        return dict(self.profile.samples.dimensions) != dimensions_of(self.spec)

    @property
    def label(self) -> str:
        """Names the measurement, and that it was another model's if it was."""
        if not self.is_extrapolated:
            return self.profile.label
        return f"{self.profile.label}, extrapolated to {self.spec.name}"

    @cached_property
    def _dims(self) -> Dimensions:
        return _dimensions(dimensions_of(self.spec))

    def step_timing(self, shape: StepShape) -> StepTiming:
        """Seconds of one step, split into its parts."""
        step = StepCounts.of(shape)
        counts = {name: np.array([getattr(step, name)]) for name in COUNT_NAMES}
        arrays = predicted_seconds(
            counts, self._dims, self.profile.knots, self.profile.coefficients
        )
        seconds = {part: float(values[0]) for part, values in arrays.items()}
        return StepTiming(
            duration_s=sum(seconds.values()),
            prefill_s=seconds["prefill"],
            prefix_s=seconds["prefix"],
            eviction_s=seconds["eviction"],
            suffix_s=seconds["suffix"],
            head_s=seconds["head"],
            swap_s=seconds["swap"],
            host_s=seconds["host"],
        )
