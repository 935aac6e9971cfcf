"""What dense layer families share: everything of a layer but its queries, keys and values.

Knows how the shared tensors are named in a checkpoint; a family adds those of its attention.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models import layers


@dataclass(frozen=True, kw_only=True)
class DenseLayer:
    """One layer, with products of the same input fused into one matrix.

    `qkv` [(Hq + 2 Hkv) D, h] holds query, key, value rows; `gate_up` [2 d_ff, h].
    """

    input_norm: Tensor
    qkv: Tensor
    out: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True)
class DenseModel:
    """A model's weights; BlockDiffusionModel but for `project`. `head` is `embedding` if tied."""

    spec: ModelSpec
    embedding: Tensor
    layers: tuple[DenseLayer, ...]
    final_norm: Tensor
    head: Tensor
    rope_frequencies: Tensor

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and hidden states."""
        return self.embedding.dtype

    def embed(self, token_ids: Tensor) -> Tensor:
        """Hidden states [T, h] of int64 token ids [T]."""
        return functional.embedding(token_ids, self.embedding)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary cos and sin [T, D] of absolute positions [T]."""
        return layers.rope_tables(positions, self.rope_frequencies, self.dtype)

    def finish(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """Output projection and SwiGLU feed-forward, each with its residual: [T, h]."""
        weights = self.layers[layer]
        hidden = hidden + functional.linear(attention, weights.out)
        normed = layers.rms_norm(hidden, weights.post_norm, self.spec.rms_eps)
        return hidden + layers.swiglu(normed, weights.gate_up, weights.down)

    def normed(self, hidden: Tensor) -> Tensor:
        """The last layer's output [R, h] after the final norm."""
        return layers.rms_norm(hidden, self.final_norm, self.spec.rms_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [R, vocab_size] of R rows of the last layer's output."""
        return functional.linear(self.normed(hidden), self.head).float()


def tensor_shapes(
    spec: ModelSpec, attention_vectors: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint (``lm_head.weight`` only if not tied).

    `attention_vectors`: the family's own tensors in each layer's ``self_attn``, with their lengths.
    """
    h = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, h)}
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (h,),
            f"{prefix}self_attn.q_proj.weight": (spec.q_size, h),
            f"{prefix}self_attn.k_proj.weight": (spec.kv_size, h),
            f"{prefix}self_attn.v_proj.weight": (spec.kv_size, h),
            f"{prefix}self_attn.o_proj.weight": (h, spec.q_size),
            f"{prefix}post_attention_layernorm.weight": (h,),
            f"{prefix}mlp.gate_proj.weight": (spec.intermediate_size, h),
            f"{prefix}mlp.up_proj.weight": (spec.intermediate_size, h),
            f"{prefix}mlp.down_proj.weight": (h, spec.intermediate_size),
        }
        shapes |= {f"{prefix}self_attn.{n}": (size,) for n, size in attention_vectors.items()}
    shapes["model.norm.weight"] = (h,)
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, h)
    return shapes


def outer_tensors(spec: ModelSpec, tensor: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """The fields of DenseModel around its layers."""
    embedding = tensor("model.embed_tokens.weight")
    return {
        "embedding": embedding,
        "final_norm": tensor("model.norm.weight"),
        "head": embedding if spec.tie_word_embeddings else tensor("lm_head.weight"),
        "rope_frequencies": layers.rope_frequencies(
            spec.head_dim, spec.rope_theta, embedding.device
        ),
    }


def layer_tensors(prefix: str, tensor: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """The fields of DenseLayer, from the tensors whose names begin with `prefix`."""
    return {
        "input_norm": tensor(f"{prefix}input_layernorm.weight"),
        "qkv": torch.cat([tensor(f"{prefix}self_attn.{n}_proj.weight") for n in ("q", "k", "v")]),
        "out": tensor(f"{prefix}self_attn.o_proj.weight"),
        "post_norm": tensor(f"{prefix}post_attention_layernorm.weight"),
        "gate_up": torch.cat([tensor(f"{prefix}mlp.{n}_proj.weight") for n in ("gate", "up")]),
        "down": tensor(f"{prefix}mlp.down_proj.weight"),
    }
