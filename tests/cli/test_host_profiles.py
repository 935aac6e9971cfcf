"""Host profiles: seconds from the paper's own figures, and what they do to a step."""

import dataclasses

import pytest

from focus_bench.api import load_workload, make_point
from focus_bench.api.host_profiles import (
    HostBoundModel,
    HostProfile,
    host_profile,
    published_step_s,
)
from focus_bench.api.prediction import find_target, with_host
from focus_bench.core.costs import StepShape
from focus_bench.core.errors import UsageError
from focus_bench.core.records import StepTiming
from focus_bench.report.paper.published import LLADA2, SDAR


@dataclasses.dataclass(frozen=True)
class FixedModel:
    """Every step: 10 ms of the device and 2 ms of the host."""

    label: str = "fixed"

    def step_timing(self, shape: StepShape) -> StepTiming:
        return StepTiming(duration_s=0.012, suffix_s=0.010, host_s=0.002)


@pytest.mark.parametrize(
    ("step_ms", "duration_ms", "host_ms"), [(37, 37, 27), (10, 10, 0), (0, 10, 0)]
)
def test_a_step_takes_the_longer_of_device_and_host(
    step_ms: float, duration_ms: float, host_ms: float
) -> None:
    host = HostProfile(name="x", step_s=step_ms / 1e3, source="test")
    timing = HostBoundModel(base=FixedModel(), host=host).step_timing(None)  # type: ignore[arg-type]
    assert timing.duration_s == pytest.approx(duration_ms / 1e3)
    assert timing.host_s == pytest.approx(host_ms / 1e3)
    assert timing.suffix_s == 0.010


def test_the_papers_baseline_needs_35_to_38_ms_a_forward_at_batch_1() -> None:
    """57.5 tok/s at 15.02 of 32 positions a token: 27 forwards a second, and so on."""
    assert published_step_s(SDAR) == pytest.approx(
        {"sharegpt": 0.03705, "wildchat": 0.03772, "math": 0.03506}, abs=1e-5
    )
    # So different a model takes as long: the device is hardly what it waits for.
    assert all(0.0348 < seconds < 0.0357 for seconds in published_step_s(LLADA2).values())
    profile = host_profile("lmdeploy-eager")
    assert profile is not None
    assert profile.step_s == pytest.approx(0.03661, abs=1e-5)
    assert "fitted to SDAR-8B-Chat's baseline in Table 7" in profile.label
    stated = host_profile("lmdeploy-eager", step_ms=20)
    assert stated is not None
    assert (stated.step_s, stated.source) == (0.02, "as the caller states it")


def test_ours_changes_nothing_and_takes_no_seconds() -> None:
    assert host_profile("ours") is None
    target = find_target("h200", make_point(model="sdar-8b").engine)
    assert with_host(target, None) is target
    with pytest.raises(UsageError, match=r"--host-step-ms: 20"):
        host_profile("ours", step_ms=20)
    with pytest.raises(UsageError, match=r"--host-profile: 'vllm' .*ours, lmdeploy-eager"):
        host_profile("vllm")
    with pytest.raises(UsageError, match="--host-step-ms: -1"):
        host_profile("lmdeploy-eager", step_ms=-1)


def test_a_prediction_under_another_host_says_so_and_is_slower_by_its_steps() -> None:
    point = make_point(
        model="sdar-8b", dataset="synthetic", policy="baseline", num_prompts=2, batch_size=1
    )
    workload = load_workload(point)
    target = find_target("a100-sxm4-80g", point.engine)
    slow = with_host(target, host_profile("lmdeploy-eager", step_ms=1000))
    assert slow.name == "a100-sxm4-80g+lmdeploy-eager"
    assert "host profile lmdeploy-eager, an assumption" in slow.label
    record = slow.predict(point, workload)
    assert any("host profile lmdeploy-eager, an assumption" in note for note in record.notes)
    plain = target.predict(point, workload)
    assert len(record.steps) == len(plain.steps)  # all arrive at once: time decides nothing
    assert record.duration_s == pytest.approx(len(record.steps))
    assert plain.duration_s < 0.1 * record.duration_s
