"""What measured operations of layers run on: random states, and layers that are taken in turn.

Knows a model's sizes; no curve, no point and no time.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from focus_bench.engine.models.base import BlockDiffusionModel

# Layers are taken in turn until their weights are this many times the L2 cache.
_L2_TIMES = 4


class MeasuredStates:
    """States and layers of one model on its device."""

    def __init__(self, model: BlockDiffusionModel) -> None:
        self._model = model
        self._l2_bytes = _l2_bytes(model.device)

    def rows(self, rows: int, width: int | None = None) -> Tensor:
        """Normal states [rows, width]; None: the hidden size."""
        size = (rows, width or self._model.spec.hidden_size)
        return torch.randn(size, device=self._model.device, dtype=self._model.dtype)

    def attention(self, rows: int) -> Tensor:
        """Normal states [rows, Hq D]."""
        return self.rows(rows, self._model.spec.q_size)

    def num_in_turn(self, weight_bytes: float) -> int:
        """Layers, at least 2, whose weights together do not fit into the L2 cache."""
        return max(2, math.ceil(_L2_TIMES * self._l2_bytes / weight_bytes))

    def in_turn(self, weights: Sequence[Tensor]) -> range:
        """The first layers, as many as read together what does not fit into the L2 cache, where
        each reads as much as `weights`; all of them if they are too few.
        """
        count = self.num_in_turn(sum(weight.nbytes for weight in weights))
        return range(min(self._model.spec.num_layers, count))


def _l2_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
