"""Buffers of the unmasking head and the width of its chunks; knows no kernel."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

SUB_CHUNK = 4096  # ids of one program; its logits fit in the registers of eight warps


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """What the head computes.

    `mask_token_id` and ids from `num_valid_ids` on (vocabulary padding) are never drawn.
    `temperature` 0 is greedy. One chunk of logits takes at most `max_chunk_bytes`, or one sub-chunk
    of every row if that is more.
    """

    mask_token_id: int
    num_valid_ids: int
    temperature: float = 0.0
    max_chunk_bytes: int = 1 << 28

    @property
    def num_subs(self) -> int:
        """Sub-chunks that hold a valid id."""
        return -(-self.num_valid_ids // SUB_CHUNK)

    def chunk_subs(self, num_rows: int, element_bytes: int) -> int:
        """Sub-chunks of one chunk of `num_rows` rows of logits."""
        fitting = self.max_chunk_bytes // (num_rows * element_bytes * SUB_CHUNK)
        return min(max(1, fitting), self.num_subs)


@dataclass(frozen=True, kw_only=True)
class HeadWorkspace:
    """Reused memory for up to `max_rows` rows; its contents mean nothing between calls.

    `logits` is one chunk, flat. Per row and sub-chunk, flat: the largest logit, its id and the sum
    of exponentials relative to it. Per row: the sub-chunk drawn, where in its mass (0 to 1), the
    largest logit and the sum relative to that.
    """

    logits: Tensor
    maxima: Tensor
    ids: Tensor
    sums: Tensor
    chosen: Tensor
    fraction: Tensor
    row_max: Tensor
    row_sum: Tensor

    @classmethod
    def allocate(cls, max_rows: int, weight: Tensor, config: HeadConfig) -> Self:
        """Buffers on the device and with the dtype of `weight`, for up to `max_rows` rows."""
        element_bytes = weight.element_size()
        # Fewer rows get wider chunks, but never more elements than this.
        most = max(config.max_chunk_bytes // element_bytes, max_rows * SUB_CHUNK)
        whole = max_rows * config.num_subs * SUB_CHUNK
        partials = max_rows * config.num_subs

        def buffer(size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, device=weight.device, dtype=dtype)

        return cls(
            logits=buffer(min(most, whole), weight.dtype),
            maxima=buffer(partials, torch.float32),
            ids=buffer(partials, torch.int32),
            sums=buffer(partials, torch.float32),
            chosen=buffer(max_rows, torch.int32),
            fraction=buffer(max_rows, torch.float64),
            row_max=buffer(max_rows, torch.float32),
            row_sum=buffer(max_rows, torch.float32),
        )

    def check(self, num_rows: int, weight: Tensor, config: HeadConfig) -> None:
        """ValueError unless `num_rows` rows of this head fit."""
        max_rows = self.chosen.numel()
        elements = num_rows * config.chunk_subs(num_rows, weight.element_size()) * SUB_CHUNK
        if (
            num_rows > max_rows
            or self.maxima.numel() < num_rows * config.num_subs
            or self.logits.numel() < elements
        ):
            raise ValueError(f"workspace for {max_rows} rows is too small for {num_rows} rows")
        if self.logits.dtype != weight.dtype or self.logits.device != weight.device:
            raise ValueError(f"workspace must be {weight.dtype} on {weight.device}")
