"""Host time of another engine, as an assumption that replaces a cost model's own.

Knows cost models by their protocol only, and nothing of devices or points.
"""

import dataclasses
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from focus_bench.core.costs import StepShape
from focus_bench.core.errors import UsageError, check_choice, check_range
from focus_bench.core.records import StepTiming
from focus_bench.report.paper.published import SDAR, SOURCE
from focus_bench.report.paper.published_speed import (
    BLOCK_LENGTH,
    PROCESSED_PER_DECODED,
    THROUGHPUT_BATCH_1,
)

if TYPE_CHECKING:
    from focus_bench.sim.cost_model import CostModel

OURS, LMDEPLOY_EAGER = "ours", "lmdeploy-eager"
HOST_PROFILES = (OURS, LMDEPLOY_EAGER)


@dataclass(frozen=True, kw_only=True)
class HostProfile:
    """Host seconds of a step of another engine: no step takes less, whatever the device does.

    Eager kernels are queued ahead of the device, so host and device work overlap and the longer of
    the two is what a step takes. `source`: where the seconds come from.
    """

    name: str
    step_s: float
    source: str

    def __post_init__(self) -> None:
        check_range("host step seconds", self.step_s, low=0.0)

    @property
    def label(self) -> str:
        """What every output of its predictions says."""
        return (
            f"host profile {self.name}, an assumption (at least {1e3 * self.step_s:.1f} ms a step, "
            f"{self.source})"
        )


def host_profile(
    name: str, *, model: str = SDAR, step_ms: float | None = None
) -> HostProfile | None:
    """What --host-profile names; None for "ours", whose host time is the cost model's own.

    "lmdeploy-eager" is the paper's baseline at batch 1, where its device idles: `step_ms`, else
    what the paper's figures of `model` (its name there) imply. Raises UsageError for other names,
    and for seconds of "ours".
    """
    check_choice("--host-profile", name, HOST_PROFILES)
    if name == OURS:
        if step_ms is not None:
            raise UsageError("--host-step-ms", step_ms, f"with --host-profile {LMDEPLOY_EAGER}")
        return None
    if step_ms is not None:
        check_range("--host-step-ms", step_ms, low=0.0)
        return HostProfile(name=name, step_s=step_ms / 1e3, source="as the caller states it")
    return HostProfile(
        name=name,
        step_s=fmean(published_step_s(model).values()),
        source=f"fitted to {model}'s baseline in Table 7 of {SOURCE}: B / (processed per decoded * "
        "tokens per second), mean of its data sets",
    )


def published_step_s(model: str) -> dict[str, float]:
    """Seconds of one forward of the paper's baseline at batch 1, by data set; `model`: the paper's
    name.

    Every forward of the baseline processes B positions, so Table 5's ratio says how many tokens a
    forward decodes, and Table 7's throughput how many forwards a second has.
    """
    ratios = PROCESSED_PER_DECODED[model]["baseline"]
    return {
        dataset: BLOCK_LENGTH / (ratios[dataset] * throughput)
        for dataset, throughput in THROUGHPUT_BATCH_1[model]["baseline"].items()
    }


def published_host(model: str) -> str:
    """What --host-profile ours leaves out, in words."""
    steps = published_step_s(model).items()
    listed = ", ".join(f"{1e3 * seconds:.1f} ms ({dataset})" for dataset, seconds in steps)
    return (
        "gap, host: the paper ran without CUDA graphs (F.1); its baseline's forward at batch 1 "
        f"took {listed} by its Tables 5 and 7, which --host-profile {OURS} does not have: see "
        f"{LMDEPLOY_EAGER}"
    )


@dataclass(frozen=True, kw_only=True)
class HostBoundModel:
    """A cost model whose own host time is replaced by a host profile's."""

    base: "CostModel"
    host: HostProfile

    @property
    def label(self) -> str:
        """That of the device's seconds, and the assumption."""
        return f"{self.base.label}; {self.host.label}"

    def step_timing(self, shape: StepShape) -> StepTiming:
        """Seconds of one step; `host_s` is what the device's work does not hide."""
        timing = self.base.step_timing(shape)
        device_s = timing.duration_s - timing.host_s
        duration_s = max(device_s, self.host.step_s)
        return dataclasses.replace(timing, duration_s=duration_s, host_s=duration_s - device_s)
