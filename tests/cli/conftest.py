"""A cache of its own for every test, and calibration samples that cost no measuring."""

from pathlib import Path

import pytest

from focus_bench.api import load_workload, make_point
from focus_bench.core.calibration import (
    CalibrationSamples,
    StepCounts,
    dimensions_of,
    samples_of,
)
from focus_bench.core.hardware import HARDWARE
from focus_bench.core.model_spec import PRESETS
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.step_shape import step_shape
from focus_bench.sim.roofline import RooflineModel
from focus_bench.sim.simulate import simulate_point

SPEC = PRESETS["dummy-tiny"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder."""
    folder = tmp_path / "user-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def samples() -> CalibrationSamples:
    """Steps as an engine would measure them, with a roofline's seconds instead of a clock's."""
    model = RooflineModel(spec=SPEC, hardware=HARDWARE["h200"])
    steps: list[tuple[StepCounts, dict[str, float]]] = []

    def on_step(plan: Plan, outcome: Outcome) -> None:
        shape = step_shape(
            plan,
            kept=outcome.kept,
            progress=outcome.progress,
            evicting=outcome.evicting,
            page_size=64,
        )
        timing = outcome.timing
        parts = ("prefill", "prefix", "eviction", "suffix", "head", "swap", "host")
        steps.append((StepCounts.of(shape), {p: getattr(timing, f"{p}_s") for p in parts}))

    for policy in ("baseline", "focus"):
        point = make_point(
            model=SPEC.name, dataset="synthetic", policy=policy, num_prompts=32, batch_size=16
        )
        simulate_point(
            point,
            load_workload(point),
            SPEC,
            cost_model=model,
            num_pages=10_000,
            on_step=on_step,
        )
    counts, seconds = samples_of(steps)
    return CalibrationSamples(
        device="cpu",
        kind="cpu",
        date="2026-01-01",
        settings={},
        model=SPEC.name,
        dimensions=dimensions_of(SPEC),
        counts=counts,
        seconds=seconds,
    )
