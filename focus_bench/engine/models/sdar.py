"""The SDAR family: Qwen3 layers (per-head QK norm, no bias) without a causal mask in a block.

Knows how its tensors are named in a checkpoint, and nothing of files, caches or scheduling.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models import layers
from focus_bench.engine.models.decoder import (
    QkNormModel,
    QkNormWeights,
    outer_fields,
    outer_shapes,
    repeated_qk_norm,
)


@dataclass(frozen=True, kw_only=True)
class LayerWeights(QkNormWeights):
    """One layer; `gate_up` [2 d_ff, h] and `down` [h, d_ff] are its SwiGLU feed-forward."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True)
class SdarModel(QkNormModel[LayerWeights]):
    """An SDAR model's weights; implements BlockDiffusionModel."""

    def finish(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """Output projection and SwiGLU feed-forward, each with its residual: [T, h]."""
        hidden, normed = self.after_attention(layer, hidden, attention)
        weights = self.layers[layer]
        return hidden + layers.swiglu(normed, weights.gate_up, weights.down)


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint (``lm_head.weight`` only if not tied)."""
    h = spec.hidden_size
    shapes = outer_shapes(spec)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= attention_shapes(spec, prefix) | {
            f"{prefix}mlp.gate_proj.weight": (spec.intermediate_size, h),
            f"{prefix}mlp.up_proj.weight": (spec.intermediate_size, h),
            f"{prefix}mlp.down_proj.weight": (h, spec.intermediate_size),
        }
    return shapes


def attention_shapes(spec: ModelSpec, prefix: str) -> dict[str, tuple[int, ...]]:
    """Name and shape of a layer's tensors but for its feed-forward's."""
    h = spec.hidden_size
    return {
        f"{prefix}input_layernorm.weight": (h,),
        f"{prefix}self_attn.q_proj.weight": (spec.q_size, h),
        f"{prefix}self_attn.k_proj.weight": (spec.kv_size, h),
        f"{prefix}self_attn.v_proj.weight": (spec.kv_size, h),
        f"{prefix}self_attn.o_proj.weight": (h, spec.q_size),
        f"{prefix}self_attn.q_norm.weight": (spec.head_dim,),
        f"{prefix}self_attn.k_norm.weight": (spec.head_dim,),
        f"{prefix}post_attention_layernorm.weight": (h,),
    }


def build(spec: ModelSpec, tensor: Callable[[str], Tensor]) -> SdarModel:
    """Assemble a model from `tensor`, which gives each tensor of `tensor_shapes` once, by name.

    The tensors must already have the device and dtype that the model shall have.
    """
    return SdarModel(
        spec=spec,
        layers=tuple(
            _build_layer(spec, f"model.layers.{layer}.", tensor) for layer in range(spec.num_layers)
        ),
        **outer_fields(spec, tensor),
    )


def _build_layer(spec: ModelSpec, prefix: str, tensor: Callable[[str], Tensor]) -> LayerWeights:
    return LayerWeights(
        **attention_fields(spec, prefix, tensor),
        gate_up=torch.cat([tensor(f"{prefix}mlp.{n}_proj.weight") for n in ("gate", "up")]),
        down=tensor(f"{prefix}mlp.down_proj.weight"),
    )


def attention_fields(
    spec: ModelSpec, prefix: str, tensor: Callable[[str], Tensor]
) -> dict[str, Tensor]:
    """The fields of QkNormWeights from the tensors of `attention_shapes`."""
    return {
        "input_norm": tensor(f"{prefix}input_layernorm.weight"),
        "qkv": torch.cat([tensor(f"{prefix}self_attn.{n}_proj.weight") for n in ("q", "k", "v")]),
        "qk_norm": repeated_qk_norm(
            spec,
            tensor(f"{prefix}self_attn.q_norm.weight"),
            tensor(f"{prefix}self_attn.k_norm.weight"),
        ),
        "out": tensor(f"{prefix}self_attn.o_proj.weight"),
        "post_norm": tensor(f"{prefix}post_attention_layernorm.weight"),
    }


def named_tensors(model: SdarModel) -> Iterator[tuple[str, Tensor]]:
    """The checkpoint's tensors by name, as views of the fused weights (inverse of `build`)."""
    spec = model.spec
    yield "model.embed_tokens.weight", model.embedding
    for index, weights in enumerate(model.layers):
        prefix = f"model.layers.{index}."
        q, k, v = torch.split(weights.qkv, [spec.q_size, spec.kv_size, spec.kv_size])
        gate, up = weights.gate_up.chunk(2)
        yield f"{prefix}input_layernorm.weight", weights.input_norm
        yield f"{prefix}self_attn.q_proj.weight", q
        yield f"{prefix}self_attn.k_proj.weight", k
        yield f"{prefix}self_attn.v_proj.weight", v
        yield f"{prefix}self_attn.o_proj.weight", weights.out
        yield f"{prefix}self_attn.q_norm.weight", weights.qk_norm[0]
        yield f"{prefix}self_attn.k_norm.weight", weights.qk_norm[spec.num_q_heads]
        yield f"{prefix}post_attention_layernorm.weight", weights.post_norm
        yield f"{prefix}mlp.gate_proj.weight", gate
        yield f"{prefix}mlp.up_proj.weight", up
        yield f"{prefix}mlp.down_proj.weight", weights.down
    yield "model.norm.weight", model.final_norm
    if not spec.tie_word_embeddings:
        yield "lm_head.weight", model.head
