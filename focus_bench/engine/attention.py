"""Attention of ragged query rows over the paged cache, in plain PyTorch, sequence by sequence.

The reference of the attention kernel and the CPU's path. A mask is never needed: a query row
attends to a prefix of its sequence's key slots, so each product has exactly the size that counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from focus_bench.core.errors import UsageError
from focus_bench.engine.kv_cache import IntArray, PagedKVCache


class AttentionRows(Protocol):
    """Query rows of one forward and the cache slots that each of them attends to."""

    def attend(self, cache: PagedKVCache, layer: int, q: Tensor) -> Tensor:
        """Attention output [T, Hq * D] of queries [T, Hq, D] over one layer of the cache.

        Scores are scaled by D ** -0.5; the softmax is taken in float32. Query head h reads KV head
        h // group. Keys and values of the rows themselves must have been written before.
        """


@dataclass(frozen=True, kw_only=True)
class Band:
    """Query rows `start`:`stop` of the batch, all attending to the first `num_keys` keys."""

    start: int
    stop: int
    num_keys: int


@dataclass(frozen=True, kw_only=True)
class RaggedRows:
    """Which query rows attend to which cache slots, computed once per forward, on the host.

    `keys[s]` is sequence s's slice of the cache where its slots are one ascending range (no copy is
    needed then), else its slots as an int64 tensor on the device. `bands[s]` cut its query rows.
    """

    cu_seqlens_q: tuple[int, ...]
    keys: tuple[slice | Tensor, ...]
    bands: tuple[tuple[Band, ...], ...]

    @property
    def num_query_key_pairs(self) -> int:
        """Sum over query rows of the keys attended to: one layer costs 4 * Hq * D FLOPs each."""
        return sum((b.stop - b.start) * b.num_keys for bands in self.bands for b in bands)

    @classmethod
    def build(
        cls,
        num_queries: Sequence[int],
        key_slots: Sequence[IntArray],
        *,
        device: torch.device,
        block_length: int | None = None,
    ) -> "RaggedRows":
        """Rows of one forward.

        Sequence s has `num_queries[s]` query rows (0 is allowed) and attends to `key_slots[s]`
        (int64, in order of position). `block_length` None: every query to every key, as in decode
        steps. Otherwise block-causal, as in prefill: the queries are whole blocks, their keys are
        the last of the sequence's, and a block attends to everything up to its own end. Raises
        UsageError where sequences or blocks do not add up.
        """
        if len(num_queries) != len(key_slots):
            raise UsageError("key_slots", len(key_slots), f"{len(num_queries)} sequences")
        offsets, keys, bands = [0], [], []
        for queries, slots in zip(num_queries, key_slots, strict=True):
            start = offsets[-1]
            offsets.append(start + queries)
            bands.append(_bands(start, int(queries), len(slots), block_length))
            keys.append(_slice_or_slots(slots, device))
        return cls(cu_seqlens_q=tuple(offsets), keys=tuple(keys), bands=tuple(bands))

    def attend(self, cache: PagedKVCache, layer: int, q: Tensor) -> Tensor:
        """As AttentionRows says, with one product a sequence."""
        return paged_attention(cache, layer, q, self)


def _bands(start: int, queries: int, num_keys: int, block_length: int | None) -> tuple[Band, ...]:
    if queries == 0:
        return ()
    if block_length is None:
        if num_keys == 0:
            raise UsageError("key_slots", 0, "at least one key for a sequence with queries")
        return (Band(start=start, stop=start + queries, num_keys=num_keys),)
    if queries % block_length or queries > num_keys:
        raise UsageError(
            "num_queries", queries, f"multiples of {block_length} up to the {num_keys} keys"
        )
    history = num_keys - queries
    ends = range(block_length, queries + 1, block_length)
    return tuple(
        Band(start=start + end - block_length, stop=start + end, num_keys=history + end)
        for end in ends
    )


def _slice_or_slots(slots: IntArray, device: torch.device) -> slice | Tensor:
    if len(slots) == 0:
        return slice(0, 0)
    first = int(slots[0])
    if slots[-1] - first == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
        return slice(first, first + len(slots))
    return torch.from_numpy(np.ascontiguousarray(slots)).to(device)


def paged_attention(cache: PagedKVCache, layer: int, q: Tensor, rows: RaggedRows) -> Tensor:
    """Attention output [T, Hq * D] of q [T, Hq, D], as AttentionRows.attend says."""
    cache_keys, cache_values = cache.layer(layer)
    total, num_q_heads, head_dim = q.shape
    num_kv_heads = cache_keys.shape[1]
    group = num_q_heads // num_kv_heads
    # [Hkv, T, group, D]: any run of rows is one [Hkv, rows * group, D] operand without a copy.
    grouped = q.reshape(total, num_kv_heads, group, head_dim).transpose(0, 1).contiguous()
    output = torch.empty_like(grouped)
    ignored = grouped.new_zeros((1, 1, 1))
    scale = head_dim**-0.5
    for sequence_keys, bands in zip(rows.keys, rows.bands, strict=True):
        if not bands:
            continue
        if isinstance(sequence_keys, slice):
            keys, values = cache_keys[sequence_keys], cache_values[sequence_keys]
        else:
            keys, values = cache.gather(layer, sequence_keys)
        keys, values = keys.permute(1, 2, 0), values.transpose(0, 1)
        for band in bands:
            queries = grouped[:, band.start : band.stop].flatten(1, 2)
            scores = torch.baddbmm(
                ignored, queries, keys[:, :, : band.num_keys], beta=0, alpha=scale
            )
            weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
            attended = torch.bmm(weights, values[:, : band.num_keys])
            output[:, band.start : band.stop] = attended.view(
                num_kv_heads, band.stop - band.start, group, head_dim
            )
    return output.transpose(0, 1).reshape(total, num_q_heads * head_dim)
