"""Whether a profile that was fitted to steps can be believed, by its coefficients and its errors.

Knows profiles; for measured operations see core.profile_check.
"""

import math
from collections.abc import Iterator

from focus_bench.core.errors import UsageError
from focus_bench.sim.calibration import Profile

# Of a step's seconds. Quiet machines reach 0.03 at p50 and 0.1 at p90; beyond these limits the
# machine did other work meanwhile, or too few steps were measured.
MAX_ERROR_P50 = 0.15
MAX_ERROR_P90 = 0.5
MAX_ERROR_TOTAL = 0.1
# Relative, between the errors that the file gives and those that its samples have; rounding.
ERROR_TOLERANCE = 0.01

LIMITS_TEXT = (
    f"ok: errors of the fit are at most {MAX_ERROR_P50:.0%} at p50, {MAX_ERROR_P90:.0%} at p90 "
    f"and {MAX_ERROR_TOTAL:.0%} in all"
)


def fit_problems(profile: Profile) -> list[str]:
    """Everything that is wrong, one line each; empty if the profile can be believed."""
    problems = [*_values(profile), *_errors(profile)]
    return problems or [*_own_errors(profile)]  # the samples' own need numbers


def check_values(profile: Profile, *, source: str) -> None:
    """Raise UsageError, naming `source`, for numbers with which nothing can be predicted."""
    for problem in _values(profile):
        field, _, rest = problem.partition(": ")
        value, _, allowed = rest.partition("; allowed: ")
        raise UsageError(f"{source} {field}", value, allowed)


def _values(profile: Profile) -> Iterator[str]:
    knots = profile.knots
    if not knots or list(knots) != sorted(set(knots)) or not 0.0 < knots[0] <= knots[-1] < math.inf:
        yield f"knots: {list(knots)}; allowed: one or more numbers above 0, ascending"
    measured = {f"seconds of {part}": s.tolist() for part, s in profile.samples.seconds.items()}
    fitted = {f"coefficient {name}": [value] for name, value in profile.coefficients.items()}
    for name, values in (fitted | measured).items():
        for value in values:
            if not 0.0 <= value < math.inf:
                yield f"{name}: {value}; allowed: 0 or more, and finite"
                break


def _own_errors(profile: Profile) -> Iterator[str]:
    for name, own in profile.own_errors.items():
        given = getattr(profile, name)
        if not math.isclose(given, own, rel_tol=ERROR_TOLERANCE, abs_tol=1e-3):
            yield f"{name}: {given:.4g}; its own samples say {own:.4g}"


def _errors(profile: Profile) -> Iterator[str]:
    for name, value, limit in (
        ("error_p50", profile.error_p50, MAX_ERROR_P50),
        ("error_p90", profile.error_p90, MAX_ERROR_P90),
    ):
        if not 0.0 <= value <= limit:
            yield f"{name}: {value:g}; allowed: 0 to {limit:g} (calibrate on an idle machine)"
    if not abs(profile.error_total) <= MAX_ERROR_TOTAL:
        yield (
            f"error_total: {profile.error_total:g}; allowed: -{MAX_ERROR_TOTAL:g} to "
            f"{MAX_ERROR_TOTAL:g} (calibrate on an idle machine)"
        )
