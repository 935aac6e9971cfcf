"""Dense layers for GPUs: products between Triton kernels, residuals added by the products.

The references are sdar.py and qwen2.py; knows no rows, no eviction and no attention.
"""

from torch import Tensor

from focus_bench.engine.kernels.silu_mul.launcher import silu_mul
from focus_bench.engine.models.fused_base import FusedLayers, add_product, product
from focus_bench.engine.models.qwen2 import Qwen2Model
from focus_bench.engine.models.sdar import SdarModel


class FusedDenseLayers(FusedLayers[SdarModel | Qwen2Model]):
    """A model of SDAR's or Fast-dLLM v2's family over one cache; implements LayerStack."""

    def finish(
        self, layer: int, hidden: Tensor, attention: Tensor, slots: Tensor | None = None
    ) -> Tensor:
        """The layer's output, in place of its input: each product adds to the residual itself."""
        hidden, normed = self.after_attention(layer, hidden, attention)
        return self.down_product(layer, hidden, silu_mul(self.gate_up_product(layer, normed)))

    def gate_up_product(self, layer: int, normed: Tensor) -> Tensor:
        """Gate and up [T, 2 d_ff] of normed states [T, h]."""
        return product(normed, self._model.layers[layer].gate_up)

    def down_product(self, layer: int, hidden: Tensor, gated: Tensor) -> Tensor:
        """`hidden` [T, h], to which the down product of gated activations [T, d_ff] is added."""
        return add_product(hidden, gated, self._model.layers[layer].down)
