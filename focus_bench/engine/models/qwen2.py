"""The Fast-dLLM v2 family: Qwen2.5 layers (QKV bias, no QK norm) without a causal mask in a block.

Knows how its tensors are named in a checkpoint, and nothing of files, caches or scheduling; that
its logits are shifted is said by ModelSpec.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models import dense, layers
from focus_bench.engine.models.dense import DenseLayer, DenseModel


@dataclass(frozen=True, kw_only=True)
class BiasedLayer(DenseLayer):
    """One layer's weights. `qkv_bias` [(Hq + 2 Hkv) D]: query, key and value biases."""

    qkv_bias: Tensor


@dataclass(frozen=True, kw_only=True)
class Qwen2Model(DenseModel):
    """A Fast-dLLM v2 model's weights; implements BlockDiffusionModel."""

    layers: tuple[BiasedLayer, ...]

    def project(
        self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query [T, Hq, D] and key [T, Hkv, D], rotated, and value [T, Hkv, D]."""
        spec, weights = self.spec, self.layers[layer]
        normed = layers.rms_norm(hidden, weights.input_norm, spec.rms_eps)
        fused = functional.linear(normed, weights.qkv, weights.qkv_bias)
        num_qk_heads = spec.num_q_heads + spec.num_kv_heads
        fused = fused.view(-1, num_qk_heads + spec.num_kv_heads, spec.head_dim)
        qk = layers.apply_rope(fused[:, :num_qk_heads], cos, sin)
        return qk[:, : spec.num_q_heads], qk[:, spec.num_q_heads :], fused[:, num_qk_heads:]


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint (``lm_head.weight`` only if not tied)."""
    biases = {
        "q_proj.bias": spec.q_size,
        "k_proj.bias": spec.kv_size,
        "v_proj.bias": spec.kv_size,
    }
    return dense.tensor_shapes(spec, biases)


def build(spec: ModelSpec, tensor: Callable[[str], Tensor]) -> Qwen2Model:
    """Assemble a model from `tensor`, which gives each tensor of `tensor_shapes` once, by name.

    The tensors must already have the device and dtype that the model shall have.
    """
    return Qwen2Model(
        spec=spec,
        layers=tuple(
            _build_layer(f"model.layers.{layer}.", tensor) for layer in range(spec.num_layers)
        ),
        **dense.outer_tensors(spec, tensor),
    )


def _build_layer(prefix: str, tensor: Callable[[str], Tensor]) -> BiasedLayer:
    biases = [tensor(f"{prefix}self_attn.{name}_proj.bias") for name in ("q", "k", "v")]
    return BiasedLayer(qkv_bias=torch.cat(biases), **dense.layer_tensors(prefix, tensor))
