"""Fitted time models: known coefficients come back, files survive, predictions add up."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from sim_cases import SPEC, make_point, make_workload, simulate

from focus_bench.core.calibration import (
    TIMED_PARTS,
    CalibrationSamples,
    StepCounts,
    dimensions_of,
    read_json,
    samples_of,
)
from focus_bench.core.config import SchedulerConfig
from focus_bench.core.costs import StepShape
from focus_bench.core.errors import UsageError
from focus_bench.core.gpu_profile_file import is_gpu_calibration
from focus_bench.core.model_spec import PRESETS
from focus_bench.core.records import StepTiming
from focus_bench.sim.calibration import (
    Profile,
    ProfileModel,
    bundled_profiles,
    fit_profile,
    get_profile,
    load_profile,
)
from focus_bench.sim.terms import TERMS, gemm_terms, gemm_weights

TRUTH = {
    "gemm_flop_at_16_rows": 2e-11,
    "gemm_flop_at_64_rows": 1.5e-11,
    "gemm_flop_at_256_rows": 1e-11,
    "gemm_flop_at_1024_rows": 1.2e-11,
    "gemm_flop_at_4096_rows": 1.4e-11,
    "layer_call": 4e-4,
    "sequence_call": 2e-5,
    "block_call": 1e-5,
    "decode_pair": 6e-11,
    "prefill_pair": 7e-11,
    "key_channel": 1e-9,
    "evict_call": 8e-4,
    "evict_group": 7e-5,
    "evict_row": 2e-5,
    "evict_channel": 4e-9,
    "evict_pair": 1e-10,
    "rule_row": 3e-5,
    "head_call": 5e-4,
    "head_flop": 2e-11,
    "head_row": 4e-6,
    "host_step": 4e-4,
    "host_row": 5e-6,
    "host_chunk": 4e-5,
    "swap_byte": 2e-10,
}
KNOTS = (16.0, 64.0, 256.0, 1024.0, 4096.0)


class Collecting:
    """Takes the time that `TRUTH` gives and notes counts and seconds, as calibration would."""

    label = "collecting"

    def __init__(self, model: ProfileModel) -> None:
        self.model = model
        self.steps: list[tuple[StepCounts, dict[str, float]]] = []

    def step_timing(self, shape: StepShape) -> StepTiming:
        timing = self.model.step_timing(shape)
        parts = {part: float(getattr(timing, f"{part}_s")) for part in TIMED_PARTS}
        self.steps.append((StepCounts.of(shape), parts))
        return timing


def empty_samples() -> CalibrationSamples:
    counts, seconds = samples_of([])
    return CalibrationSamples(
        device="a device",
        kind="cpu",
        date="2026-01-02",
        settings={},
        model=SPEC.name,
        dimensions=dimensions_of(SPEC),
        counts=counts,
        seconds=seconds,
    )


def true_profile() -> Profile:
    return Profile(
        name="truth",
        samples=empty_samples(),
        knots=KNOTS,
        coefficients=TRUTH,
        error_p50=0.0,
        error_p90=0.0,
        error_total=0.0,
    )


@pytest.fixture(scope="module")
def samples() -> CalibrationSamples:
    """Steps of mixed runs, timed by `TRUTH`."""
    model = Collecting(ProfileModel(spec=SPEC, profile=true_profile()))
    rng = np.random.default_rng(0)
    for policy, batch, num_pages in (
        ("baseline", 1, 500),
        ("baseline", 40, 500),
        ("focus", 3, 500),
        ("focus", 24, 500),
        ("delayed-cache-neighbor", 12, 500),
        ("delayed-cache-neighbor", 6, 8),
        ("focus-fixed", 9, 500),
    ):
        longest = 100 if num_pages < 10 else 2000
        prompts = rng.integers(5, longest, size=batch + 3)
        point = make_point(policy, scheduler=SchedulerConfig(batch_size=batch))
        simulate(point, make_workload(list(prompts), 40), num_pages=num_pages, cost_model=model)
    counts, seconds = samples_of(model.steps)
    return dataclasses.replace(empty_samples(), counts=counts, seconds=seconds)


def test_known_coefficients_come_back(samples: CalibrationSamples) -> None:
    profile = fit_profile(samples, name="fitted")
    assert profile.knots == KNOTS
    for term in (*gemm_terms(KNOTS), *TERMS):
        assert profile.coefficients[term] == pytest.approx(TRUTH[term], rel=1e-3), term
    assert profile.error_p90 < 1e-6
    assert profile.error_total == pytest.approx(0.0, abs=1e-6)


def test_disturbed_steps_hardly_move_the_fit(samples: CalibrationSamples) -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(1.0, 0.03, size=samples.num_steps)
    disturbed = np.where(rng.random(samples.num_steps) < 0.1, 3.0, noise)
    seconds = {part: values * disturbed for part, values in samples.seconds.items()}
    profile = fit_profile(dataclasses.replace(samples, seconds=seconds), name="disturbed")
    fitted, true = (ProfileModel(spec=SPEC, profile=p) for p in (profile, true_profile()))
    for policy, batch in (("baseline", 8), ("baseline", 32), ("focus", 8), ("focus", 32)):
        point = make_point(policy, scheduler=SchedulerConfig(batch_size=batch))
        workload = make_workload([20, 90, 300, 1500] * 8, 64)
        durations = [
            simulate(point, workload, cost_model=model).duration_s for model in (fitted, true)
        ]
        assert durations[0] == pytest.approx(durations[1], rel=0.05)


def test_no_coefficient_is_negative(samples: CalibrationSamples) -> None:
    rng = np.random.default_rng(2)
    seconds = {
        part: values * rng.lognormal(0.0, 0.5, size=samples.num_steps)
        for part, values in samples.seconds.items()
    }
    profile = fit_profile(dataclasses.replace(samples, seconds=seconds), name="noisy")
    assert min(profile.coefficients.values()) >= 0.0


def test_knots_without_steps_near_them_are_left_out(samples: CalibrationSamples) -> None:
    narrow = (samples.counts["fed"] < 150) & (samples.counts["prefill_tokens"] < 150)
    few = dataclasses.replace(
        samples,
        counts={name: values[narrow] for name, values in samples.counts.items()},
        seconds={part: values[narrow] for part, values in samples.seconds.items()},
    )
    profile = fit_profile(few, name="narrow")
    assert profile.knots == (16.0, 64.0, 256.0)
    assert profile.coefficients["gemm_flop_at_256_rows"] > 0.0


def test_the_curve_of_the_products_is_straight_between_knots_and_flat_beyond() -> None:
    weights = gemm_weights(np.array([1, 16, 32, 64, 4096, 10**6]), KNOTS)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(weights[[0, 1], 0], 1.0)
    np.testing.assert_allclose(weights[2, :2], 0.5)
    np.testing.assert_allclose(weights[3, 1], 1.0)
    np.testing.assert_allclose(weights[[4, 5], 4], 1.0)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="calibration steps: 0"):
        fit_profile(empty_samples(), name="none")


def test_a_profile_survives_its_file(samples: CalibrationSamples, tmp_path: Path) -> None:
    profile = fit_profile(samples, name="filed")
    profile.save(tmp_path / "filed.json")
    loaded = load_profile(tmp_path / "filed.json")
    assert (loaded.name, loaded.knots, loaded.label) == (
        profile.name,
        profile.knots,
        profile.label,
    )
    for term, seconds in profile.coefficients.items():
        assert loaded.coefficients[term] == pytest.approx(seconds, rel=1e-5)
    # The file carries the samples, so the fit can be made again from it.
    again = fit_profile(loaded.samples, name="again")
    assert again.coefficients["layer_call"] == pytest.approx(TRUTH["layer_call"], rel=1e-2)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda v: v.update(schema_version=0), "schema_version: 0"),
        (lambda v: v["coefficients"].pop("layer_call"), "unreadable"),
        (lambda v: v.pop("samples"), "unreadable"),
        (lambda v: v["samples"]["seconds"].pop("host"), "unreadable"),
    ],
)
def test_damaged_profiles_are_refused_by_name(tmp_path: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "damaged.json"
    true_profile().save(path)
    value = json.loads(path.read_text())
    damage(value)
    path.write_text(json.dumps(value))
    with pytest.raises(UsageError, match=rf"damaged\.json.*{message}"):
        load_profile(path)


def test_a_list_is_no_profile(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(UsageError, match=r"list\.json"):
        load_profile(tmp_path / "list.json")


def test_labels_say_what_was_measured_and_for_which_model() -> None:
    profile = true_profile()
    own = ProfileModel(spec=SPEC, profile=profile)
    other = ProfileModel(spec=PRESETS["sdar-8b"], profile=profile)
    assert own.label == "calibrated on a device (truth, 2026-01-02, dummy-tiny)"
    assert other.label == f"{own.label}, extrapolated to sdar-8b"
    record = simulate(make_point(), make_workload([8], 8), cost_model=other)
    assert record.notes[0] == other.label


def test_a_larger_model_takes_longer_in_proportion() -> None:
    wide = dataclasses.replace(SPEC, intermediate_size=4 * SPEC.intermediate_size)
    record, wider = (
        simulate(
            make_point("baseline"),
            make_workload([64] * 64, 64),
            cost_model=ProfileModel(spec=spec, profile=true_profile()),
        )
        for spec in (SPEC, wide)
    )
    products = SPEC.layer_params / wide.layer_params
    assert products < record.duration_s / wider.duration_s < 1.2 * products + 0.2


def test_bundled_profiles_load_and_predict() -> None:
    paths = bundled_profiles()
    assert "cpu" in paths
    names = [name for name, path in paths.items() if not is_gpu_calibration(read_json(path))]
    for name in names:
        profile = get_profile(name)
        assert profile.name == name
        assert profile.error_p50 < 0.1
        model = ProfileModel(spec=SPEC, profile=profile)
        record = simulate(make_point(), make_workload([60] * 8, 64), cost_model=model)
        assert record.duration_s > 0.0
        # The samples in the file give its coefficients again.
        again = fit_profile(profile.samples, name=name)
        assert again.knots == profile.knots
        assert again.error_total == pytest.approx(profile.error_total, abs=2e-3)


def test_an_unknown_profile_lists_what_exists() -> None:
    with pytest.raises(UsageError, match=r"--profile: 'tpu' .*cpu"):
        get_profile("tpu")
