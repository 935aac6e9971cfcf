"""The bundled checkpoint: what its folder holds, and that its papers are those of these weights."""

import hashlib
import json

from focus_bench.core.config import EngineConfig
from focus_bench.core.model_folder import checkpoint_folder, has_dummy_weights, resolve_model
from focus_bench.core.model_spec import BUNDLED_MODELS, DEFAULT_MODEL

FOLDER = checkpoint_folder("focus-tiny")
PROVENANCE = json.loads((FOLDER / "provenance.json").read_text())


def test_the_default_model_is_bundled_and_trained() -> None:
    assert DEFAULT_MODEL in BUNDLED_MODELS
    assert not has_dummy_weights(EngineConfig(model=DEFAULT_MODEL))
    assert has_dummy_weights(EngineConfig(model=DEFAULT_MODEL, load_format="dummy"))


def test_its_shape_is_the_recipes() -> None:
    spec = resolve_model(EngineConfig(model="focus-tiny"))
    recipe = PROVENANCE["recipe"]
    assert spec.name == "focus-tiny"
    assert 6e6 <= spec.num_params <= 11e6
    assert spec.max_position_embeddings == recipe["context_length"] == 1024
    assert spec.block_length == recipe["block_length"] == 32
    assert (spec.mask_token_id, spec.stop_token_ids) == (1, (2,))
    assert spec.tokenizer_size == spec.vocab_size == recipe["vocab_size"]
    for field in ("num_layers", "hidden_size", "num_q_heads", "num_kv_heads", "head_dim"):
        assert getattr(spec, field) == recipe[field]


def test_files_are_those_of_the_training_run_and_few_enough() -> None:
    files = list(FOLDER.iterdir())
    assert sum(file.stat().st_size for file in files) <= 24e6
    for name, digest in PROVENANCE["sha256"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest
    assert {f.name for f in files if f.suffix == ".safetensors"} <= PROVENANCE["sha256"].keys()
    text = json.dumps(PROVENANCE["recipe"], sort_keys=True).encode()
    assert hashlib.blake2b(text, digest_size=8).hexdigest() == PROVENANCE["recipe_hash"]
    assert PROVENANCE["steps"] == PROVENANCE["recipe"]["total_steps"]
