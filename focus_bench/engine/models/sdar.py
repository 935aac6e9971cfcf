"""The SDAR family: Qwen3 layers (per-head QK norm, no bias) without a causal mask in a block.

Knows how its tensors are named in a checkpoint, and nothing of files, caches or scheduling.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models import layers


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One layer, with products of the same input fused into one matrix.

    `qkv` [(Hq + 2 Hkv) D, h] holds query, key, value rows; `qk_norm` [Hq + Hkv, D] repeats the
    query norm Hq times and the key norm Hkv times, so that both are normalised in one pass;
    `gate_up` [2 d_ff, h].
    """

    input_norm: Tensor
    qkv: Tensor
    qk_norm: Tensor
    out: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True)
class SdarModel:
    """An SDAR model's weights; implements BlockDiffusionModel. `head` is `embedding` if tied."""

    spec: ModelSpec
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
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

    def project(
        self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query [T, Hq, D] and key [T, Hkv, D] (normed per head, rotated), value [T, Hkv, D]."""
        spec, weights = self.spec, self.layers[layer]
        normed = layers.rms_norm(hidden, weights.input_norm, spec.rms_eps)
        fused = functional.linear(normed, weights.qkv)
        num_qk_heads = spec.num_q_heads + spec.num_kv_heads
        fused = fused.view(-1, num_qk_heads + spec.num_kv_heads, spec.head_dim)
        qk = layers.rms_norm(fused[:, :num_qk_heads], weights.qk_norm, spec.rms_eps)
        qk = layers.apply_rope(qk, cos, sin)
        return qk[:, : spec.num_q_heads], qk[:, spec.num_q_heads :], fused[:, num_qk_heads:]

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


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint (``lm_head.weight`` only if not tied)."""
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
            f"{prefix}self_attn.q_norm.weight": (spec.head_dim,),
            f"{prefix}self_attn.k_norm.weight": (spec.head_dim,),
            f"{prefix}post_attention_layernorm.weight": (h,),
            f"{prefix}mlp.gate_proj.weight": (spec.intermediate_size, h),
            f"{prefix}mlp.up_proj.weight": (spec.intermediate_size, h),
            f"{prefix}mlp.down_proj.weight": (h, spec.intermediate_size),
        }
    shapes["model.norm.weight"] = (h,)
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, h)
    return shapes


def build(spec: ModelSpec, tensor: Callable[[str], Tensor]) -> SdarModel:
    """Assemble a model from `tensor`, which gives each tensor of `tensor_shapes` once, by name.

    The tensors must already have the device and dtype that the model shall have.
    """
    embedding = tensor("model.embed_tokens.weight")
    return SdarModel(
        spec=spec,
        embedding=embedding,
        layers=tuple(
            _build_layer(spec, f"model.layers.{layer}.", tensor) for layer in range(spec.num_layers)
        ),
        final_norm=tensor("model.norm.weight"),
        head=embedding if spec.tie_word_embeddings else tensor("lm_head.weight"),
        rope_frequencies=layers.rope_frequencies(spec.head_dim, spec.rope_theta, embedding.device),
    )


def _build_layer(spec: ModelSpec, prefix: str, tensor: Callable[[str], Tensor]) -> LayerWeights:
    q_norm = tensor(f"{prefix}self_attn.q_norm.weight")
    k_norm = tensor(f"{prefix}self_attn.k_norm.weight")
    return LayerWeights(
        input_norm=tensor(f"{prefix}input_layernorm.weight"),
        qkv=torch.cat([tensor(f"{prefix}self_attn.{n}_proj.weight") for n in ("q", "k", "v")]),
        qk_norm=torch.cat(
            (q_norm.expand(spec.num_q_heads, -1), k_norm.expand(spec.num_kv_heads, -1))
        ),
        out=tensor(f"{prefix}self_attn.o_proj.weight"),
        post_norm=tensor(f"{prefix}post_attention_layernorm.weight"),
        gate_up=torch.cat([tensor(f"{prefix}mlp.{n}_proj.weight") for n in ("gate", "up")]),
        down=tensor(f"{prefix}mlp.down_proj.weight"),
    )


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
