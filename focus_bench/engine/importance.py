"""Attention importance of masked positions (paper, Eq. 2), in PyTorch.

Knows queries, keys and which rows are masked; budget, selection and eviction lie elsewhere.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.engine.kv_cache import IntArray

POOL_WINDOW = 3  # keys over which a score is max-pooled, stride 1


def importance(q: Tensor, k: Tensor, masked_rows: Sequence[IntArray]) -> Tensor:
    """Importance I[j] of each sequence's masked fed positions in one layer.

    q [T, Hq, D] and k [T, Hkv, D] are a forward's queries and keys after QK norm and RoPE;
    `masked_rows[s]` are sequence s's masked rows among the T, ascending in position (may be empty).
    Returns float32 [sum of M], sequence after sequence: the sum over heads and masked queries i of
    softmax over j of the scores q(i) . k(j) * D ** -0.5, max-pooled along j (window 3).

    Sequences with equally many masked rows are computed together and nothing is padded, so the
    matrix products take 2 * Hq * D * M ** 2 FLOPs per sequence, and a sequence's values do not
    depend on how long others are.
    """
    lengths = np.array([len(rows) for rows in masked_rows], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    result = torch.empty(int(lengths.sum()), dtype=torch.float32, device=q.device)
    for length in np.unique(lengths[lengths > 0]):
        members = np.flatnonzero(lengths == length)
        rows = torch.from_numpy(np.stack([masked_rows[int(s)] for s in members])).to(q.device)
        places = torch.from_numpy(starts[members, None] + np.arange(length)).to(q.device)
        result[places] = _equal_lengths(q[rows].float(), k[rows].float())
    return result


def _equal_lengths(q: Tensor, k: Tensor) -> Tensor:
    """Importance [S, M] of q [S, M, Hq, D] and k [S, M, Hkv, D], float32."""
    sequences, masked, _, head_dim = q.shape
    num_kv_heads = k.shape[2]
    grouped = q.reshape(sequences, masked, num_kv_heads, -1, head_dim).permute(0, 2, 1, 3, 4)
    queries = grouped.reshape(sequences * num_kv_heads, -1, head_dim)  # [S Hkv, M group, D]
    keys = k.permute(0, 2, 3, 1).reshape(sequences * num_kv_heads, head_dim, masked)
    scores = torch.bmm(queries, keys) * head_dim**-0.5
    pooled = functional.max_pool1d(scores, POOL_WINDOW, stride=1, padding=POOL_WINDOW // 2)
    weights = torch.softmax(pooled, dim=-1)
    return weights.view(sequences, -1, masked).sum(dim=1)
