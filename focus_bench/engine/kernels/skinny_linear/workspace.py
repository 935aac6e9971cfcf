"""Memory in which programs of one tile meet: partial products and arrival counters."""

import functools
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

_NUM_PARTIALS = 1 << 23  # 1,024 programs with tiles of 128 x 64
_NUM_TILES = 1 << 12


@dataclass(frozen=True, kw_only=True)
class SplitWorkspace:
    """Reused memory of split products; launches that share it must not run at the same time.

    `partials` float32, flat, mean nothing between launches. `counters` int32, one per tile, are 0
    between launches.
    """

    partials: Tensor
    counters: Tensor

    @classmethod
    def allocate(
        cls,
        device: torch.device,
        *,
        num_partials: int = _NUM_PARTIALS,
        num_tiles: int = _NUM_TILES,
    ) -> Self:
        """Room for `num_partials` floats of `num_tiles` tiles; not within a graph's capture."""
        # The capture would record the zeros, and a launch before the first replay would not see
        # them.
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a split workspace must be allocated before a graph is captured")
        return cls(
            partials=torch.empty(num_partials, device=device, dtype=torch.float32),
            counters=torch.zeros(num_tiles, device=device, dtype=torch.int32),
        )

    def check(self, num_partials: int, num_tiles: int, device: torch.device) -> None:
        """ValueError unless a launch with these numbers fits and the memory is on `device`."""
        for name, tensor, needed, dtype in (
            ("partials", self.partials, num_partials, torch.float32),
            ("counters", self.counters, num_tiles, torch.int32),
        ):
            if tensor.dtype != dtype or tensor.device != device or not tensor.is_contiguous():
                raise ValueError(f"workspace.{name} must be contiguous {dtype} on {device}")
            if tensor.numel() < needed:
                raise ValueError(f"workspace.{name} has {tensor.numel()} places; needed {needed}")


@functools.cache
def shared_workspace(device: torch.device) -> SplitWorkspace:
    """The device's workspace for launches on one stream.

    Its size never changes, so that captured graphs may keep its addresses.
    """
    return SplitWorkspace.allocate(device)
