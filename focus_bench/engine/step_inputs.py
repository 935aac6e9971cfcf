"""What a decode step on a GPU is told by the host: one pinned buffer, one copy, fixed addresses.

Kernels and captured graphs read the device's views; knows no model and takes no decision.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from focus_bench.core.token_buckets import token_bucket
from focus_bench.decoding.block_state import (
    BoolArray,
    FloatArray,
    IntArray,
    row_index,
    rows_of,
)
from focus_bench.decoding.eviction import Eviction
from focus_bench.decoding.head_rows import head_rows
from focus_bench.decoding.masks import count_true
from focus_bench.engine.kernels.selection.launcher import ACTIVE, FIXED, RIGHTMOST
from focus_bench.scheduling.plan import Plan

_ALIGNMENT = 256  # bytes: any vector load of a section's start is aligned


@dataclass(frozen=True, kw_only=True)
class HostInputs:
    """The host's side; T = rows * B token places, of which the step's first ones are used, and more
    up to the bucket that holds them all.

    What the first layers need comes first: per token, in fed order, `token_ids`, `positions`
    (absolute) and `slots`; `cu_fed[rows + 1]`, `first_keys[rows]` (what layer 0 attends to) and
    `page_table[rows, W]`. Then the rest.

    Per masked token of an evicting row: `masked_token` (its index among the fed), `masked_slot`,
    `masked_column` (position in the block), bounds `cu_masked[rows + 1]`. Per row: `block_start`,
    `progress` before the step, `budget`, `flags` (of the selection kernel), `later_keys` (what the
    layers behind the first attend to where the host decides), `given_num_kept`, `given_num_head`.
    `head_rows`: rows of the last layer's output whose logits are needed. Masks uint8 [rows, B]:
    `fed`, `decodable`, `given_kept`. `delta` float32 [rows, B]: synthetic importance.
    """

    token_ids: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    cu_fed: npt.NDArray[np.int32]
    first_keys: npt.NDArray[np.int32]
    page_table: npt.NDArray[np.int32]
    masked_token: npt.NDArray[np.int32]
    masked_slot: npt.NDArray[np.int32]
    masked_column: npt.NDArray[np.int32]
    cu_masked: npt.NDArray[np.int32]
    block_start: npt.NDArray[np.int32]
    progress: npt.NDArray[np.int32]
    budget: npt.NDArray[np.int32]
    flags: npt.NDArray[np.int32]
    later_keys: npt.NDArray[np.int32]
    given_num_kept: npt.NDArray[np.int32]
    given_num_head: npt.NDArray[np.int32]
    head_rows: npt.NDArray[np.int32]
    fed: npt.NDArray[np.uint8]
    decodable: npt.NDArray[np.uint8]
    given_kept: npt.NDArray[np.uint8]
    delta: npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class DeviceInputs:
    """The device's side of HostInputs, field by field."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    cu_fed: Tensor
    first_keys: Tensor
    page_table: Tensor
    masked_token: Tensor
    masked_slot: Tensor
    masked_column: Tensor
    cu_masked: Tensor
    block_start: Tensor
    progress: Tensor
    budget: Tensor
    flags: Tensor
    later_keys: Tensor
    given_num_kept: Tensor
    given_num_head: Tensor
    head_rows: Tensor
    fed: Tensor
    decodable: Tensor
    given_kept: Tensor
    delta: Tensor


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """Host-known sizes of a step: `num_rows` n, `num_fed` tokens, `num_head` decodable ones."""

    num_rows: int
    num_fed: int
    num_head: int


