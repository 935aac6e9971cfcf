"""The importance delta in plain torch, sequence by sequence; reads the counts on the host."""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.engine.kernels.importance.launcher import MaskedTokens


def importance(q: Tensor, k: Tensor) -> Tensor:
    """Importance [M] of M masked tokens: q [M, Hq, D], k [M, Hkv, D] of one layer (Eq. 2)."""
    keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, keys) * q.shape[2] ** -0.5
    pooled = functional.max_pool1d(scores, 3, stride=1, padding=1)
    return torch.softmax(pooled, dim=-1).sum(dim=(0, 1))


def importance_delta(
    q0: Tensor, q1: Tensor, keys0: Tensor, keys1: Tensor, masked: MaskedTokens, *, out: Tensor
) -> Tensor:
    """As the launcher's function of this name, in float64 for float64 inputs, else float32."""
    out.zero_()
    bounds = masked.cu_masked.tolist()
    for sequence, (first, last) in enumerate(pairwise(bounds)):
        if first == last:
            continue
        token = masked.token[first:last].long()
        slot = masked.slot[first:last].long()
        layer0, layer1 = (
            importance(_widen(q[token]), _widen(keys[slot]))
            for q, keys in ((q0, keys0), (q1, keys1))
        )
        out[sequence, masked.column[first:last].long()] = (layer1 - layer0).to(out.dtype)
    return out


def _widen(values: Tensor) -> Tensor:
    return values if values.dtype is torch.float64 else values.float()
