"""Importance at SDAR-8B's shapes beside the same in plain torch.

Torch cannot read ragged counts without asking the device, so its case has equal counts, for which
one batched product does.
"""

import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.importance.launcher import (
    MaskedTokens,
    importance_delta,
    workspace_shape,
)

NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
FED, MASKED = 20, 16  # tokens a sequence, of a block of 32; 19.5 on average are fed
CACHED = 640  # tokens a sequence


def cases() -> list[Case]:
    """FOCUS steps of 1, 32 and 256 sequences; a block's first step; B = 64."""
    return [
        *(_case(batch, FED, MASKED, block_length=32) for batch in (1, 32, 256)),
        _case(256, 32, 32, block_length=32),
        _case(256, 40, 33, block_length=64),
    ]


def _case(batch: int, num_fed: int, num_masked: int, *, block_length: int) -> Case:
    device, bf16 = torch.device("cuda"), torch.bfloat16
    q0, q1 = (
        torch.randn(batch * num_fed, NUM_Q_HEADS, HEAD_DIM, device=device, dtype=bf16)
        for _ in range(2)
    )
    keys0, keys1 = (
        torch.randn(batch * CACHED, NUM_KV_HEADS, HEAD_DIM, device=device, dtype=bf16)
        for _ in range(2)
    )
    sequence = torch.arange(batch, device=device)[:, None]
    last = torch.arange(num_masked, device=device)
    token = sequence * num_fed + num_fed - num_masked + last
    slot = sequence * CACHED + CACHED - num_masked + last
    column = (block_length - num_masked + last).expand(batch, -1)
    masked = MaskedTokens(
        cu_masked=torch.arange(batch + 1, device=device, dtype=torch.int32) * num_masked,
        token=token.flatten().int(),
        slot=slot.flatten().int(),
        column=column.flatten().int(),
        block_length=block_length,
    )
    out = torch.empty(batch, block_length, device=device)
    workspace = torch.empty(workspace_shape(masked, NUM_KV_HEADS), device=device)

    def with_torch() -> Tensor:
        layer0, layer1 = (
            _equal_counts(q[token], keys[slot]) for q, keys in ((q0, keys0), (q1, keys1))
        )
        return out.zero_().scatter_(1, column, layer1 - layer0)

    rows = 2 * batch * num_masked  # of both layers
    return Case(
        name=f"batch {batch}, {num_masked} masked of B {block_length}",
        ours=lambda: importance_delta(q0, q1, keys0, keys1, masked, out=out, workspace=workspace),
        others={"torch": with_torch},
        num_bytes=rows * (NUM_Q_HEADS + NUM_KV_HEADS) * HEAD_DIM * 2 + out.numel() * 4,
        flops=rows * 2 * NUM_Q_HEADS * HEAD_DIM * num_masked,
    )


def _equal_counts(q: Tensor, k: Tensor) -> Tensor:
    """Importance [n, M] of q [n, M, Hq, D] and k [n, M, Hkv, D]."""
    batch, num_masked, _, head_dim = q.shape
    num_kv_heads = k.shape[2]
    queries = q.view(batch, num_masked, num_kv_heads, -1, head_dim).permute(0, 2, 1, 3, 4)
    queries = queries.reshape(batch * num_kv_heads, -1, head_dim)
    keys = k.permute(0, 2, 3, 1).reshape(batch * num_kv_heads, head_dim, num_masked)
    scores = torch.bmm(queries, keys).float() * head_dim**-0.5
    pooled = functional.max_pool1d(scores, 3, stride=1, padding=1)
    return torch.softmax(pooled, dim=-1).view(batch, -1, num_masked).sum(dim=1)
