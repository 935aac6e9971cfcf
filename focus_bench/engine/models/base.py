"""What the forward pass needs of a model family; knows no cache, no batch and no eviction."""

from typing import Protocol

import torch
from torch import Tensor

from focus_bench.core.model_spec import ModelSpec


class BlockDiffusionModel(Protocol):
    """One model's weights and the pieces of its forward pass, over T token rows in any order.

    Attention itself lies between `project` and `finish` and belongs to the caller, who therefore
    can leave rows out between any two calls. Hidden states are [T, hidden_size] in `dtype`.
    """

    @property
    def spec(self) -> ModelSpec:
        """Dimensions; ``spec.dtype`` names `dtype`."""

    @property
    def device(self) -> torch.device:
        """Where the weights lie; every argument must lie there too."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of the hidden states."""

    def embed(self, token_ids: Tensor) -> Tensor:
        """Hidden states [T, hidden_size] of int64 token ids [T]."""

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary cos and sin, each [T, rotary_dim] in `dtype`, of absolute int64 positions [T].

        `rotary_dim` is head_dim, or less where only a head's first channels are rotated. Computed
        once per forward; rows are per token and may be left out or reordered with them.
        """

    def project(
        self, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query [T, Hq, D], key [T, Hkv, D] and value [T, Hkv, D], ready for cache and attention.

        The last dimension is contiguous; the others may be strided.
        """

    def finish(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """The layer's output [T, hidden_size], given its input and its attention [T, Hq * D]."""

    @property
    def head(self) -> Tensor:
        """The output embedding [vocab_size, hidden_size]: logits are normed @ head.T."""

    def normed(self, hidden: Tensor) -> Tensor:
        """The last layer's output [R, hidden_size] after the final norm."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [R, vocab_size] of the last layer's output at R rows."""
