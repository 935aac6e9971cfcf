"""Which model a configuration names: a preset, the bundled checkpoint or a checkpoint folder.

Reads the JSON files of a Hugging Face folder. Knows no framework and opens no weights, so the
simulator can use it.
"""

import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from focus_bench.core.config import EngineConfig
from focus_bench.core.errors import UsageError, reason_of
from focus_bench.core.model_spec import BUNDLED_MODELS, PRESETS, ModelSpec

# How block-diffusion tokenizers spell their mask token (SDAR, its forks, LLaDA2, Fast-dLLM v2).
MASK_TOKENS = ("<|MASK|>", "<MASK>", "<|mask|>", "|<MASK>|")


@dataclass(frozen=True, kw_only=True)
class TokenizerFacts:
    """What the tokenizer files of a folder say about ids; None where they say nothing.

    `size` is the largest id + 1 (ids from there on are vocabulary padding).
    """

    size: int | None
    mask_token_id: int | None


def resolve_model(config: EngineConfig) -> ModelSpec:
    """The spec of ``--model``: a preset's or bundled model's name first, else a checkpoint folder.

    ``--dtype`` and ``--mask-token-id`` replace what preset or folder say. Raises UsageError for an
    unknown name (listing the known ones), a missing folder and an unusable config.json.
    """
    try:
        spec = _named_model(config)
    except UsageError as error:
        if error.field == "mask_token_id" and config.mask_token_id is not None:
            raise UsageError("--mask-token-id", error.value, error.allowed) from error
        raise
    if config.dtype != "auto":
        spec = spec.replace(dtype=config.dtype)
    return spec


def _named_model(config: EngineConfig) -> ModelSpec:
    """The spec of ``--model`` with ``--mask-token-id``."""
    preset = PRESETS.get(config.model)
    if preset is not None:
        given = config.mask_token_id
        return preset if given is None else preset.replace(mask_token_id=given)
    folder = checkpoint_folder(config.model)
    if not os.path.isdir(folder):  # False also for a name that no system takes
        raise UsageError(
            "--model",
            config.model,
            f"{', '.join((*BUNDLED_MODELS, *PRESETS))}, or an existing checkpoint folder",
        )
    return read_model_folder(folder, mask_token_id=config.mask_token_id)


def checkpoint_folder(name: str) -> Path:
    """The folder of a checkpoint and its tokenizer: of a bundled model, else `name` as a path."""
    if name in BUNDLED_MODELS:
        return Path(str(resources.files("focus_bench") / "bundled" / name))
    return Path(name).expanduser()


def has_dummy_weights(config: EngineConfig) -> bool:
    """Whether the weights are random: asked for, or a preset, which names a shape only."""
    return config.load_format == "dummy" or config.model in PRESETS


def spec_on_device(spec: ModelSpec, device_type: str, *, dtype: str = "auto") -> ModelSpec:
    """The spec as it runs on "cpu" or "cuda": 16-bit weights become float32 on a CPU.

    A 16-bit matrix product is some 30 times slower there; an explicit ``--dtype`` is kept.
    """
    if device_type == "cpu" and dtype == "auto":
        return spec.replace(dtype="float32")
    return spec


def read_model_folder(folder: Path, *, mask_token_id: int | None = None) -> ModelSpec:
    """Read config.json, generation_config.json and the tokenizer files of `folder`.

    `mask_token_id` (the flag) wins over config and tokenizer. Raises UsageError naming the file or
    key that is missing or unusable, or both mask ids where config and tokenizer disagree.
    """
    config = read_json_object(folder / "config.json")
    generation_path = folder / "generation_config.json"
    facts = read_tokenizer_facts(folder)
    return ModelSpec.from_hf(
        config,
        name=folder.resolve().name,
        generation_config=read_json_object(generation_path) if generation_path.exists() else None,
        tokenizer_size=facts.size,
        tokenizer_mask_id=facts.mask_token_id,
        mask_token_id=mask_token_id,
    )


def read_tokenizer_facts(folder: Path) -> TokenizerFacts:
    """Collect the ids of tokenizer.json, vocab.json, added_tokens.json and tokenizer_config.json.

    The mask token is the one that tokenizer_config.json names (``mask_token``), else an added token
    spelled as one of MASK_TOKENS. Raises UsageError for a file that is not such a JSON object.
    """
    ids: dict[str, int] = {}
    largest = -1
    path = folder / "tokenizer.json"
    if path.exists():
        tokenizer = read_json_object(path)
        vocabulary = _object(tokenizer, "model", path).get("vocab", {})
        if isinstance(vocabulary, list):  # Unigram: a list of [token, score], the id is the place
            largest = len(vocabulary) - 1
        else:
            largest = max(_ids(vocabulary, path).values(), default=-1)
        ids.update(_added_tokens(tokenizer.get("added_tokens", []), path))
    path = folder / "vocab.json"
    if path.exists():
        largest = max(largest, *_ids(read_json_object(path), path).values(), -1)
    path = folder / "added_tokens.json"
    if path.exists():
        ids.update(_ids(read_json_object(path), path))
    mask_token: str | None = None
    path = folder / "tokenizer_config.json"
    if path.exists():
        tokenizer_config = read_json_object(path)
        decoder = _object(tokenizer_config, "added_tokens_decoder", path)
        entries = [{"id": key, **_entry(value, path)} for key, value in decoder.items()]
        ids.update(_added_tokens(entries, path))
        named = tokenizer_config.get("mask_token")
        mask_token = named.get("content") if isinstance(named, dict) else named
    candidates = [mask_token] if mask_token is not None else list(MASK_TOKENS)
    mask = next((ids[token] for token in candidates if token in ids), None)
    largest = max(largest, *ids.values(), -1)
    return TokenizerFacts(size=largest + 1 if largest >= 0 else None, mask_token_id=mask)


def read_json_object(path: Path) -> dict[str, Any]:
    """Parse `path` as one JSON object; UsageError naming the file where that is impossible."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UsageError("--model", str(path), "a folder that holds this file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            "--model", str(path), f"a readable JSON file ({reason_of(error)})"
        ) from None
    if not isinstance(value, dict):
        raise UsageError("--model", str(path), "a JSON object")
    return value


def _object(parent: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    return _entry(parent.get(key, {}), path, key)


def _entry(value: Any, path: Path, key: str = "token") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path} {key}", type(value).__name__, "a JSON object")
    return value


def _ids(mapping: dict[str, Any], path: Path) -> dict[str, int]:
    for token, value in mapping.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"{path} id of {token!r}", value, "a whole number from 0")
    return mapping


def _added_tokens(entries: list[dict[str, Any]], path: Path) -> dict[str, int]:
    added: dict[str, int] = {}
    for entry in entries:
        try:
            added[str(entry["content"])] = int(entry["id"])
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"{path} added token", str(entry), "id and content") from None
    return added
