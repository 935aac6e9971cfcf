"""A model's layers over one cache: what lies before and behind attention, K/V written on the way.

Knows no rows and no eviction. PlainLayers is the reference, in PyTorch; a model family's fused form
for GPUs stands beside the family in models/.
"""

from typing import Protocol

from torch import Tensor

from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.base import BlockDiffusionModel


class LayerStack(Protocol):
    """One model over one cache, T token rows at a time; hidden states are [T, hidden_size]."""

    @property
    def num_layers(self) -> int:
        """Layers of the model."""

    @property
    def cache(self) -> PagedKVCache:
        """Where keys and values go, and where attention reads them."""

    def embed(self, token_ids: Tensor) -> Tensor:
        """Hidden states of integer token ids [T]."""

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary cos and sin [T, rotary_dim] of absolute integer positions [T]."""

    def project(
        self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> Tensor:
        """Queries [T, Hq, D]; writes the rows' keys and values into `slots` [T] of the layer."""

    def finish(
        self, layer: int, hidden: Tensor, attention: Tensor, slots: Tensor | None = None
    ) -> Tensor:
        """The layer's output, given its input (may be overwritten) and attention [T, Hq D].

        Rows whose slot is -1 pad a graph's bucket: what they give means nothing, and they need not
        cost anything. `slots` None: there are none such.
        """

    def normed(self, hidden: Tensor) -> Tensor:
        """The last layer's output [R, h] after the final norm."""

    @property
    def head(self) -> Tensor:
        """The output embedding [vocab_size, h]: logits are normed @ head.T."""


class PlainLayers:
    """The layers in plain PyTorch; slots are int64."""

    def __init__(self, model: BlockDiffusionModel, cache: PagedKVCache) -> None:
        self.num_layers = model.spec.num_layers
        self.cache = cache
        self.embed = model.embed
        self.rope = model.rope
        self._model = model

    def project(
        self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor, slots: Tensor
    ) -> Tensor:
        """Queries [T, Hq, D]; keys and values are written by index_copy_."""
        q, k, v = self._model.project(layer, hidden, cos, sin)
        self.cache.write(layer, slots, k, v)
        return q

    def finish(
        self, layer: int, hidden: Tensor, attention: Tensor, slots: Tensor | None = None
    ) -> Tensor:
        """The model's own."""
        return self._model.finish(layer, hidden, attention)

    def normed(self, hidden: Tensor) -> Tensor:
        """The model's final norm."""
        return self._model.normed(hidden)

    @property
    def head(self) -> Tensor:
        """The model's output embedding."""
        return self._model.head