class StepInputs:
    """Buffers for steps of at most `max_rows` rows whose page tables are `table_width` wide."""

    def __init__(
        self, *, max_rows: int, block_length: int, table_width: int, device: torch.device
    ) -> None:
        self.max_rows = max_rows
        self.block_length = block_length
        self.table_width = table_width
        layout = _layout(max_rows, block_length, table_width)
        names = [field.name for field in fields(HostInputs)]
        self._first_bytes = layout[names.index(_LAST_OF_FIRST) + 1][0]
        size = max(offset + dtype.itemsize * _count(shape) for offset, shape, dtype in layout)
        pinned = device.type == "cuda"
        self._host_bytes = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        self._device_bytes = torch.zeros(size, dtype=torch.uint8, device=device)
        raw = self._host_bytes.numpy()
        host, on_device = {}, {}
        for name, (offset, shape, dtype) in zip(names, layout, strict=True):
            end = offset + dtype.itemsize * _count(shape)
            host[name] = raw[offset:end].view(dtype).reshape(shape)
            view = self._device_bytes[offset:end].view(_TORCH_DTYPES[dtype.name])
            on_device[name] = view.view(shape)
        self.host = HostInputs(**host)
        self.device = DeviceInputs(**on_device)
        self.clear()

    def clear(self) -> None:
        """Inputs of a step without rows: nothing is written, nothing attended to."""
        self._host_bytes.zero_()
        self.host.slots[:] = -1
        self.upload_first()
        self.upload_rest()

    def upload_first(self) -> None:
        """Copy what the first layers need, asynchronously; the host's side of it must not change
        before the step ends.
        """
        part = slice(0, self._first_bytes)
        self._device_bytes[part].copy_(self._host_bytes[part], non_blocking=True)

    def upload_rest(self) -> None:
        """Copy the rest, likewise."""
        part = slice(self._first_bytes, None)
        self._device_bytes[part].copy_(self._host_bytes[part], non_blocking=True)

    def fill(self, plan: Plan, *, mask_token_id: int, page_size: int) -> StepSize:
        """Describe the plan's decode rows for the first layers."""
        host, block, feed = self.host, plan.block, plan.feed
        num_rows = block.num_rows
        tables = rows_of(plan.page_table, row_index(plan.rows))
        num_fed = int(feed.num_fed.sum())
        fed = np.flatnonzero(feed.positions) if num_fed < feed.positions.size else None
        start = block.block_start.astype(np.int32)
        positions = start[:, None] + np.arange(self.block_length, dtype=np.int32)
        tokens = np.where(block.decoded, block.tokens, np.int32(mask_token_id))
        slots = self._slots(start, tables, page_size)
        for target, of_block in (
            (host.token_ids, tokens),
            (host.positions, positions),
            (host.slots, slots),
        ):
            if fed is None:
                target[:num_fed] = of_block.reshape(-1)
            else:
                of_block.reshape(-1).take(fed, out=target[:num_fed], mode="clip")  # "raise" copies
        host.slots[num_fed:] = -1
        _bounds(host.cu_fed, feed.num_fed)
        host.first_keys[:num_rows] = block.block_start + block.block_length
        host.page_table[:num_rows, : tables.shape[1]] = tables
        num_head = int(feed.num_decodable.sum())
        return StepSize(num_rows=num_rows, num_fed=num_fed, num_head=num_head)

    def _slots(
        self, start: npt.NDArray[np.int32], tables: npt.NDArray[np.int32], page_size: int
    ) -> npt.NDArray[np.int32]:
        """Cache slots [n, B] of the blocks' positions, from their pages: part by part, as no part
        of gcd(B, page size) positions lies in two pages.
        """
        part = math.gcd(self.block_length, page_size)
        first = start[:, None] + np.arange(0, self.block_length, part, dtype=np.int32)
        page = np.floor_divide(first, page_size, dtype=np.int32)
        row = np.arange(0, tables.size, tables.shape[1])
        slots = tables.take(row[:, None] + page) * page_size + (first - page * page_size)
        of_part = slots[:, :, None] + np.arange(part, dtype=np.int32)
        return np.asarray(of_part.reshape(len(start), self.block_length))

    def fill_masks(self, plan: Plan) -> None:
        """What selection and compaction read of every row."""
        host, block, feed = self.host, plan.block, plan.feed
        num_rows = block.num_rows
        host.block_start[:num_rows] = block.block_start
        host.progress[:num_rows] = block.progress
        for mask, value in ((host.fed, feed.positions), (host.decodable, feed.decodable)):
            mask[:num_rows] = value
            mask[num_rows:] = 0

    def fill_importance(self, plan: Plan, evicting: BoolArray) -> None:
        """Which masked tokens the importance kernels rank (`evicting[n]` rows')."""
        host, feed = self.host, plan.feed
        ranked = feed.decodable & evicting[:, None]
        of_fed = ranked[feed.positions]
        token = np.flatnonzero(of_fed)
        host.masked_token[: len(token)] = token
        host.masked_slot[: len(token)] = host.slots[: len(of_fed)][of_fed]
        host.masked_column[: len(token)] = np.nonzero(ranked)[1]
        _bounds(host.cu_masked, np.where(evicting, feed.num_decodable, 0))

    def fill_budget(
        self, evicting: BoolArray, budget: IntArray, *, fixed: BoolArray, rightmost: BoolArray
    ) -> None:
        """How many masked positions each row [n] keeps at least, and by which rule."""
        host, num_rows = self.host, len(evicting)
        host.budget[:num_rows] = budget
        host.flags[:num_rows] = evicting * ACTIVE + fixed * FIXED + rightmost * RIGHTMOST
        host.flags[num_rows:] = 0

    def fill_delta(self, delta: FloatArray) -> None:
        """Synthetic importance deltas [n, B]."""
        self.host.delta[: len(delta)] = delta

    def fill_given(self, plan: Plan, eviction: Eviction, attended: IntArray) -> StepSize:
        """What the host decided to keep; returns the sizes with kept tokens in place of fed ones.

        `attended[n]`: the last block position that the layers behind the first attend to.
        """
        host, kept = self.host, eviction.kept
        num_rows = len(kept)
        candidates = kept & plan.feed.decodable
        needed = head_rows(plan.feed, kept, shifted=plan.shifted_logits).index
        host.given_kept[:num_rows] = kept
        host.given_kept[num_rows:] = 0
        host.given_num_kept[:num_rows] = count_true(kept)
        host.given_num_kept[num_rows:] = 0
        host.given_num_head[:num_rows] = count_true(candidates)
        host.given_num_head[num_rows:] = 0
        host.later_keys[:num_rows] = plan.block.block_start + attended + 1
        host.head_rows[: len(needed)] = needed
        return StepSize(
            num_rows=num_rows, num_fed=int(np.count_nonzero(kept)), num_head=len(needed)
        )


