"""Attention of many ragged rows in a few padded products, for devices where launches cost most.

Computes what attention.py computes sequence by sequence: there a step of 256 sequences takes more
than a thousand small products a layer, here three. Knows cache slots and rows, no sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from focus_bench.engine.kv_cache import IntArray, PagedKVCache

# Padded query-key pairs of one product: with 32 query heads its scores and weights take 1 GB.
MAX_PAIRS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class PaddedRows:
    """S runs of query rows, padded to Q rows and K keys each.

    `query_rows` int64 [S * Q]: rows of the batch, the run's first one where padded. `key_slots`
    int64 [S * K]: cache slots, the run's first one where padded (always written, never NaN).
    `bias` float32 [S, 1, K]: -inf where padded. `rows` int64 [t]: the batch's rows in the runs;
    `places` int64 [t]: where among S * Q each of them stands.
    """

    num_runs: int
    query_rows: Tensor
    key_slots: Tensor
    bias: Tensor
    rows: Tensor
    places: Tensor

    @classmethod
    def build(
        cls, runs: Sequence[tuple[int, int, IntArray]], *, device: torch.device
    ) -> tuple["PaddedRows", ...]:
        """Chunks of at most MAX_PAIRS pairs, or of one run; a run is (first row, row behind the
        last, slots of its keys), with at least one row and one key.
        """
        chunks, chunk = [], list[tuple[int, int, IntArray]]()
        queries = keys = 0
        for run in runs:
            wider = max(queries, run[1] - run[0]), max(keys, len(run[2]))
            if chunk and (len(chunk) + 1) * wider[0] * wider[1] > MAX_PAIRS:
                chunks.append(cls._pad(chunk, device))
                chunk, wider = [], (run[1] - run[0], len(run[2]))
            chunk.append(run)
            queries, keys = wider
        return (*chunks, cls._pad(chunk, device)) if chunk else ()

    @classmethod
    def _pad(cls, runs: Sequence[tuple[int, int, IntArray]], device: torch.device) -> "PaddedRows":
        starts = np.array([start for start, _, _ in runs], dtype=np.int64)
        lengths = np.array([stop for _, stop, _ in runs], dtype=np.int64) - starts
        num_keys = np.array([len(slots) for _, _, slots in runs], dtype=np.int64)
        place, column = np.arange(lengths.max()), np.arange(num_keys.max())
        is_query = place < lengths[:, None]
        is_key = column < num_keys[:, None]
        query_rows = starts[:, None] + np.where(is_query, place, 0)
        key_slots = np.repeat(np.array([[slots[0]] for _, _, slots in runs]), len(column), axis=1)
        key_slots[is_key] = np.concatenate([slots for _, _, slots in runs])
        bias = np.where(is_key, 0.0, -np.inf).astype(np.float32)

        def to_device(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        return cls(
            num_runs=len(runs),
            query_rows=to_device(query_rows.reshape(-1)),
            key_slots=to_device(key_slots.reshape(-1)),
            bias=to_device(bias[:, None, :]),
            rows=to_device(query_rows[is_query]),
            places=to_device(np.flatnonzero(is_query)),
        )


def padded_attention(
    cache: PagedKVCache, layer: int, q: Tensor, chunks: Sequence[PaddedRows]
) -> Tensor:
    """Attention output [T, Hq * D] of q [T, Hq, D]; scaling, dtypes and head groups as in
    paged_attention. Rows of no run stay 0.
    """
    cache_keys, cache_values = cache.layer(layer)
    total, num_q_heads, head_dim = q.shape
    num_kv_heads = cache_keys.shape[1]
    group = num_q_heads // num_kv_heads
    output = q.new_zeros((total, num_q_heads * head_dim))
    for chunk in chunks:
        runs = chunk.num_runs
        queries = (
            q.index_select(0, chunk.query_rows)
            .view(runs, -1, num_kv_heads, group, head_dim)
            .permute(0, 2, 1, 3, 4)
            .reshape(runs * num_kv_heads, -1, head_dim)
        )
        shape = (runs, -1, num_kv_heads, head_dim)
        keys = cache_keys.index_select(0, chunk.key_slots).view(shape).permute(0, 2, 3, 1)
        values = cache_values.index_select(0, chunk.key_slots).view(shape).transpose(1, 2)
        num_keys = keys.shape[-1]
        scores = torch.bmm(queries, keys.reshape(-1, head_dim, num_keys))
        biased = scores.view(runs, num_kv_heads, -1, num_keys) * head_dim**-0.5 + chunk.bias[
            :, None
        ].to(q.dtype)
        weights = torch.softmax(biased, dim=-1, dtype=torch.float32).to(q.dtype)
        attended = torch.bmm(weights.flatten(0, 1), values.reshape(-1, num_keys, head_dim))
        flat = (
            attended.view(runs, num_kv_heads, -1, group, head_dim)
            .permute(0, 2, 1, 3, 4)
            .reshape(-1, num_q_heads * head_dim)
        )
        output.index_copy_(0, chunk.rows, flat.index_select(0, chunk.places))
    return output
