"""Reading a model's spec from a preset name or from the JSON files of a checkpoint folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from focus_bench.core.config import EngineConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import (
    has_dummy_weights,
    read_model_folder,
    read_tokenizer_facts,
    resolve_model,
    spec_on_device,
)
from focus_bench.core.model_spec import PRESETS

CONFIG = {
    "model_type": "sdar",
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "vocab_size": 128,
    "mask_token_id": 101,
    "eos_token_id": 100,
    "block_size": 8,
    "torch_dtype": "bfloat16",
}


def write(folder: Path, **files: object) -> Path:
    """Write each keyword as NAME.json; `config` defaults to CONFIG."""
    for name, value in {"config": CONFIG, **files}.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return folder


def test_presets_resolve_by_name_with_the_flags_on_top() -> None:
    assert resolve_model(EngineConfig(model="sdar-8b")) == PRESETS["sdar-8b"]
    spec = resolve_model(EngineConfig(model="dummy-tiny", dtype="float16", mask_token_id=7))
    assert (spec.dtype, spec.mask_token_id) == ("float16", 7)


def test_unknown_models_are_refused_with_the_presets() -> None:
    known = "focus-tiny, dummy-tiny, sdar-8b"
    with pytest.raises(UsageError, match=f"'sdar-9b' is not usable; allowed: {known}"):
        resolve_model(EngineConfig(model="sdar-9b"))
    with pytest.raises(UsageError, match="an existing checkpoint folder"):
        resolve_model(EngineConfig(model="/no/such/folder"))


def test_a_folder_gives_dimensions_stop_ids_block_length_and_padding(tmp_path: Path) -> None:
    write(
        tmp_path,
        generation_config={"eos_token_id": [99, 100]},
        vocab={f"t{n}": n for n in range(99)},
        added_tokens={"<|im_end|>": 99, "<|endoftext|>": 100, "<|MASK|>": 101},
    )
    spec = resolve_model(EngineConfig(model=str(tmp_path)))
    assert spec.num_layers == 3
    assert spec.group_size == 4
    assert spec.stop_token_ids == (100, 99)
    assert spec.block_length == 8
    assert spec.tokenizer_size == 102
    assert spec.mask_token_id == 101


def test_without_tokenizer_files_there_is_no_padding(tmp_path: Path) -> None:
    assert read_model_folder(write(tmp_path)).tokenizer_size is None


@pytest.mark.parametrize(
    ("files", "size", "mask"),
    [
        (
            {
                "tokenizer": {
                    "model": {"vocab": {"a": 0, "b": 1}},
                    "added_tokens": [{"id": 5, "content": "<|mask|>"}],
                }
            },
            6,
            5,
        ),
        ({"tokenizer": {"model": {"vocab": [["a", 0.0], ["b", -1.0]]}}}, 2, None),
        (
            {
                "vocab": {"a": 0},
                "tokenizer_config": {
                    "added_tokens_decoder": {"3": {"content": "[M]"}, "2": {"content": "<MASK>"}},
                    "mask_token": {"content": "[M]"},
                },
            },
            4,
            3,
        ),
        (
            {"added_tokens": {"[M]": 9}, "tokenizer_config": {"mask_token": "[M]"}},
            10,
            9,
        ),
        ({}, None, None),
    ],
)
def test_tokenizer_facts(
    tmp_path: Path, files: dict[str, object], size: int | None, mask: int | None
) -> None:
    facts = read_tokenizer_facts(write(tmp_path, **files))
    assert (facts.size, facts.mask_token_id) == (size, mask)


def test_config_and_tokenizer_that_disagree_about_the_mask_id_name_both(tmp_path: Path) -> None:
    write(tmp_path, added_tokens={"<|MASK|>": 103})
    with pytest.raises(UsageError, match=r"101 in config\.json, 103 in the tokenizer"):
        read_model_folder(tmp_path)
    assert read_model_folder(tmp_path, mask_token_id=103).mask_token_id == 103


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config": "{"}, r"config\.json.*readable JSON"),
        ({"config": "[1]"}, r"config\.json.*a JSON object"),
        ({"config": "[" * 100_000}, r"config\.json.*readable JSON file.*recursion"),
        ({"config": {**CONFIG, "hidden_size": "48"}}, r"hidden_size: '48'"),
        ({"config": {**CONFIG, "rope_parameters": {"rope_type": "yarn"}}}, r"rope_type: 'yarn'"),
        ({"vocab": {"a": -1}}, r"vocab\.json id of 'a': -1"),
        ({"tokenizer": {"model": 3}}, r"tokenizer\.json model: 'int'"),
        ({"tokenizer": {"added_tokens": [{"content": "x"}]}}, r"added token.*id and content"),
        ({"tokenizer_config": {"added_tokens_decoder": {"1": "x"}}}, r"token: 'str'"),
    ],
)
def test_unusable_files_are_named(tmp_path: Path, files: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_model_folder(write(tmp_path, **files))


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        read_model_folder(tmp_path)


def test_16_bit_specs_run_in_float32_on_a_cpu_unless_asked_otherwise() -> None:
    spec = PRESETS["sdar-8b"]
    assert spec_on_device(spec, "cpu").dtype == "float32"
    assert spec_on_device(spec, "cuda").dtype == "bfloat16"
    assert spec_on_device(spec, "cpu", dtype="bfloat16").dtype == "bfloat16"


def test_presets_and_load_format_dummy_mean_random_weights() -> None:
    assert has_dummy_weights(EngineConfig(model="dummy-tiny"))
    assert has_dummy_weights(EngineConfig(model="somewhere", load_format="dummy"))
    assert not has_dummy_weights(EngineConfig(model="somewhere"))


def test_reading_a_folder_imports_no_torch(tmp_path: Path) -> None:
    write(tmp_path)
    code = (
        "import sys, pathlib; from focus_bench.core.model_folder import read_model_folder;"
        "read_model_folder(pathlib.Path(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_the_real_sdar_tokenizer_folder(shared_dir: Path) -> None:
    spec = read_model_folder(shared_dir / "data" / "sdar_tokenizer")
    preset = PRESETS["sdar-8b"]
    assert spec.tokenizer_size == 151670
    assert set(spec.stop_token_ids) == set(preset.stop_token_ids)
    changed = {"name": preset.name, "tokenizer_size": None, "block_length": None}
    assert spec.replace(**changed, stop_token_ids=preset.stop_token_ids) == preset
