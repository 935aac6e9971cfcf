"""Loads and saves weights: Hugging Face folders (safetensors, single or sharded) or random ones.

Knows files and tensors' names and shapes; how a family puts its tensors together is models/'s.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from focus_bench.core.config import EngineConfig
from focus_bench.core.errors import UsageError, reason_of
from focus_bench.core.model_folder import (
    checkpoint_folder,
    has_dummy_weights,
    read_json_object,
    resolve_model,
    spec_on_device,
)
from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.device import resolve_device, torch_dtype
from focus_bench.engine.dummy_weights import dummy_tensors
from focus_bench.engine.memory import check_weights_fit, memory_budget_bytes
from focus_bench.engine.models import sdar
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.models.families import family_of

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_LOADABLE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def load_model(config: EngineConfig, *, seed: int = 0) -> BlockDiffusionModel:
    """The model of ``--model`` on ``--device``, in ``--dtype`` (auto: its own; float32 on a CPU).

    `seed` is that of dummy weights. Raises UsageError for anything unusable in configuration or
    folder, and CapacityError where the weights exceed ``--gpu-memory-utilization`` of the memory.
    """
    device = resolve_device(config.device, cuda_graphs=config.cuda_graphs)
    spec = spec_on_device(resolve_model(config), device.type, dtype=config.dtype)
    budget = memory_budget_bytes(device, config.gpu_memory_utilization)
    check_weights_fit(spec, budget_bytes=budget)
    if has_dummy_weights(config):
        return dummy_model(spec, device=device, seed=seed)
    return load_checkpoint(checkpoint_folder(config.model), spec, device=device)


def dummy_model(spec: ModelSpec, *, device: torch.device, seed: int = 0) -> BlockDiffusionModel:
    """A model with random weights (see dummy_weights) on `device` in ``spec.dtype``."""
    family = family_of(spec)
    shapes = family.tensor_shapes(spec)
    narrow, wide = (
        dummy_tensors(spec, shapes, seed=seed, device=device, dtype=dtype)
        for dtype in (torch_dtype(spec.dtype), torch.float32)
    )
    return family.build(spec, lambda n: wide(n) if family.keeps_float32(n) else narrow(n))


def load_checkpoint(folder: Path, spec: ModelSpec, *, device: torch.device) -> BlockDiffusionModel:
    """Read the weights in `folder`, converted to ``spec.dtype`` on `device`.

    Raises UsageError naming a missing or damaged file, a tensor that is missing, unknown, of a
    wrong shape or quantised.
    """
    files = checkpoint_files(folder)
    family = family_of(spec)
    shapes = family.tensor_shapes(spec)
    _check_names(folder, files, shapes, tied=spec.tie_word_embeddings)
    narrow, wide = (
        _tensor_reader(files, shapes, device, dtype)
        for dtype in (torch_dtype(spec.dtype), torch.float32)
    )
    return family.build(spec, lambda n: wide(n) if family.keeps_float32(n) else narrow(n))


def expected_tensor_names(spec: ModelSpec) -> set[str]:
    """Names of all tensors that a checkpoint of this shape must hold."""
    return set(family_of(spec).tensor_shapes(spec))


def checkpoint_files(folder: Path) -> dict[str, Path]:
    """The file that holds each tensor, by the tensor's name.

    Reads model.safetensors if there is one, else model.safetensors.index.json; UsageError naming
    the folder without either, the shard that is missing, or the file that cannot be read.
    """
    single = folder / WEIGHTS_FILE
    if single.exists():
        return {name: single for name in _stored_names(single)}
    index_path = folder / INDEX_FILE
    if not index_path.exists():
        raise UsageError("--model", str(folder), f"a folder with {WEIGHTS_FILE} or {INDEX_FILE}")
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UsageError(f"{index_path} weight_map", weight_map, "tensor names with their files")
    files = {str(name): folder / str(file) for name, file in weight_map.items()}
    for path in sorted(set(files.values())):
        stored = _stored_names(path)
        for name, file in files.items():
            if file == path and name not in stored:
                raise UsageError(f"{path} tensor", name, "tensors in the file the index names")
    return files


def _stored_names(path: Path) -> set[str]:
    if not path.is_file():
        raise UsageError("--model", str(path), "a checkpoint with all of its shards")
    try:
        with safe_open(path, framework="pt") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise UsageError("--model", str(path), f"a safetensors file ({reason_of(error)})") from None


def _check_names(
    folder: Path, files: Mapping[str, Path], shapes: Mapping[str, tuple[int, ...]], *, tied: bool
) -> None:
    for name in shapes:
        if name not in files:
            raise UsageError(f"{folder} tensor", name, "a checkpoint that holds it")
    # Some tied checkpoints store the embedding a second time; using it once is the meaning of tied.
    accepted = {"lm_head.weight"} if tied else set()
    for name in files:
        if name not in shapes and name not in accepted:
            raise UsageError(f"{folder} tensor", name, "the tensors that config.json implies")


def _tensor_reader(
    files: Mapping[str, Path],
    shapes: Mapping[str, tuple[int, ...]],
    device: torch.device,
    dtype: torch.dtype,
) -> Callable[[str], Tensor]:
    def tensor(name: str) -> Tensor:
        with safe_open(files[name], framework="pt") as file:
            value: Tensor = file.get_tensor(name)
        if tuple(value.shape) != shapes[name]:
            raise UsageError(f"{name} shape", list(value.shape), str(list(shapes[name])))
        if value.dtype not in _LOADABLE_DTYPES:
            raise UsageError(f"{name} dtype", value.dtype, "float32, bfloat16, float16")
        return value.to(device=device, dtype=dtype)

    return tensor


def save_sdar_checkpoint(
    model: sdar.SdarModel, folder: Path, *, max_shard_bytes: int | None = None
) -> None:
    """Write config.json and the weights in SDAR's Hugging Face layout; `folder` is made if missing.

    `max_shard_bytes` cuts the weights into shards of at most that size (a larger tensor has a shard
    to itself) with an index; None writes one file. Tokenizer files are not written, so the
    vocabulary padding (``spec.tokenizer_size``) is known to a reader only once they lie beside.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _hf_config(model.spec))
    shards = list(_shards(model, max_shard_bytes))
    if max_shard_bytes is None:
        save_file(shards[0], folder / WEIGHTS_FILE, metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    _write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(model: sdar.SdarModel, max_bytes: int | None) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in sdar.named_tensors(model):
        if max_bytes is not None and shard and size + tensor.nbytes > max_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor.detach().clone()  # safetensors refuses views that share memory
        size += tensor.nbytes
    yield shard


def _hf_config(spec: ModelSpec) -> dict[str, object]:
    config: dict[str, object] = {
        "architectures": ["SDARForCausalLM"],
        "model_type": "sdar",
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_q_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "hidden_act": "silu",
        "vocab_size": spec.vocab_size,
        "mask_token_id": spec.mask_token_id,
        "eos_token_id": list(spec.stop_token_ids),
        "rope_theta": spec.rope_theta,
        "rms_norm_eps": spec.rms_eps,
        "max_position_embeddings": spec.max_position_embeddings,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "torch_dtype": spec.dtype,
    }
    if spec.block_length is not None:
        config["block_size"] = spec.block_length
    return config


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
