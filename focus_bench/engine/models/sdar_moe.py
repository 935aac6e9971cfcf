"""SDAR with experts (SDAR-30B-A3B): SDAR's attention, a Qwen3-MoE feed-forward in every layer.

Knows how its tensors are named in a checkpoint, and nothing of files, caches or scheduling.
"""

from collections.abc import Callable

from torch import Tensor

from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models import sdar
from focus_bench.engine.models.decoder import outer_fields, outer_shapes
from focus_bench.engine.models.moe import (
    MoeLayer,
    MoeModel,
    build_feed_forward,
    feed_forward_shapes,
)


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint (``lm_head.weight`` only if not tied)."""
    shapes = outer_shapes(spec)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= sdar.attention_shapes(spec, prefix)
        shapes |= feed_forward_shapes(spec, layer, f"{prefix}mlp.")
    return shapes


def build(spec: ModelSpec, tensor: Callable[[str], Tensor]) -> MoeModel:
    """Assemble a model from `tensor`, which gives each tensor of `tensor_shapes` once, by name.

    The tensors must already have the device and dtype that the model shall have.
    """
    return MoeModel(
        spec=spec,
        layers=tuple(_build_layer(spec, layer, tensor) for layer in range(spec.num_layers)),
        **outer_fields(spec, tensor),
    )


def _build_layer(spec: ModelSpec, layer: int, tensor: Callable[[str], Tensor]) -> MoeLayer:
    prefix = f"model.layers.{layer}."
    return MoeLayer(
        feed_forward=build_feed_forward(spec, layer, f"{prefix}mlp.", tensor),
        **sdar.attention_fields(spec, prefix, tensor),
    )
