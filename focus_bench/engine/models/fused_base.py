"""What layers for GPUs share: embedding, attention's outer half, and products that add in place.

Products are cuBLAS's, but for those of few rows, which are bound by reading the weights. The
references are the families' models; knows no feed-forward, no rows, no eviction and no attention.
"""

from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.engine.kernels.qk_norm_rope.launcher import KVStore, qk_norm_rope
from focus_bench.engine.kernels.rms_norm.launcher import rms_norm
from focus_bench.engine.kernels.skinny_linear.launcher import skinny_linear
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.models.qwen2 import Qwen2Model
from focus_bench.engine.models.sdar import SdarModel

# Up to here our product beats cuBLAS's on an H200, in all but the query, key and value product,
# where both take as long (laboratory log).
MAX_SKINNY_ROWS = 32

ModelT = TypeVar("ModelT", bound=SdarModel | Qwen2Model | MoeModel)


class FusedLayers(Generic[ModelT]):
    """A model over one cache; with `finish`, which a family adds, a LayerStack. Slots are int32,
    -1 writes nothing.
    """

    def __init__(self, model: ModelT, cache: PagedKVCache) -> None:
        self.num_layers = model.spec.num_layers
        self.cache = cache
        self._model = model
        # What differs: Qwen2.5 has biases where the others norm each head's query and key.
        self._qk_norm: list[Tensor] | None = None
        self._qkv_bias: list[Tensor] | None = None
        if isinstance(model, Qwen2Model):
            self._qkv_bias = [weights.qkv_bias for weights in model.layers]
        else:
            self._qk_norm = [weights.qk_norm for weights in model.layers]

    def embed(self, token_ids: Tensor) -> Tensor:
        """Hidden states [T, h] of int32 token ids [T]."""
        return self._model.embed(token_ids)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary cos and sin [T, rotary_dim] of absolute int32 positions [T]."""
        return self._model.rope(positions)

    def project(
        self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> Tensor:
        """Queries [T, Hq, D]; one kernel norms, rotates and writes keys and values."""
        weights, eps = self._model.layers[layer], self._model.spec.rms_eps
        normed = rms_norm(hidden, weights.input_norm, eps)
        return self.rotated(layer, self.qkv_product(layer, normed), cos, sin, slots)

    def after_attention(
        self, layer: int, hidden: Tensor, attention: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`hidden` [T, h], to which attention's projection is added; the feed-forward's input."""
        hidden = self.out_product(layer, hidden, attention)
        post_norm = self._model.layers[layer].post_norm
        return hidden, rms_norm(hidden, post_norm, self._model.spec.rms_eps)

    def qkv_product(self, layer: int, normed: Tensor) -> Tensor:
        """Queries, keys and values [T, (Hq + 2 Hkv) D] of normed states [T, h]."""
        bias = None if self._qkv_bias is None else self._qkv_bias[layer]
        return functional.linear(normed, self._model.layers[layer].qkv, bias)

    def rotated(self, layer: int, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> Tensor:
        """Queries [T, Hq, D] of `qkv_product`, normed (but Qwen2.5's) and rotated; keys and values
        are written.
        """
        spec = self._model.spec
        keys, values = self.cache.layer(layer)
        return qk_norm_rope(
            qkv,
            None if self._qk_norm is None else self._qk_norm[layer],
            cos,
            sin,
            spec.rms_eps,
            KVStore(keys=keys, values=values, slots=slots),
            num_q_heads=spec.num_q_heads,
        )

    def out_product(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """`hidden` [T, h], to which the output projection of attention [T, Hq D] is added."""
        return add_product(hidden, attention, self._model.layers[layer].out)

    def normed(self, hidden: Tensor) -> Tensor:
        """The last layer's output [R, h] after the final norm."""
        return rms_norm(hidden, self._model.final_norm, self._model.spec.rms_eps)

    @property
    def head(self) -> Tensor:
        """The output embedding [vocab_size, h]."""
        return self._model.head


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Rows x [T, K] times `weight` [N, K] transposed."""
    return skinny_linear(x, weight) if _is_skinny(x) else functional.linear(x, weight)


def add_product(total: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """`total` [T, N], to which `product` of x [T, K] and `weight` [N, K] is added in place."""
    if _is_skinny(x):
        return skinny_linear(x, weight, residual=total, out=total)
    return total.addmm_(x, weight.t())


def _is_skinny(x: Tensor) -> bool:
    return len(x) <= MAX_SKINNY_ROWS and x.dtype is not torch.float32
