"""What the model families share: embedding, attention layers' outer parts, norms and head.

Knows no feed-forward, and nothing of files, caches or scheduling.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models import layers


@dataclass(frozen=True, kw_only=True)
class AttentionWeights:
    """A layer but for its feed-forward, with products of the same input fused into one matrix.

    `qkv` [(Hq + 2 Hkv) D, h] holds query, key, value rows; `out` [h, Hq D].
    """

    input_norm: Tensor
    qkv: Tensor
    out: Tensor
    post_norm: Tensor


LayerT = TypeVar("LayerT", bound=AttentionWeights)


@dataclass(frozen=True, kw_only=True)
class DecoderModel(Generic[LayerT]):
    """A model's weights; with `project` and `finish`, which families add, a BlockDiffusionModel.

    `head` is `embedding` if tied; `rope_frequencies` float32 [rotary_dim / 2].
    """

    spec: ModelSpec
    embedding: Tensor
    layers: tuple[LayerT, ...]
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
        """Rotary cos and sin [T, rotary_dim] of absolute positions [T]."""
        return layers.rope_tables(positions, self.rope_frequencies, self.dtype)

    def after_attention(
        self, layer: int, hidden: Tensor, attention: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The residual [T, h] with the output projection added, and the feed-forward's input."""
        weights = self.layers[layer]
        hidden = hidden + functional.linear(attention, weights.out)
        return hidden, layers.rms_norm(hidden, weights.post_norm, self.spec.rms_eps)

    def normed(self, hidden: Tensor) -> Tensor:
        """The last layer's output [R, h] after the final norm."""
        return layers.rms_norm(hidden, self.final_norm, self.spec.rms_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [R, vocab_size] of R rows of the last layer's output."""
        return functional.linear(self.normed(hidden), self.head).float()


@dataclass(frozen=True, kw_only=True)
class QkNormWeights(AttentionWeights):
    """Attention with a norm per head, as in Qwen3.

    `qk_norm` [Hq + Hkv, D] repeats the query norm Hq times and the key norm Hkv times, so that both
    are normalised in one pass.
    """

    qk_norm: Tensor


QkNormLayerT = TypeVar("QkNormLayerT", bound=QkNormWeights)


@dataclass(frozen=True, kw_only=True)
class QkNormModel(DecoderModel[QkNormLayerT]):
    """A model whose queries and keys have a norm per head; a family adds `finish`."""

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


def outer_shapes(
    spec: ModelSpec, embedding: str = "model.embed_tokens.weight"
) -> dict[str, tuple[int, ...]]:
    """Name and shape of the tensors around the layers, of which `embedding` is one's name."""
    shapes: dict[str, tuple[int, ...]] = {embedding: (spec.vocab_size, spec.hidden_size)}
    shapes["model.norm.weight"] = (spec.hidden_size,)
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.hidden_size)
    return shapes


def outer_fields(
    spec: ModelSpec, tensor: Callable[[str], Tensor], embedding: str = "model.embed_tokens.weight"
) -> dict[str, Tensor]:
    """The fields of DecoderModel around its layers, from the tensors of `outer_shapes`."""
    embedded = tensor(embedding)
    return {
        "embedding": embedded,
        "final_norm": tensor("model.norm.weight"),
        "head": embedded if spec.tie_word_embeddings else tensor("lm_head.weight"),
        "rope_frequencies": layers.rope_frequencies(
            spec.rotary_dim, spec.rope_theta, embedded.device
        ),
    }


def repeated_qk_norm(spec: ModelSpec, q_norm: Tensor, k_norm: Tensor) -> Tensor:
    """`qk_norm` of QkNormWeights from the two norms [D]."""
    return torch.cat((q_norm.expand(spec.num_q_heads, -1), k_norm.expand(spec.num_kv_heads, -1)))
