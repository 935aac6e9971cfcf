"""Dense layers for GPUs: products between Triton kernels, residuals added by the products.

Products are cuBLAS's, but for those of few rows, which are bound by reading the weights. The
references are sdar.py and qwen2.py; knows no rows, no eviction and no attention.
"""

import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.engine.kernels.qk_norm_rope.launcher import KVStore, qk_norm_rope
from focus_bench.engine.kernels.rms_norm.launcher import rms_norm
from focus_bench.engine.kernels.silu_mul.launcher import silu_mul
from focus_bench.engine.kernels.skinny_linear.launcher import skinny_linear
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.qwen2 import Qwen2Model
from focus_bench.engine.models.sdar import SdarModel

# Up to here our product beats cuBLAS's on an H200, in all but the query, key and value product,
# where both take as long (laboratory log).
MAX_SKINNY_ROWS = 32


class FusedDenseLayers:
    """A model of SDAR's or Fast-dLLM v2's family over one cache; implements LayerStack. Slots are
    int32, -1 writes nothing.
    """

    def __init__(self, model: SdarModel | Qwen2Model, cache: PagedKVCache) -> None:
        self.num_layers = model.spec.num_layers
        self.cache = cache
        self._model = model
        # Transposed views: addmm's second operand.
        self._out = [weights.out.t() for weights in model.layers]
        self._down = [weights.down.t() for weights in model.layers]
        # What differs: SDAR norms each head's query and key, Qwen2.5 has biases instead.
        self._qk_norm: list[Tensor] | None = None
        self._qkv_bias: list[Tensor] | None = None
        if isinstance(model, SdarModel):
            self._qk_norm = [weights.qk_norm for weights in model.layers]
        else:
            self._qkv_bias = [weights.qkv_bias for weights in model.layers]

    def embed(self, token_ids: Tensor) -> Tensor:
        """Hidden states [T, h] of int32 token ids [T]."""
        return self._model.embed(token_ids)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary cos and sin [T, D] of absolute int32 positions [T]."""
        return self._model.rope(positions)

    def project(
        self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> Tensor:
        """Queries [T, Hq, D]; one kernel norms, rotates and writes keys and values."""
        weights, eps = self._model.layers[layer], self._model.spec.rms_eps
        normed = rms_norm(hidden, weights.input_norm, eps)
        return self.rotated(layer, self.qkv_product(layer, normed), cos, sin, slots)

    def finish(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """The layer's output, in place of its input: each product adds to the residual itself."""
        weights, eps = self._model.layers[layer], self._model.spec.rms_eps
        hidden = self.out_product(layer, hidden, attention)
        normed = rms_norm(hidden, weights.post_norm, eps)
        return self.down_product(layer, hidden, silu_mul(self.gate_up_product(layer, normed)))

    def qkv_product(self, layer: int, normed: Tensor) -> Tensor:
        """Queries, keys and values [T, (Hq + 2 Hkv) D] of normed states [T, h]."""
        bias = None if self._qkv_bias is None else self._qkv_bias[layer]
        return functional.linear(normed, self._model.layers[layer].qkv, bias)

    def rotated(self, layer: int, qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor) -> Tensor:
        """Queries [T, Hq, D] of `qkv_product`, normed (SDAR) and rotated; keys and values are
        written.
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
        if _is_skinny(hidden):
            weight = self._model.layers[layer].out
            return skinny_linear(attention, weight, residual=hidden, out=hidden)
        return hidden.addmm_(attention, self._out[layer])

    def gate_up_product(self, layer: int, normed: Tensor) -> Tensor:
        """Gate and up [T, 2 d_ff] of normed states [T, h]."""
        weight = self._model.layers[layer].gate_up
        if _is_skinny(normed):
            return skinny_linear(normed, weight)
        return functional.linear(normed, weight)

    def down_product(self, layer: int, hidden: Tensor, gated: Tensor) -> Tensor:
        """`hidden` [T, h], to which the down product of gated activations [T, d_ff] is added."""
        if _is_skinny(hidden):
            weight = self._model.layers[layer].down
            return skinny_linear(gated, weight, residual=hidden, out=hidden)
        return hidden.addmm_(gated, self._down[layer])

    def normed(self, hidden: Tensor) -> Tensor:
        """The last layer's output [R, h] after the final norm."""
        return rms_norm(hidden, self._model.final_norm, self._model.spec.rms_eps)

    @property
    def head(self) -> Tensor:
        """The output embedding [vocab_size, h]."""
        return self._model.head


def _is_skinny(states: Tensor) -> bool:
    return len(states) <= MAX_SKINNY_ROWS and states.dtype is not torch.float32
