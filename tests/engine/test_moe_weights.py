"""Checkpoint folders of models with experts, by the names that are published, and dummy weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from moe_reference import (
    build_glm4_moe,
    build_qwen3_moe,
    glm4_moe_spec,
    llada2_tensors,
    qwen3_moe_spec,
    sdar_moe_tensors,
)
from qwen3_reference import MASK_TOKEN_ID, STOP_TOKEN_ID, full_logits
from safetensors.torch import save_file
from torch import Tensor

from focus_bench.core.config import EngineConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import resolve_model
from focus_bench.core.model_spec import PRESETS
from focus_bench.engine.models.experts import ExpertWeights
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.weights import dummy_model, expected_tensor_names, load_model

CPU = torch.device("cpu")
BOTH: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "vocab_size": 101,
    "mask_token_id": MASK_TOKEN_ID,
    "eos_token_id": STOP_TOKEN_ID,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "torch_dtype": "float32",
}
SDAR_MOE = BOTH | {
    "architectures": ["SDARMoeForCausalLM"],
    "model_type": "sdar_moe",
    "num_experts": 10,
    "num_experts_per_tok": 3,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
LLADA2 = BOTH | {
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "partial_rotary_factor": 0.5,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "score_function": "sigmoid",
    "router_dtype": "fp32",
    "moe_router_enable_expert_bias": True,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "use_qkv_bias": False,
    "use_bias": False,
}


def write_folder(folder: Path, config: dict[str, Any], *shards: dict[str, Tensor]) -> EngineConfig:
    """A checkpoint of one file, or of several with an index."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors")
    else:
        weight_map = {}
        for number, shard in enumerate(shards):
            file = f"model-{number:05d}.safetensors"
            save_file(shard, folder / file)
            weight_map |= dict.fromkeys(shard, file)
        index = json.dumps({"weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return EngineConfig(model=str(folder), device="cpu")


def halves(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Shards whose border cuts through experts."""
    names = sorted(tensors)
    first = set(names[::2])
    return (
        {n: t for n, t in tensors.items() if n in first},
        {n: t for n, t in tensors.items() if n not in first},
    )


def logits(model: MoeModel, ids: list[int]) -> Tensor:
    """Of one block that attends to itself only."""
    hidden = model.embed(torch.tensor(ids))
    cos, sin = model.rope(torch.arange(len(ids)))
    for layer in range(model.spec.num_layers):
        q, k, v = model.project(layer, hidden, cos, sin)
        attended = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            enable_gqa=True,
        )
        hidden = model.finish(layer, hidden, attended[0].transpose(0, 1).flatten(1))
    return model.logits(hidden)


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("kind", ["sdar-moe", "llada2"])
def test_folders_load_by_the_published_names(tmp_path: Path, kind: str, is_sharded: bool) -> None:
    reference: Any
    if kind == "llada2":
        reference, config = build_glm4_moe(), LLADA2
        spec, tensors = glm4_moe_spec(reference), llada2_tensors(reference)
    else:
        reference, config = build_qwen3_moe(), SDAR_MOE
        spec, tensors = qwen3_moe_spec(reference), sdar_moe_tensors(reference)
    engine = write_folder(tmp_path, config, *(halves(tensors) if is_sharded else [tensors]))
    assert resolve_model(engine) == spec.replace(name=tmp_path.name)
    model = load_model(engine)
    assert isinstance(model, MoeModel)
    ids = [3, 90, 11, 96, 96, 45, 0, 7]
    torch.testing.assert_close(
        logits(model, ids), full_logits(reference, ids, 8), rtol=1e-5, atol=1e-5
    )


def test_folders_that_transformers_wrote_load(tmp_path: Path) -> None:
    reference = build_qwen3_moe()
    reference.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = load_model(EngineConfig(model=str(tmp_path), device="cpu", mask_token_id=MASK_TOKEN_ID))
    assert isinstance(model, MoeModel)
    ids = [3, 90, 11, 96, 96, 45, 0, 7]
    torch.testing.assert_close(
        logits(model, ids), full_logits(reference, ids, 8), rtol=1e-5, atol=1e-5
    )


def test_routers_keep_the_float32_of_the_file_in_a_16_bit_model(tmp_path: Path) -> None:
    tensors = llada2_tensors(build_glm4_moe())
    engine = write_folder(tmp_path, LLADA2 | {"torch_dtype": "bfloat16"}, tensors)
    model = load_model(EngineConfig(model=engine.model, device="cpu", dtype="bfloat16"))
    assert isinstance(model, MoeModel)
    assert model.dtype is torch.bfloat16
    for layer in (1, 2):
        experts = model.layers[layer].feed_forward
        assert isinstance(experts, ExpertWeights)
        assert experts.router_bias is not None
        prefix = f"model.layers.{layer}.mlp.gate."
        assert torch.equal(experts.router, tensors[f"{prefix}weight"])
        assert torch.equal(experts.router_bias, tensors[f"{prefix}expert_bias"])
        assert experts.gate_up.dtype is experts.down.dtype is torch.bfloat16
    assert not isinstance(model.layers[0].feed_forward, ExpertWeights)
    assert held_bytes(model) == model.spec.weight_bytes


def held_bytes(model: MoeModel) -> int:
    """Bytes of the tensors of a checkpoint, as the model holds them."""
    total = model.embedding.nbytes + model.final_norm.nbytes + model.head.nbytes
    for layer in model.layers:
        vectors = 2 * model.spec.head_dim * layer.qk_norm.element_size()  # repeated by head
        total += vectors + sum(t.nbytes for t in (layer.input_norm, layer.post_norm))
        total += layer.qkv.nbytes + layer.out.nbytes
        rest = layer.feed_forward
        total += rest.gate_up.nbytes + rest.down.nbytes
        if isinstance(rest, ExpertWeights):
            total += rest.router.nbytes
            total += 0 if rest.router_bias is None else rest.router_bias.nbytes
            if rest.shared is not None:
                total += rest.shared.gate_up.nbytes + rest.shared.down.nbytes
    return total


MISSING = "model.layers.2.mlp.experts.9.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {n: v for n, v in t.items() if n != MISSING}, f"'{MISSING}'.*that holds it"),
        (
            lambda t: t | {"model.layers.0.mlp.gate.weight": torch.ones(16, 48)},
            r"'model\.layers\.0\.mlp\.gate\.weight'.*implies",  # the first layer is dense
        ),
        (lambda t: t | {MISSING: torch.ones(23, 48)}, rf"{MISSING} shape: \[23, 48\].*\[24, 48\]"),
        (lambda t: t | {MISSING: t[MISSING].to(torch.int8)}, rf"{MISSING} dtype: torch\.int8"),
    ],
)
def test_wrong_tensors_of_experts_are_named(tmp_path: Path, change: Any, message: str) -> None:
    engine = write_folder(tmp_path, LLADA2, change(llada2_tensors(build_glm4_moe())))
    with pytest.raises(UsageError, match=message):
        load_model(engine)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLADA2 | {"score_function": "softmax"}, "score_function: 'softmax'.*sigmoid"),
        (LLADA2 | {"n_group": 3}, "num_experts: 16.*multiples of 3"),
        (LLADA2 | {"topk_group": 5}, "num_kept_groups: 5.*<= 4"),
        (LLADA2 | {"num_experts_per_tok": 9}, "experts_per_token: 9.*<= 8"),
        (LLADA2 | {"first_k_dense_replace": 4}, "num_dense_layers: 4.*at most 3"),
        (LLADA2 | {"use_qkv_bias": True}, "use_qkv_bias: True"),
        (LLADA2 | {"partial_rotary_factor": 0.45}, r"rotary_share: 0\.45"),
        (LLADA2 | {"hidden_act": "gelu"}, "hidden_act: 'gelu'.*silu"),
        (SDAR_MOE | {"mlp_only_layers": [1]}, r"mlp_only_layers and decoder_sparse_step: \[\[1\]"),
        (SDAR_MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({n: v for n, v in SDAR_MOE.items() if n != "num_experts"}, "num_experts: None"),
    ],
)
def test_unusable_configurations_are_named(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        resolve_model(EngineConfig(model=str(tmp_path)))


@pytest.mark.parametrize("preset", ["llada2-mini", "sdar-30b-a3b"])
def test_dummy_weights_of_experts(preset: str) -> None:
    spec = PRESETS[preset]
    assert spec.experts is not None
    experts = spec.experts.replace(num_experts=16, num_groups=1, num_kept_groups=1, expert_size=24)
    small = spec.replace(
        num_layers=2,
        hidden_size=64,
        intermediate_size=48,
        vocab_size=300,
        mask_token_id=299,
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=16,
        experts=experts,
    )
    model = dummy_model(small, device=CPU)
    assert isinstance(model, MoeModel)
    assert held_bytes(model) == small.weight_bytes
    rest = model.layers[1].feed_forward
    assert isinstance(rest, ExpertWeights)
    assert rest.router.dtype is torch.float32
    assert rest.gate_up.float().std().item() == pytest.approx(0.02, rel=0.05)
    assert len({float(matrix[0, 0]) for matrix in rest.down}) == 16
    again = dummy_model(small.replace(num_layers=1 + small.num_dense_layers), device=CPU)
    assert isinstance(again, MoeModel)
    assert torch.equal(again.layers[0].qkv, model.layers[0].qkv)


def test_the_presets_are_of_the_published_sizes() -> None:
    # "16B total and 1.4B active" (the paper), "100B" (LLaDA2.0-flash), 30B and 3B (SDAR).
    billions = {
        name: (round(PRESETS[name].num_params / 1e9, 1), PRESETS[name].num_active_params / 1e9)
        for name in ("llada2-mini", "llada2-flash", "sdar-30b-a3b")
    }
    assert billions["llada2-mini"] == (16.3, pytest.approx(1.4, abs=0.05))
    assert billions["llada2-flash"] == (102.9, pytest.approx(6.1, abs=0.1))
    assert billions["sdar-30b-a3b"] == (30.5, pytest.approx(3.3, abs=0.1))
    names = expected_tensor_names(PRESETS["llada2-mini"])
    assert len(names) == 3 + 20 * 6 + 3 + 19 * (2 + 3 * 256 + 3)
    assert "model.layers.1.mlp.shared_experts.down_proj.weight" in names
    assert "model.layers.19.attention.query_key_value.weight" in names
    assert len(expected_tensor_names(PRESETS["sdar-30b-a3b"])) == 3 + 48 * (8 + 1 + 3 * 128)
