"""The LLaDA2.0 family: partial rotary embedding, dense first layers, then experts in groups.

Knows how its tensors are named in a checkpoint, and nothing of files, caches or scheduling.
"""

from collections.abc import Callable

from torch import Tensor

from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models.decoder import outer_fields, outer_shapes, repeated_qk_norm
from focus_bench.engine.models.moe import (
    MoeLayer,
    MoeModel,
    build_feed_forward,
    feed_forward_shapes,
)

EMBEDDING = "model.word_embeddings.weight"


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint (``lm_head.weight`` only if not tied)."""
    h = spec.hidden_size
    shapes = outer_shapes(spec, EMBEDDING)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (h,),
            f"{prefix}attention.query_key_value.weight": (spec.q_size + 2 * spec.kv_size, h),
            f"{prefix}attention.query_layernorm.weight": (spec.head_dim,),
            f"{prefix}attention.key_layernorm.weight": (spec.head_dim,),
            f"{prefix}attention.dense.weight": (h, spec.q_size),
            f"{prefix}post_attention_layernorm.weight": (h,),
        }
        shapes |= feed_forward_shapes(spec, layer, f"{prefix}mlp.")
    return shapes


def build(spec: ModelSpec, tensor: Callable[[str], Tensor]) -> MoeModel:
    """Assemble a model from `tensor`, which gives each tensor of `tensor_shapes` once, by name.

    The tensors must already have the device and dtype that the model shall have.
    """
    return MoeModel(
        spec=spec,
        layers=tuple(_build_layer(spec, layer, tensor) for layer in range(spec.num_layers)),
        **outer_fields(spec, tensor, EMBEDDING),
    )


def _build_layer(spec: ModelSpec, layer: int, tensor: Callable[[str], Tensor]) -> MoeLayer:
    prefix = f"model.layers.{layer}."
    return MoeLayer(
        input_norm=tensor(f"{prefix}input_layernorm.weight"),
        qkv=tensor(f"{prefix}attention.query_key_value.weight"),  # already query, key, value rows
        qk_norm=repeated_qk_norm(
            spec,
            tensor(f"{prefix}attention.query_layernorm.weight"),
            tensor(f"{prefix}attention.key_layernorm.weight"),
        ),
        out=tensor(f"{prefix}attention.dense.weight"),
        post_norm=tensor(f"{prefix}post_attention_layernorm.weight"),
        feed_forward=build_feed_forward(spec, layer, f"{prefix}mlp.", tensor),
    )