_LAST_OF_FIRST = "page_table"  # the field behind which the rest begins
_TORCH_DTYPES = {"int32": torch.int32, "uint8": torch.uint8, "float32": torch.float32}
_Shape = tuple[int, ...]


def _layout(
    rows: int, block_length: int, width: int
) -> list[tuple[int, _Shape, "np.dtype[np.generic]"]]:
    """Offset in bytes, shape and dtype of each field of HostInputs, in order."""
    tokens, bounds = (token_bucket(rows * block_length),), (rows + 1,)
    row, mask = (rows,), (rows, block_length)
    shapes: dict[str, tuple[_Shape, type[np.generic]]] = {
        name: (tokens, np.int32)
        for name in (
            "token_ids",
            "positions",
            "slots",
            "masked_token",
            "masked_slot",
            "masked_column",
            "head_rows",
        )
    }
    shapes |= {name: (bounds, np.int32) for name in ("cu_fed", "cu_masked")}
    shapes |= {name: (mask, np.uint8) for name in ("fed", "decodable", "given_kept")}
    shapes |= {"delta": (mask, np.float32), "page_table": ((rows, width), np.int32)}
    layout = []
    offset = 0
    for field in fields(HostInputs):
        shape, kind = shapes.get(field.name, (row, np.int32))
        dtype = np.dtype(kind)
        layout.append((offset, shape, dtype))
        offset += -(-dtype.itemsize * _count(shape) // _ALIGNMENT) * _ALIGNMENT
    return layout


def _count(shape: _Shape) -> int:
    return int(np.prod(shape))


def _bounds(out: npt.NDArray[np.int32], counts: IntArray) -> None:
    """Exclusive prefix sums of the rows' counts; rows that are not there are empty."""
    num_rows = len(counts)
    np.cumsum(counts, out=out[1 : num_rows + 1])
    out[num_rows + 1 :] = out[num_rows]
