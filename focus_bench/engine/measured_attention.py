"""What one call of a measured attention is: the engine's rows over random pages of a cache.

Knows names of curves and points; not how calls are timed.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from focus_bench.core.curve_samples import Point
from focus_bench.core.op_curves import (
    BLOCK_LENGTH,
    LONGEST_QUERIES,
    SHORT_CONTEXT,
    TABLE_TOKENS,
)
from focus_bench.core.rng import generator
from focus_bench.engine.kernel_rows import KernelRows
from focus_bench.engine.kernels.paged_attention.launcher import AttentionLayout
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.op_timer import Call

# Keys and values of the calls taken in turn: several times the L2 cache of any GPU.
_ROTATED_BYTES = 512 << 20
_MAX_CALLS = 64
# Ragged sequences: weights from 0.2 to 1.8, evenly.
_LEAST_WEIGHT = 0.2

Lengths = npt.NDArray[np.int64]


class MeasuredAttention:
    """Attention over a cache of one or more layers, filled with noise here."""

    def __init__(self, cache: PagedKVCache, *, num_q_heads: int, seed: int) -> None:
        self._cache = cache
        self._num_q_heads = num_q_heads
        self._rng = generator(seed, "calibrate/attention")
        for states in (cache.keys, cache.values):
            states.normal_()
        self._calls: dict[str, Callable[..., list[Call]]] = {
            "attention_decode": self._decode,
            "attention_ragged": self._ragged,
            "attention_longest": self._longest,
            "attention_prefill": self._prefill,
        }

    def __contains__(self, curve: str) -> bool:
        return curve in self._calls

    def calls(self, curve: str, point: Point) -> Sequence[Call]:
        """Calls of a curve at a point, each on keys of its own as far as the cache holds them."""
        return self._calls[curve](*point)

    def _decode(self, sequences: int, queries: int, context: int) -> list[Call]:
        shape = np.ones(sequences, dtype=np.int64)
        return self._attend(shape * queries, shape * context, bound=max(TABLE_TOKENS, context))

    def _ragged(self, sequences: int, queries: int, context: int) -> list[Call]:
        counts, keys = (spread(mean, sequences, self._rng) for mean in (queries, context))
        return self._attend(counts, keys, bound=max(TABLE_TOKENS, int(keys.max())))

    def _longest(self, sequences: int, context: int) -> list[Call]:
        keys = np.full(sequences, SHORT_CONTEXT, dtype=np.int64)
        keys[sequences // 2] = context
        queries = np.full(sequences, LONGEST_QUERIES, dtype=np.int64)
        return self._attend(queries, keys, bound=max(TABLE_TOKENS, context))

    def _prefill(self, sequences: int, queries: int, history: int) -> list[Call]:
        shape = np.ones(sequences, dtype=np.int64)
        end = history + queries
        return self._attend(shape * queries, shape * end, bound=end, history=shape * history)

    def _attend(
        self, queries: Lengths, keys: Lengths, *, bound: int, history: Lengths | None = None
    ) -> list[Call]:
        """One call a layer and set of pages; `history` not None: block-causal."""
        cache = self._cache
        head_dim = cache.keys.shape[-1]
        size = (int(queries.sum()), self._num_q_heads, head_dim)
        q = torch.randn(size, device=cache.device, dtype=cache.keys.dtype)
        rows = [
            KernelRows(
                layout=AttentionLayout(
                    cu_queries=self._int32(np.concatenate([[0], np.cumsum(queries)])),
                    num_keys=self._int32(keys),
                    page_table=table,
                    page_size=cache.page_size,
                    max_queries=max(BLOCK_LENGTH * (history is None), int(queries.max())),
                    max_keys=table.shape[1] * cache.page_size if history is None else bound,
                    query_start=None if history is None else self._int32(history),
                    block_length=None if history is None else BLOCK_LENGTH,
                )
            )
            for table in self._tables(keys, bound)
        ]
        layers = range(len(cache.keys))
        return [partial(of.attend, cache, layer, q) for of in rows for layer in layers]

    def _tables(self, keys: Lengths, bound: int) -> list[Tensor]:
        """Page tables of `bound` tokens a sequence: pages at random, no table shares any."""
        cache = self._cache
        pages = -(-keys // cache.page_size)
        used = int(pages.sum())
        if used > cache.num_pages:
            raise AssertionError(f"{used} pages in a cache of {cache.num_pages}")
        page_bytes = 2 * cache.keys[:, : cache.page_size].nbytes
        wanted = min(_ROTATED_BYTES // (used * page_bytes) + 1, _MAX_CALLS // len(cache.keys))
        free = self._rng.permutation(cache.num_pages)
        tables = []
        for _ in range(max(1, min(wanted, cache.num_pages // used))):
            table = np.zeros((len(keys), -(-bound // cache.page_size)), dtype=np.int64)
            for row, count in enumerate(pages):
                table[row, :count], free = free[:count], free[count:]
            tables.append(self._int32(table))
        return tables

    def _int32(self, values: Lengths) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32)).to(self._cache.device)


def spread(mean: int, count: int, rng: np.random.Generator) -> Lengths:
    """`count` lengths, at least 1, evenly from 0.2 to 1.8 times their mean, in random order."""
    weights = np.linspace(_LEAST_WEIGHT, 2.0 - _LEAST_WEIGHT, count)
    return rng.permutation(np.maximum(1, np.round(mean * weights)).astype(np.int64))
