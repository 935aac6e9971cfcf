"""transformers' models with experts as outside references, in the shape of SDAR-MoE and LLaDA2.

Qwen3-MoE has SDAR-30B-A3B's layers. GLM-4-MoE has LLaDA2.0's, whole: partial rotary embedding, QK
norm, a dense first layer, sigmoid router with groups and bias, shared expert; its tensors only have
other names. Weights are random, router biases and norms included.
"""

from typing import Any

import torch
from qwen3_reference import MASK_TOKEN_ID, STOP_TOKEN_ID
from torch import Tensor
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.device import torch_dtype
from focus_bench.engine.models.families import family_of
from focus_bench.engine.models.moe import MoeModel

SHARED: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_intermediate_size": 24,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def _spec(name: str, num_layers: int, experts: ExpertSpec, **changes: Any) -> ModelSpec:
    """The ModelSpec of SHARED, written down by hand."""
    return ModelSpec(
        name=name,
        num_layers=num_layers,
        hidden_size=48,
        num_q_heads=8,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=80,
        vocab_size=101,
        mask_token_id=MASK_TOKEN_ID,
        stop_token_ids=(STOP_TOKEN_ID,),
        rope_theta=10000.0,
        rms_eps=1e-6,
        max_position_embeddings=512,
        dtype="float32",
        experts=experts,
        **changes,
    )


def randomise(model: PreTrainedModel, seed: int, std: float) -> None:
    """Normal matrices, norms around 1, router biases that change the choice."""
    random = torch.Generator().manual_seed(seed)
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("e_score_correction_bias"):
            value.normal_(0.0, 0.2, generator=random)
        elif "rotary_emb" in name:
            continue
        elif value.ndim == 1:
            value.uniform_(0.5, 1.5, generator=random)
        else:
            value.normal_(0.0, std, generator=random)


def build_qwen3_moe(
    *, seed: int = 0, num_layers: int = 3, std: float = 0.3, normalise: bool = True
) -> Qwen3MoeForCausalLM:
    """A small Qwen3-MoE: 10 experts, 3 a token, in every layer."""
    config = Qwen3MoeConfig(
        **SHARED,
        rope_parameters=ROPE,
        num_hidden_layers=num_layers,
        num_experts=10,
        num_experts_per_tok=3,
        norm_topk_prob=normalise,
    )
    model = Qwen3MoeForCausalLM(config).eval().requires_grad_(False)
    randomise(model, seed, std)
    return model


def qwen3_moe_spec(model: Qwen3MoeForCausalLM) -> ModelSpec:
    """Its ModelSpec."""
    experts = ExpertSpec(
        num_experts=10,
        experts_per_token=3,
        expert_size=24,
        normalise=model.config.norm_topk_prob,
    )
    return _spec("qwen3-moe-reference", len(model.model.layers), experts)


def build_glm4_moe(
    *, seed: int = 0, num_layers: int = 3, std: float = 0.3, num_groups: int = 4, kept: int = 2
) -> Glm4MoeForCausalLM:
    """A small GLM-4-MoE: 16 experts, 4 a token, one shared, behind one dense layer."""
    config = Glm4MoeConfig(
        **SHARED,
        rope_parameters={**ROPE, "partial_rotary_factor": 0.5},
        num_hidden_layers=num_layers,
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_shared_experts=1,
        n_group=num_groups,
        topk_group=kept,
        routed_scaling_factor=2.5,
        first_k_dense_replace=1,
        norm_topk_prob=True,
        use_qk_norm=True,
    )
    model = Glm4MoeForCausalLM(config).eval().requires_grad_(False)
    randomise(model, seed, std)
    return model


def glm4_moe_spec(model: Glm4MoeForCausalLM) -> ModelSpec:
    """Its ModelSpec, as a LLaDA2 model."""
    experts = ExpertSpec(
        num_experts=16,
        experts_per_token=4,
        expert_size=24,
        shared_size=24,
        num_dense_layers=1,
        router="sigmoid",
        has_router_bias=True,
        num_groups=model.config.n_group,
        num_kept_groups=model.config.topk_group,
        routed_scale=2.5,
    )
    return _spec(
        "llada2-reference", len(model.model.layers), experts, family="llada2", rotary_share=0.5
    )


def sdar_moe_tensors(model: Qwen3MoeForCausalLM) -> dict[str, Tensor]:
    """The model's weights under the names of an SDAR-30B-A3B checkpoint."""
    return _experts_one_by_one(dict(model.state_dict()))


def llada2_tensors(model: Glm4MoeForCausalLM) -> dict[str, Tensor]:
    """The model's weights under the names of a LLaDA2.0 checkpoint."""
    tensors: dict[str, Tensor] = {}
    state = _experts_one_by_one(dict(model.state_dict()))
    for name, tensor in state.items():
        if name.endswith("self_attn.q_proj.weight"):
            prefix = name.removesuffix("q_proj.weight")
            tensors[f"{prefix}query_key_value.weight".replace("self_attn", "attention")] = (
                torch.cat([state[f"{prefix}{n}_proj.weight"] for n in ("q", "k", "v")])
            )
        elif not name.endswith(("self_attn.k_proj.weight", "self_attn.v_proj.weight")):
            for old, new in (
                ("embed_tokens", "word_embeddings"),
                ("self_attn.o_proj", "attention.dense"),
                ("self_attn.q_norm", "attention.query_layernorm"),
                ("self_attn.k_norm", "attention.key_layernorm"),
                ("gate.e_score_correction_bias", "gate.expert_bias"),
            ):
                name = name.replace(old, new)
            tensors[name] = tensor
    return tensors


def _experts_one_by_one(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stacked experts cut into one tensor each, as published checkpoints have them."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        prefix, _, kind = name.rpartition(".")
        if kind not in {"gate_up_proj", "down_proj"}:
            tensors[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            halves = matrix.chunk(2) if kind == "gate_up_proj" else [matrix]
            kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
            for part, half in zip(kinds, halves, strict=True):
                tensors[f"{prefix}.{expert}.{part}.weight"] = half.contiguous()
    return tensors


def moe_model(reference: Qwen3MoeForCausalLM | Glm4MoeForCausalLM, **spec_changes: Any) -> MoeModel:
    """The engine's model with the reference's weights; without stop tokens unless asked for."""
    tensors: dict[str, Tensor]
    if isinstance(reference, Qwen3MoeForCausalLM):
        spec, tensors = qwen3_moe_spec(reference), sdar_moe_tensors(reference)
    else:
        spec, tensors = glm4_moe_spec(reference), llada2_tensors(reference)
    spec = spec.replace(**{"stop_token_ids": (), **spec_changes})
    family, dtype = family_of(spec), torch_dtype(spec.dtype)
    model = family.build(
        spec, lambda n: tensors[n] if family.keeps_float32(n) else tensors[n].to(dtype)
    )
    assert isinstance(model, MoeModel)
    return model
