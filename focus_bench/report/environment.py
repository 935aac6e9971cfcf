"""What a GPU's samples of one run come to: clocks, power, energy, temperature, throttling.

Knows the samples only, not how they were taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from focus_bench.core.records import EnvironmentSample

# Of nvidia-smi's clock reasons those that mean a GPU slower than its settings allow; the others are
# idleness and clocks that someone has set.
THROTTLE_REASONS = (
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)
FEW_SAMPLES = 10  # below, a run is hardly longer than what the driver averages over


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A clock over the samples of a run, in MHz."""

    mean_mhz: float
    min_mhz: int
    max_mhz: int


@dataclass(frozen=True, kw_only=True)
class EnvironmentMetrics:
    """A GPU during one run; None marks what its driver does not tell.

    `energy_j`: of the whole board from the first sample to the last, idle power and other programs
    on it included; `energy_source`: "counter" (the driver's) or "power" (trapezoids between samples
    of the power). `mean_power_w` is this energy over that time. `clock_reasons`: share of the
    samples that gave a reason, for each reason seen.
    """

    num_samples: int
    sm_clock: Clock | None
    memory_clock: Clock | None
    mean_power_w: float | None
    max_temperature_c: int | None
    energy_j: float | None
    energy_source: str
    clock_reasons: Mapping[str, float] | None

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """The reasons seen that mean throttling."""
        return tuple(name for name in THROTTLE_REASONS if name in (self.clock_reasons or {}))

    @property
    def is_few(self) -> bool:
        """Whether the run was too short for its figures to be more than a hint."""
        return self.num_samples < FEW_SAMPLES


def summarise(samples: Sequence[EnvironmentSample]) -> EnvironmentMetrics | None:
    """Figures of samples in order of time; None for fewer than two.

    The first and the last are taken outside the run and bound the energy only, unless there are no
    others.
    """
    if len(samples) < 2:
        return None
    inside = samples[1:-1] or samples
    energy_j, source = _energy(samples)
    seconds = samples[-1].time_s - samples[0].time_s
    temperatures = [s.temperature_c for s in inside if s.temperature_c is not None]
    return EnvironmentMetrics(
        num_samples=len(samples),
        sm_clock=_clock([s.sm_clock_mhz for s in inside]),
        memory_clock=_clock([s.memory_clock_mhz for s in inside]),
        mean_power_w=None if energy_j is None or seconds <= 0 else energy_j / seconds,
        max_temperature_c=max(temperatures, default=None),
        energy_j=energy_j,
        energy_source=source,
        clock_reasons=_reasons(inside),
    )


def environment_row(
    environment: EnvironmentMetrics | None, energy_per_output_token_j: float | None
) -> dict[str, str | float | None]:
    """Tidy columns with units in their names; None for what is not known."""
    row: dict[str, str | float | None] = {"energy_per_output_token_j": energy_per_output_token_j}
    e = environment
    row |= {
        "energy_j": None if e is None else e.energy_j,
        "energy_source": None if e is None else e.energy_source or None,
        "power_mean_w": None if e is None else e.mean_power_w,
        "temperature_max_c": None if e is None else e.max_temperature_c,
    }
    for name, clock in (
        ("sm_clock", None if e is None else e.sm_clock),
        ("memory_clock", None if e is None else e.memory_clock),
    ):
        row[f"{name}_mean_mhz"] = None if clock is None else clock.mean_mhz
        row[f"{name}_min_mhz"] = None if clock is None else clock.min_mhz
        row[f"{name}_max_mhz"] = None if clock is None else clock.max_mhz
    reasons = None if e is None else e.clock_reasons
    row["clock_reasons"] = None if reasons is None else reasons_text(reasons)
    row["environment_samples"] = None if e is None else e.num_samples
    return row


def reasons_text(reasons: Mapping[str, float]) -> str:
    """Reasons and their shares of the samples, as "sw_power_cap=0.25; ..."; "none" for none."""
    return "; ".join(f"{name}={share:.4g}" for name, share in reasons.items()) or "none"


def _energy(samples: Sequence[EnvironmentSample]) -> tuple[float | None, str]:
    first, last = samples[0].energy_j, samples[-1].energy_j
    if first is not None and last is not None:
        return last - first, "counter"
    if samples[0].power_w is None or samples[-1].power_w is None:
        return None, ""
    powers = [(s.time_s, s.power_w) for s in samples if s.power_w is not None]
    area = sum((t1 - t0) * (p0 + p1) / 2 for (t0, p0), (t1, p1) in pairwise(powers))
    return area, "power"


def _clock(values: Sequence[int | None]) -> Clock | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Clock(mean_mhz=sum(known) / len(known), min_mhz=min(known), max_mhz=max(known))


def _reasons(samples: Sequence[EnvironmentSample]) -> dict[str, float] | None:
    told = [s.clock_reasons for s in samples if s.clock_reasons is not None]
    if not told:
        return None
    seen = dict.fromkeys(name for reasons in told for name in reasons)
    return {name: sum(name in reasons for reasons in told) / len(told) for name in seen}
