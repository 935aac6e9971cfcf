"""Loading, saving and dummy weights; each damaged folder is refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from qwen3_reference import build_qwen3, spec_of
from safetensors.torch import load_file, save_file

from focus_bench.core.config import EngineConfig
from focus_bench.core.errors import CapacityError, UsageError
from focus_bench.core.model_folder import resolve_model
from focus_bench.core.model_spec import PRESETS
from focus_bench.engine.device import resolve_device, torch_dtype
from focus_bench.engine.dummy_weights import dummy_tensors, generated_on_device
from focus_bench.engine.models import sdar
from focus_bench.engine.weights import (
    checkpoint_files,
    dummy_model,
    expected_tensor_names,
    load_model,
    save_sdar_checkpoint,
)

CPU = torch.device("cpu")


def qwen3_folder(
    folder: Path, *, max_shard_bytes: int | None, tied: bool = False
) -> sdar.SdarModel:
    """Save a random Qwen3's weights in SDAR's layout; returns the model they came from."""
    reference = build_qwen3(tied=tied)
    state = reference.state_dict()
    model = sdar.build(spec_of(reference), lambda name: state[name])
    save_sdar_checkpoint(model, folder, max_shard_bytes=max_shard_bytes)
    return model


def assert_same_weights(model: sdar.SdarModel, state: dict[str, torch.Tensor]) -> None:
    tensors = dict(sdar.named_tensors(model))
    assert tensors.keys() == state.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize("max_shard_bytes", [None, 40_000, 1])
@pytest.mark.parametrize("tied", [False, True])
def test_qwen3s_weights_saved_as_sdar_load_back_the_same(
    tmp_path: Path, max_shard_bytes: int | None, tied: bool
) -> None:
    reference = build_qwen3(tied=tied)
    saved = qwen3_folder(tmp_path, max_shard_bytes=max_shard_bytes, tied=tied)
    config = EngineConfig(model=str(tmp_path), device="cpu")
    assert resolve_model(config) == saved.spec.replace(name=tmp_path.name)
    state = dict(reference.named_parameters())
    assert_same_weights(load_model(config), state)
    num_files = len(list(tmp_path.glob("*.safetensors")))
    assert num_files == 1 if max_shard_bytes is None else num_files > 1
    if max_shard_bytes == 1:
        assert num_files == len(state)


@pytest.mark.parametrize("max_shard_size", ["1GB", "40KB"])
def test_folders_that_transformers_wrote_load(tmp_path: Path, max_shard_size: str) -> None:
    reference = build_qwen3(dtype=torch.bfloat16)
    reference.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    config = EngineConfig(model=str(tmp_path), device="cpu", mask_token_id=96)
    model = load_model(config)
    assert model.dtype == torch.float32
    assert model.spec.rope_theta == 10000.0
    assert_same_weights(model, {n: p.float() for n, p in reference.named_parameters()})


def test_dtype_flag_is_kept_on_the_cpu(tmp_path: Path) -> None:
    qwen3_folder(tmp_path, max_shard_bytes=None)
    model = load_model(EngineConfig(model=str(tmp_path), device="cpu", dtype="bfloat16"))
    assert model.dtype == torch.bfloat16
    assert model.spec.dtype == "bfloat16"


def test_a_tied_checkpoint_may_store_the_head_too(tmp_path: Path) -> None:
    qwen3_folder(tmp_path, max_shard_bytes=None, tied=True)
    rewrite(tmp_path, lambda t: {**t, "lm_head.weight": t["model.embed_tokens.weight"].clone()})
    model = load_model(EngineConfig(model=str(tmp_path), device="cpu"))
    assert model.head is model.embedding


def rewrite(folder: Path, change: object) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


Q0 = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {n: v for n, v in t.items() if n != Q0}, f"tensor: '{Q0}'.*that holds it"),
        (lambda t: {**t, "model.layers.3.x": torch.ones(1)}, r"'model\.layers\.3\.x'.*implies"),
        (lambda t: {**t, Q0: torch.ones(2, 48)}, rf"{Q0} shape: \[2, 48\].*\[128, 48\]"),
        (lambda t: {**t, Q0: t[Q0].to(torch.int8)}, rf"{Q0} dtype: torch.int8"),
    ],
)
def test_wrong_tensors_are_named(tmp_path: Path, change: object, message: str) -> None:
    qwen3_folder(tmp_path, max_shard_bytes=None)
    rewrite(tmp_path, change)
    with pytest.raises(UsageError, match=message):
        load_model(EngineConfig(model=str(tmp_path), device="cpu"))


def test_a_folder_without_weights_is_refused_but_serves_dummy_weights(tmp_path: Path) -> None:
    qwen3_folder(tmp_path, max_shard_bytes=None)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"model\.safetensors or model\.safetensors\.index\.json"):
        load_model(EngineConfig(model=str(tmp_path), device="cpu"))
    model = load_model(EngineConfig(model=str(tmp_path), device="cpu", load_format="dummy"))
    assert model.spec.num_layers == 3


def test_a_missing_or_damaged_shard_is_named(tmp_path: Path) -> None:
    qwen3_folder(tmp_path, max_shard_bytes=40_000)
    shard = sorted(tmp_path.glob("model-00002-*"))[0]
    content = shard.read_bytes()
    config = EngineConfig(model=str(tmp_path), device="cpu")
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match=rf"{shard.name}.*a safetensors file"):
        load_model(config)
    shard.unlink()
    with pytest.raises(UsageError, match=rf"{shard.name}.*all of its shards"):
        load_model(config)


def test_an_index_that_names_the_wrong_shard_is_refused(tmp_path: Path) -> None:
    qwen3_folder(tmp_path, max_shard_bytes=40_000)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.embed_tokens.weight"] = index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"tensor: 'model\.embed_tokens\.weight'"):
        checkpoint_files(tmp_path)
    path.write_text("{}")
    with pytest.raises(UsageError, match="weight_map"):
        checkpoint_files(tmp_path)


def test_the_names_of_sdar_8b_are_those_of_its_index(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "sdar_tokenizer"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    names = expected_tensor_names(resolve_model(EngineConfig(model=str(folder))))
    assert names == set(index["weight_map"])
    assert len(names) == 399
    assert PRESETS["sdar-8b"].weight_bytes == index["metadata"]["total_size"]


def test_dummy_weights_are_normal_and_seeded_by_name() -> None:
    spec = PRESETS["dummy-tiny"].replace(num_layers=2)
    first = dict(sdar.named_tensors(dummy_model(spec, device=CPU)))
    assert expected_tensor_names(spec) == set(first)
    for name, tensor in first.items():
        if tensor.ndim == 1:
            assert torch.equal(tensor, torch.ones_like(tensor)), name
        else:
            assert tensor.std().item() == pytest.approx(0.02, rel=0.03), name
            assert abs(tensor.mean().item()) < 5e-4, name
    assert sum(t.numel() for t in first.values()) == spec.num_params
    # Another depth, another order: the same values under the same name.
    deeper = dict(sdar.named_tensors(dummy_model(spec.replace(num_layers=3), device=CPU)))
    assert all(torch.equal(tensor, deeper[name]) for name, tensor in first.items())
    other_seed = dict(sdar.named_tensors(dummy_model(spec, device=CPU, seed=1)))
    assert not torch.equal(other_seed["lm_head.weight"], first["lm_head.weight"])
    assert not torch.equal(first["lm_head.weight"], first["model.embed_tokens.weight"])


def test_only_large_models_on_cuda_take_the_gpus_generator() -> None:
    cuda = torch.device("cuda")
    assert generated_on_device(PRESETS["sdar-8b"], cuda)
    assert not generated_on_device(PRESETS["dummy-tiny"], cuda)
    assert not generated_on_device(PRESETS["sdar-8b"], CPU)


def test_dummy_bfloat16_is_rounded_float32() -> None:
    shapes = {"w": (16, 8)}
    spec = PRESETS["dummy-tiny"]
    wide, narrow = (
        dummy_tensors(spec, shapes, seed=0, device=CPU, dtype=dtype)("w")
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert torch.equal(wide.bfloat16(), narrow)


def test_a_large_model_in_a_hundredth_of_the_memory_is_refused_before_loading() -> None:
    config = EngineConfig(model="sdar-8b", device="cpu", gpu_memory_utilization=0.001)
    with pytest.raises(CapacityError, match=r"32,762,941,440 bytes wanted, [\d,]+ bytes had"):
        load_model(config)


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    assert resolve_device("cpu") == CPU
    with pytest.raises(UsageError, match="no CUDA device"):
        resolve_device("cuda")
    with pytest.raises(UsageError, match="tpu"):
        resolve_device("tpu")


def test_dtypes_by_name() -> None:
    assert torch_dtype("bfloat16") == torch.bfloat16
    with pytest.raises(UsageError, match="int8"):
        torch_dtype("int8")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_small_dummy_models_are_the_same_on_cuda() -> None:
    spec = PRESETS["dummy-tiny"]
    on_cpu = dict(sdar.named_tensors(dummy_model(spec, device=CPU)))
    on_cuda = dict(sdar.named_tensors(dummy_model(spec, device=torch.device("cuda"))))
    assert all(np.array_equal(on_cuda[n].cpu().numpy(), t.numpy()) for n, t in on_cpu.items())
