"""Compiles the attention that decode steps of any size take, so that no step of a run waits for it.

(Prefill's variants: kernels/paged_attention/launcher.py.) Knows layouts; measures nothing.
"""

from dataclasses import replace

import torch

from focus_bench.engine.kernels.paged_attention.launcher import (
    AttentionLayout,
    paged_attention,
    tuning_for,
)
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.base import BlockDiffusionModel


def compile_decode_attention(
    model: BlockDiffusionModel, cache: PagedKVCache, *, block_length: int
) -> None:
    """Launch every tile, with split keys and without, over one row without keys.

    Which of them a step takes depends on how many sequences it has and on how much of their blocks
    they feed. (What combines the split keys is prefill's, too.)
    """
    spec, device = model.spec, model.device
    zeros = torch.zeros(1, dtype=torch.int32, device=device)
    layout = AttentionLayout(
        cu_queries=torch.arange(2, dtype=torch.int32, device=device),
        num_keys=zeros,
        page_table=zeros[None],
        page_size=cache.page_size,
        max_queries=1,
        max_keys=cache.page_size,
    )
    keys, values = cache.layer(0)
    q = keys.new_zeros((1, spec.num_q_heads, spec.head_dim))
    rows = block_length * (spec.num_q_heads // spec.num_kv_heads)
    for tuning in {tuning_for(q.dtype, spec.head_dim, n, False) for n in (min(rows, 64), rows)}:
        for num_splits in (1, 2):
            fixed = replace(tuning, num_splits=num_splits)
            paged_attention(q, keys, values, layout, tuning=fixed)
