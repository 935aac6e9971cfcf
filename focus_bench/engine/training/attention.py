"""Attention over packed rows: block-causal within each context, by SDPA or by FlexAttention.

A query sees, of its own context, the clean blocks before its block, and its own block (a clean
block is its own clean copy, a noised block itself alone). Knows slots, not documents.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.training.packing import CLEAN, PackedRows, SlotArray
from focus_bench.engine.training.recipe import TrainingRecipe
from focus_bench.engine.training.transfer import to_device

# FlexAttention skips whole tiles of this many tokens in which no pair is visible.
TILE_TOKENS = 128
# More blocks than a context can have; keeps the codes of a row's contexts apart.
_UNIT_STRIDE = 1 << 16


class RowAttention(Protocol):
    """Attention of q [T, Hq, D], k and v [T, Hkv, D] to the rows set last: [T, Hq * D]."""

    def set_rows(self, rows: PackedRows) -> None:
        """Say what the next calls attend over; an earlier call's backward pass must be done."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend."""


def visibility_codes(rows: PackedRows) -> tuple[SlotArray, SlotArray, SlotArray]:
    """(low, high, code), each int32 [R, S]: what slot s sees as one comparison of integers.

    Slot q sees slot k if ``low[q] <= code[k] < high[q]``, and itself. Codes grow with the block's
    place in its context, from one context of the row to the next; a noised or unused slot has -1.
    """
    low = rows.unit * _UNIT_STRIDE
    code = low + rows.index
    is_clean = rows.kind == CLEAN
    return (
        low.astype(np.int32),
        code.astype(np.int32),
        np.where(is_clean, code, -1).astype(np.int32),
    )


def visible_slots(codes: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Bool [R, S, S]: whether the slot of the second index sees that of the third."""
    low, high, code = (c[:, :, None] for c in codes)
    keys = code.transpose(1, 2)
    seen = (low <= keys) & (keys < high)
    return seen | torch.eye(seen.shape[1], dtype=torch.bool, device=seen.device)


class DenseRowAttention:
    """PyTorch's scaled_dot_product_attention with the whole mask [R, 1, L, L] in memory."""

    def __init__(self, recipe: TrainingRecipe, device: torch.device, dtype: torch.dtype) -> None:
        self._block_length = recipe.block_length
        self._device = device
        self._dtype = dtype
        self._bias = torch.zeros(0, device=device, dtype=dtype)

    def set_rows(self, rows: PackedRows) -> None:
        """Build the mask, added to the scores, once for all layers."""
        codes = visibility_codes(rows)
        low, high, code = (to_device(c, self._device) for c in codes)
        seen = visible_slots((low, high, code))
        bias = torch.zeros(seen.shape, device=self._device, dtype=self._dtype)
        bias.masked_fill_(~seen, -torch.inf)
        size = self._block_length
        self._bias = bias.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, None]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend; keys and values are repeated for the query heads that share them."""
        group = q.shape[1] // k.shape[1]
        rows, length = self._bias.shape[0], self._bias.shape[2]
        q, k, v = (x.view(rows, length, -1, x.shape[-1]).transpose(1, 2) for x in (q, k, v))
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=self._bias)
        return attended.transpose(1, 2).reshape(rows * length, -1)


class FlexRowAttention:
    """FlexAttention: no mask in memory, and tiles without a visible pair are skipped.

    Only worth it compiled (`is_compiled`); uncompiled it computes the same densely. The buffers of
    the mask stay where they are from step to step, so that nothing is compiled again.
    """

    def __init__(self, recipe: TrainingRecipe, device: torch.device, *, is_compiled: bool) -> None:
        if TILE_TOKENS % recipe.block_length or recipe.row_length % TILE_TOKENS:
            raise UsageError(
                "recipe row_length",
                recipe.row_length,
                f"multiples of {TILE_TOKENS}, itself one of block_length, for FlexAttention",
            )
        self._block_length = recipe.block_length
        shape = (recipe.rows_per_step, recipe.slots_per_row)
        low, high, code = (torch.zeros(shape, dtype=torch.int32, device=device) for _ in range(3))
        self._codes = (low, high, code)
        block_length = recipe.block_length

        def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            query_slot, key_slot = query // block_length, key // block_length
            key_code = code[row, key_slot]
            in_range = (low[row, query_slot] <= key_code) & (key_code < high[row, query_slot])
            return in_range | (query_slot == key_slot)

        self._sees = sees
        self._attend = (
            torch.compile(_flex_rows, dynamic=False, fullgraph=True) if is_compiled else _flex_rows
        )
        self._mask = self._block_mask()

    def set_rows(self, rows: PackedRows) -> None:
        """Overwrite the buffers and list the tiles with a visible pair."""
        for buffer, values in zip(self._codes, visibility_codes(rows), strict=True):
            buffer.copy_(to_device(values, buffer.device))
        self._mask = self._block_mask()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend."""
        return self._attend(q, k, v, self._mask, self._codes[0].shape[0])

    @property
    def block_mask(self) -> BlockMask:
        """The rows' mask (for tests)."""
        return self._mask

    def _block_mask(self) -> BlockMask:
        seen = visible_slots(self._codes)
        rows, slots, _ = seen.shape
        per_tile = TILE_TOKENS // self._block_length
        num_tiles = slots // per_tile
        tiles = seen.view(rows, num_tiles, per_tile, num_tiles, per_tile)
        is_full = tiles.all(dim=4).all(dim=2)
        is_partial = tiles.any(dim=4).any(dim=2) & ~is_full
        return BlockMask.from_kv_blocks(
            *_tile_lists(is_partial),
            *_tile_lists(is_full),
            BLOCK_SIZE=TILE_TOKENS,
            mask_mod=self._sees,
        )


def _tile_lists(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Number and indices of the true key tiles per query tile, with a head dimension of 1."""
    number = tiles.sum(dim=-1, dtype=torch.int32)
    order = torch.argsort((~tiles).to(torch.int8), dim=-1, stable=True).to(torch.int32)
    return number[:, None], order[:, None].contiguous()


def _flex_rows(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, rows: int) -> Tensor:
    length = q.shape[0] // rows
    q, k, v = (x.view(rows, length, -1, x.shape[-1]).transpose(1, 2) for x in (q, k, v))
    attended = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    assert isinstance(attended, Tensor)  # no log-sum-exp was asked for
    return attended.transpose(1, 2).reshape(rows * length, -1)


def check_heads(spec: ModelSpec) -> None:
    """FlexAttention's compiled kernels take head dimensions from 16 on."""
    if spec.head_dim < 16:
        raise UsageError("recipe head_dim", spec.head_dim, ">= 16 with FlexAttention")
