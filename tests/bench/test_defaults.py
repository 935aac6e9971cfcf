"""What --acceptance and --importance mean, and what is used where they are not given."""

from pathlib import Path

import pytest

from focus_bench.bench.defaults import (
    acceptance_for,
    default_block_length,
    default_tokenizer,
    importance_for,
    parse_acceptance,
    parse_importance,
)
from focus_bench.core.config import EngineConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import PRESETS
from focus_bench.decoding.acceptance import DEFAULT_IMPORTANCE_NOISE, DEFAULT_IMPORTANCE_TAU

TINY = EngineConfig(model="dummy-tiny")
FOLDER = EngineConfig(model="/models/sdar")
DUMMY_FOLDER = EngineConfig(model="/models/sdar", load_format="dummy")


@pytest.mark.parametrize(
    ("text", "kind", "mean", "scatter", "preset", "path"),
    [
        ("confidence", "confidence", 0.0, 0.0, "", ""),
        ("synthetic:2.5", "synthetic", 2.5, 0.0, "", ""),
        ("synthetic:2.5,scatter=0.75", "synthetic", 2.5, 0.75, "", ""),
        ("synthetic:math", "synthetic", 5.363, 0.0, "math", ""),
        ("synthetic:llada2/math,scatter=1", "synthetic", 3.692, 1.0, "llada2/math", ""),
        ("replay:runs/a:b.npz", "replay", 0.0, 0.0, "", "runs/a:b.npz"),
    ],
)
def test_forms_of_acceptance(
    text: str, kind: str, mean: float, scatter: float, preset: str, path: str
) -> None:
    read = parse_acceptance(text)
    assert (read.kind, read.mean, read.scatter, read.preset, read.path) == (
        kind,
        mean,
        scatter,
        preset,
        path,
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "guess",
        "confidence:2",
        "synthetic",
        "synthetic:",
        "synthetic:two",
        "synthetic:2.5,spread=1",
        "synthetic:2.5,scatter=",
        "synthetic:2.5,scatter=1,scatter=2",
        "synthetic:0.5",
        "synthetic:nan",
        "synthetic:2.5,scatter=-1",
        "replay:",
        "replay",
    ],
)
def test_unusable_acceptance_names_the_flag_and_the_text(text: str) -> None:
    with pytest.raises(UsageError, match=r"--acceptance.*allowed: ."):
        parse_acceptance(text)


def test_an_unknown_preset_lists_the_presets() -> None:
    with pytest.raises(UsageError, match="sharegpt, wildchat, math, sdar/sharegpt"):
        parse_acceptance("synthetic:gsm8k")


def test_forms_of_importance() -> None:
    assert parse_importance("model").kind == "model"
    fitted = parse_importance("synthetic")
    assert (fitted.tau, fitted.noise) == (DEFAULT_IMPORTANCE_TAU, DEFAULT_IMPORTANCE_NOISE)
    typed = parse_importance("synthetic:noise=0.25,tau=3")
    assert (typed.tau, typed.noise) == (3.0, 0.25)


@pytest.mark.parametrize("text", ["", "attention", "model:1", "synthetic:", "synthetic:tau=0"])
def test_unusable_importance_names_the_flag_and_the_text(text: str) -> None:
    with pytest.raises(UsageError, match=r"--importance.*allowed: ."):
        parse_importance(text)


@pytest.mark.parametrize(
    ("dataset", "preset", "mean"),
    [
        ("sharegpt", "sharegpt", 2.351),
        ("wildchat", "wildchat", 2.385),
        ("math", "math", 5.363),
        ("gsm8k", "sharegpt", 2.351),
    ],
)
def test_dummy_weights_decode_by_the_data_sets_preset(
    dataset: str, preset: str, mean: float
) -> None:
    for engine in (TINY, DUMMY_FOLDER):
        chosen = acceptance_for(None, engine=engine, family="sdar", dataset=dataset)
        assert (chosen.kind, chosen.preset, chosen.mean) == ("synthetic", preset, mean)
        assert importance_for(None, engine=engine).kind == "synthetic"


def test_trained_weights_decode_by_their_own_confidences() -> None:
    chosen = acceptance_for(None, engine=FOLDER, family="sdar", dataset="sharegpt")
    assert chosen.kind == "confidence"
    assert importance_for(None, engine=FOLDER).kind == "model"


@pytest.mark.parametrize(
    ("acceptance", "kinds"),
    [("synthetic:2.13", ("synthetic", "model")), ("confidence", ("model", "model"))],
)
def test_importance_is_drawn_where_a_simulation_draws_acceptance(
    acceptance: str, kinds: tuple[str, str]
) -> None:
    chosen = parse_acceptance(acceptance)
    for simulated, kind in zip((True, False), kinds, strict=True):
        found = importance_for(None, engine=FOLDER, acceptance=chosen, simulated=simulated)
        assert found.kind == kind
    given = importance_for("model", engine=FOLDER, acceptance=chosen, simulated=True)
    assert given.kind == "model"


def test_a_flag_wins_over_the_default() -> None:
    assert acceptance_for("confidence", engine=TINY, family="sdar", dataset="math").mean == 0.0
    assert importance_for("model", engine=TINY).kind == "model"


def test_the_checkpoints_block_length_is_the_default() -> None:
    tiny = PRESETS["dummy-tiny"]
    assert default_block_length(tiny) == 32
    assert default_block_length(tiny.replace(block_length=4)) == 4


def test_text_goes_through_the_checkpoints_tokenizer_where_there_is_one(tmp_path: Path) -> None:
    assert default_tokenizer(TINY) == "byte"
    folder = str(tmp_path)
    assert default_tokenizer(EngineConfig(model=folder, load_format="dummy")) == "byte"
    assert default_tokenizer(EngineConfig(model=folder)) == folder
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    assert default_tokenizer(EngineConfig(model=folder, load_format="dummy")) == folder
