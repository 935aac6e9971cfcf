"""Profiles of the cache and of files: unwritable, cut, worse than before, named by their flag."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from focus_bench.api.engine import Engine
from focus_bench.api.prediction import find_target
from focus_bench.cli.main import main
from focus_bench.core.calibration import CalibrationSamples
from focus_bench.core.config import EngineConfig
from focus_bench.report.folder import load_folder
from focus_bench.sim.calibration import Profile, fit_profile
from focus_bench.sim.fit_check import fit_problems

MODEL = ["--model", "dummy-tiny"]
REQUESTS = ["--dataset", "synthetic", "--num-prompts", "2", "--max-new-tokens", "4"]
POINT = [*MODEL, *REQUESTS, "--policy", "baseline", "--batch-size", "2"]
RUN = ["run", *POINT, "--device", "cpu", "--num-warmups", "0"]
CALIBRATE = ["calibrate", *MODEL, "--device", "cpu"]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch, samples: CalibrationSamples) -> None:
    """Replaces the measuring of steps."""
    monkeypatch.setattr(Engine, "measure_steps", lambda self, *, seconds: samples)


@pytest.fixture
def profile(samples: CalibrationSamples) -> Profile:
    return fit_profile(samples, name="mine")


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    folder = tmp_path / "out"
    assert main([*RUN, "--output-dir", str(folder)]) == 0
    err = capsys.readouterr().err
    line = f"{blocked / 'focus-bench' / 'profiles'} cannot be written (Not a directory): "
    line += "the profile is not kept"
    assert err.count(line) == 1
    loaded = load_folder(folder)
    assert [result.source for result in loaded.results] == ["measured", "predicted"]
    assert loaded.failures == ()
    assert main(CALIBRATE) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"{line}\n")
    assert "error of the fit" in out


@pytest.mark.parametrize("seconds", ["0", "-1", "0.5", "nan", "inf"])
def test_calibration_takes_a_second_or_more(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CALIBRATE, "--seconds", seconds]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("focus-bench: error: --seconds: ")
    assert ">= 1" in line


def test_a_profile_worse_than_the_one_before_says_so(
    cache: Path, profile: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(CALIBRATE) == 0
    assert main(CALIBRATE) == 0
    assert "worse than" not in capsys.readouterr().out
    (kept,) = (cache / "focus-bench" / "profiles").iterdir()
    better = dataclasses.replace(profile, error_p90=profile.error_p90 / 2)
    better.save(kept)
    assert main(CALIBRATE) == 0
    assert capsys.readouterr().out.count("worse than the profile that was there: error of the") == 1


def test_two_models_of_one_name_have_a_profile_each(cache: Path, tmp_path: Path) -> None:
    shape = {"architectures": ["SDARForCausalLM"], "vocab_size": 300, "mask_token_id": 256}
    shape |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    shape |= {"head_dim": 16, "eos_token_id": 257, "max_position_embeddings": 512}
    found = []
    for parent, width in (("first", 32), ("second", 64), ("copy-of-second", 64)):
        folder = tmp_path / parent / "checkpoint"
        folder.mkdir(parents=True)
        config = shape | {"hidden_size": width, "intermediate_size": 2 * width}
        (folder / "config.json").write_text(json.dumps(config))
        named = ["--model", str(folder), "--load-format", "dummy", "--device", "cpu"]
        assert main(["calibrate", *named]) == 0
        found.append({file.name for file in (cache / "focus-bench" / "profiles").iterdir()})
    assert [len(names) for names in found] == [1, 2, 2]  # the same shape has the same costs
    assert all("_checkpoint-" in name for name in found[-1])


def test_cut_profiles_are_named_where_they_are_passed_over(
    cache: Path, tmp_path: Path, profile: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cache / "focus-bench" / "profiles"
    folder.mkdir(parents=True)
    cut = folder / "cpu_cut.json"
    profile.save(cut)
    cut.write_bytes(cut.read_bytes()[:-100])
    simulate = ["simulate", *POINT, "--output-dir"]
    for number, command in enumerate((simulate, [*RUN, "--output-dir"])):
        assert main([*command, str(tmp_path / str(number))]) == 0
        err = capsys.readouterr().err
        assert err.count(f"ignored {cut}: ") == 1
        assert "a readable JSON file" in err
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "unusable profile" in out
    assert "".join(str(cut).split()) in "".join(out.split())


def test_flags_that_name_a_file_which_is_no_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"schema_version": 1, "points": []}')
    for command in (
        ["simulate", *POINT, "--profile"],
        ["simulate", *POINT, "--gpu"],
        [*RUN, "--profile"],
        [*CALIBRATE, "--check"],
    ):
        assert main([*command, str(file)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(
            f"focus-bench: error: {command[-1]} profile {file}: 'not a profile' is not usable"
        )


def test_a_dry_run_says_that_its_profile_is_of_other_threads(
    cache: Path,
    profile: Profile,
    samples: CalibrationSamples,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("focus_bench.core.cpu_threads.usable_cores", lambda: 4)
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    folder = cache / "focus-bench" / "profiles"
    folder.mkdir(parents=True)

    def keep(threads: str, name: str, *, written_s: int) -> None:
        measured = dataclasses.replace(samples, settings={"threads": threads})
        file = folder / f"cpu_{name}.json"
        dataclasses.replace(profile, name=name, samples=measured).save(file)
        os.utime(file, (written_s, written_s))

    def basis(threads: str) -> str:
        assert main([*RUN, "--dry-run", "--threads", threads]) == 0
        (line,) = (x for x in capsys.readouterr().out.splitlines() if "predicted by" in x)
        return line

    keep("2", "of-two", written_s=1000)
    keep("1", "of-one", written_s=2000)
    assert "(of-two, " in basis("2")
    assert "(of-one, " in basis("1")
    assert "measured with" not in basis("2") + basis("1")
    assert basis("3").endswith("; measured with --threads 1, not 3")
    # What names no threads predicts a run that names none.
    for variable, name in (("2", "of-two"), ("1", "of-one")):
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
        assert find_target("cpu", EngineConfig(model="dummy-tiny")).name == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("error_p50", 0.2), ("error_p90", 0.6), ("error_total", -0.2), ("error_p50", float("nan"))],
)
def test_a_fit_beyond_the_limits_is_no_good(
    name: str,
    value: float,
    profile: Profile,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fit_problems(profile) == []
    file = tmp_path / "profile.json"
    dataclasses.replace(profile, **{name: value}).save(file)
    assert main([*CALIBRATE, "--check", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"focus-bench: --check {file}: {name}: {value:g}; allowed: ")


@pytest.mark.parametrize("name", ["error_p50", "error_p90", "error_total"])
def test_errors_that_the_samples_beside_them_do_not_have_are_no_good(
    name: str, profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.json"
    dataclasses.replace(profile, **{name: getattr(profile, name) + 0.01}).save(file)
    assert main([*CALIBRATE, "--check", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"focus-bench: --check {file}: {name}: 0.01")
    assert "; its own samples say " in line
