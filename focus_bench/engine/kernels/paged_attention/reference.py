"""Paged attention in plain PyTorch, one sequence after the other, all of its rows at once."""

import torch
from torch import Tensor

from focus_bench.engine.kernels.paged_attention.launcher import AttentionLayout


def paged_attention_reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: AttentionLayout,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Attention output [T, Hq * D] in `dtype`, to which all inputs are upcast first.

    Arguments as of `paged_attention`. Rows of no sequence and queries without keys give zeros.
    """
    num_tokens, num_q_heads, head_dim = q.shape
    group = num_q_heads // keys.shape[1]
    out = torch.zeros((num_tokens, num_q_heads, head_dim), dtype=dtype, device=q.device)
    bounds = layout.cu_queries.tolist()
    for s, num_keys in enumerate(layout.num_keys.tolist()):
        first, last = bounds[s], bounds[s + 1]
        if first == last or num_keys == 0:
            continue
        positions = torch.arange(num_keys, device=q.device)
        pages = layout.page_table[s].long()[positions // layout.page_size]
        slots = pages * layout.page_size + positions % layout.page_size
        k = keys[slots].to(dtype).repeat_interleave(group, dim=1)
        v = values[slots].to(dtype).repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[first:last].to(dtype), k) * head_dim**-0.5
        if layout.block_length is not None and layout.query_start is not None:
            queries = int(layout.query_start[s]) + torch.arange(last - first, device=q.device)
            limits = (queries // layout.block_length + 1) * layout.block_length
            scores = scores.masked_fill(positions >= limits[:, None], -torch.inf)
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    return out.flatten(1)
