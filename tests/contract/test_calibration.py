"""What the engine measures is what the simulator's fit needs; passed on as a file."""

from pathlib import Path

import numpy as np
import pytest
import torch

from focus_bench.core.calibration import COUNT_NAMES, CalibrationSamples
from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.calibrate import measure
from focus_bench.engine.weights import dummy_model
from focus_bench.sim.calibration import ProfileModel, fit_profile, load_profile
from focus_bench.sim.terms import TERMS, Dimensions, design, gemm_terms

SPEC = ModelSpec(
    name="small",
    num_layers=2,
    hidden_size=16,
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=16,
    vocab_size=64,
    mask_token_id=63,
    max_position_embeddings=4096,
    dtype="float32",
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CalibrationSamples]:
    samples = measure(dummy_model(SPEC, device=torch.device("cpu")), seconds=0.0)
    path = tmp_path_factory.mktemp("calibration") / "samples.json"
    samples.save(path)
    return path, samples


def test_every_term_occurs_in_the_measured_steps(
    measured: tuple[Path, CalibrationSamples],
) -> None:
    _, samples = measured
    dims = Dimensions(
        num_layers=2,
        hidden_size=16,
        q_size=16,
        kv_size=8,
        intermediate_size=16,
        vocab_size=64,
        kv_bytes_per_token=2 * 2 * 8 * 4,
    )
    knots = (16.0, 64.0, 256.0, 1024.0, 4096.0)
    occurs = dict.fromkeys((*gemm_terms(knots), *TERMS), 0)
    for terms in design(samples.counts, dims, knots).values():
        for term, units in terms.items():
            occurs[term] += int((units > 0).sum())
    assert min(occurs.values()) >= 3, occurs


def test_batches_and_contexts_reach_beyond_the_usual_ones(
    measured: tuple[Path, CalibrationSamples],
) -> None:
    counts = measured[1].counts
    assert counts["rows"].max() >= 40
    assert (counts["rows"] == 1).any()
    assert (counts["first_keys"] / np.maximum(counts["rows"], 1)).max() > 1000
    assert counts["prefill_tokens"].max() > 2000


def test_the_batch_sizes_of_the_default_points_are_not_measured(
    measured: tuple[Path, CalibrationSamples],
) -> None:
    from focus_bench.engine.calibrate import _RUNS

    assert {8, 32}.isdisjoint(run.batch_size for run in _RUNS)


def test_the_file_is_all_that_the_fit_needs(
    measured: tuple[Path, CalibrationSamples], tmp_path: Path
) -> None:
    path, samples = measured
    profile = fit_profile(CalibrationSamples.load(path), name="here")
    profile.save(tmp_path / "here.json")
    loaded = load_profile(tmp_path / "here.json")
    assert loaded.samples.device == "cpu"
    assert loaded.samples.settings["threads"] == str(torch.get_num_threads())
    assert "extrapolated" not in ProfileModel(spec=SPEC, profile=loaded).label
    for name in COUNT_NAMES:
        np.testing.assert_array_equal(loaded.samples.counts[name], samples.counts[name])


def test_measuring_again_counts_the_same_steps(
    measured: tuple[Path, CalibrationSamples],
) -> None:
    again = measure(dummy_model(SPEC, device=torch.device("cpu")), seconds=0.0)
    for name in COUNT_NAMES:
        np.testing.assert_array_equal(again.counts[name], measured[1].counts[name])
