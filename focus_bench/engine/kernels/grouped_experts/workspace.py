"""Memory between the launches of the experts: the sort, and the rows of both products."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from focus_bench.engine.kernels.expert_routing.launcher import SortedPairs, max_tiles
from focus_bench.engine.kernels.grouped_experts.tuning import MIN_BLOCK_M


@dataclass(frozen=True, kw_only=True)
class ExpertWorkspace:
    """Flat memory for up to so many pairs; launches that share it must not run at the same time.

    Nothing in it means anything between calls. int32 and named as in SortedPairs: `pairs`,
    `offsets`, `tiles`, `num_tiles` and `counts`. `activations`: rows of width F. `partials`: rows
    of width h, in the dtype to which an expert's output is rounded before the sum over the
    choices; float32 rounds nothing there, and moves twice the bytes.
    """

    pairs: Tensor
    offsets: Tensor
    tiles: Tensor
    num_tiles: Tensor
    counts: Tensor
    activations: Tensor
    partials: Tensor

    @classmethod
    def allocate(
        cls,
        *,
        num_pairs: int,
        num_experts: int,
        expert_width: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        partial_dtype: torch.dtype | None = None,
    ) -> Self:
        """Room for `num_pairs` = T * top_k pairs; `partial_dtype` is `dtype` by default."""

        def room(size: int, kind: torch.dtype) -> Tensor:
            return torch.empty(size, device=device, dtype=kind)

        return cls(
            pairs=room(num_pairs, torch.int32),
            offsets=room(num_experts + 1, torch.int32),
            tiles=room(3 * max_tiles(num_pairs, num_experts, MIN_BLOCK_M), torch.int32),
            num_tiles=room(1, torch.int32),
            counts=room(num_experts, torch.int32),
            activations=room(num_pairs * expert_width, dtype),
            partials=room(num_pairs * hidden_size, partial_dtype or dtype),
        )

    def check(
        self,
        *,
        num_pairs: int,
        num_experts: int,
        expert_width: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """ValueError unless a call with these numbers fits."""
        for name, tensor, needed, dtypes in (
            ("pairs", self.pairs, num_pairs, (torch.int32,)),
            ("offsets", self.offsets, num_experts + 1, (torch.int32,)),
            (
                "tiles",
                self.tiles,
                3 * max_tiles(num_pairs, num_experts, MIN_BLOCK_M),
                (torch.int32,),
            ),
            ("num_tiles", self.num_tiles, 1, (torch.int32,)),
            ("counts", self.counts, num_experts, (torch.int32,)),
            ("activations", self.activations, num_pairs * expert_width, (dtype,)),
            ("partials", self.partials, num_pairs * hidden_size, (dtype, torch.float32)),
        ):
            if tensor.dtype not in dtypes or tensor.device != device or tensor.ndim != 1:
                raise ValueError(f"workspace.{name} must be flat {dtypes[-1]} on {device}")
            if tensor.numel() < needed or not tensor.is_contiguous():
                raise ValueError(f"workspace.{name} has {tensor.numel()} places; needed {needed}")

    def sort(self, num_pairs: int, num_experts: int, block_m: int) -> SortedPairs:
        """The memory of one call's sort."""
        tiles = max_tiles(num_pairs, num_experts, block_m)
        return SortedPairs(
            pairs=self.pairs[:num_pairs],
            offsets=self.offsets[: num_experts + 1],
            tiles=self.tiles[: 3 * tiles].view(3, tiles),
            num_tiles=self.num_tiles[:1],
            counts=self.counts[:num_experts],
            block_m=block_m,
        )
