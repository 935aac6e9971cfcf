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
from focus_bench.engine.models import layers, sdar
from focus_bench.engine.models.decoder import AttentionWeights, DecoderModel


@dataclass(frozen=True, kw_only=True)
class LayerWeights(AttentionWeights):
    """One layer. `qkv_bias` [(Hq + 2 Hkv) D]: query, key and value biases; `gate_up` [2 d_ff, h]
    and `down` [h, d_ff] are its SwiGLU feed-forward.
    """

    qkv_bias: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True)
class Qwen2Model(DecoderModel[LayerWeights]):
    """A Fast-dLLM v2 model's weights; implements BlockDiffusionModel."""

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

    def finish(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """Output projection and SwiGLU feed-forward, each with its residual: [T, h]."""
        hidden, normed = self.after_attention(layer, hidden, attention)
        weights = self.layers[layer]
        return hidden + layers.swiglu(normed, weights.gate_up, weights.down)


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint: SDAR's, with biases in place of QK norms."""
    qk_norms = ("q_norm.weight", "k_norm.weight")
    shapes = {n: s for n, s in sdar.tensor_shapes(spec).items() if not n.endswith(qk_norms)}
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}.self_attn."
        shapes |= {
            f"{prefix}q_proj.bias": (spec.q_size,),
            f"{prefix}k_proj.bias": (spec.kv_size,),
            f"{prefix}v_proj.bias": (spec.kv_size,),
        }
    return shapes


def build(spec: ModelSpec, tensor: Callable[[str], Tensor]) -> Qwen2Model:
    """Assemble a model from `tensor`, which gives each tensor of `tensor_shapes` once, by name.

    The tensors must already have the device and dtype that the model shall have.
    """
    embedding = tensor("model.embed_tokens.weight")
    return Qwen2Model(
        spec=spec,
        embedding=embedding,
        layers=tuple(
            _build_layer(f"model.layers.{layer}.", tensor) for layer in range(spec.num_layers)
        ),
        final_norm=tensor("model.norm.weight"),
        head=embedding if spec.tie_word_embeddings else tensor("lm_head.weight"),
        rope_frequencies=layers.rope_frequencies(spec.head_dim, spec.rope_theta, embedding.device),
    )


def _build_layer(prefix: str, tensor: Callable[[str], Tensor]) -> LayerWeights:
    attention = [f"{prefix}self_attn.{name}_proj" for name in ("q", "k", "v")]
    return LayerWeights(
        input_norm=tensor(f"{prefix}input_layernorm.weight"),
        qkv=torch.cat([tensor(f"{name}.weight") for name in attention]),
        qkv_bias=torch.cat([tensor(f"{name}.bias") for name in attention]),
        out=tensor(f"{prefix}self_attn.o_proj.weight"),
        post_norm=tensor(f"{prefix}post_attention_layernorm.weight"),
        gate_up=torch.cat([tensor(f"{prefix}mlp.{n}_proj.weight") for n in ("gate", "up")]),
        down=tensor(f"{prefix}mlp.down_proj.weight"),
    )
