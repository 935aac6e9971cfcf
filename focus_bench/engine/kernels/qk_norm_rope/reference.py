"""Per-head norm, rotary and the KV write in plain torch."""

import torch
from torch import Tensor


def qk_norm_rope(
    qkv: Tensor, qk_norm: Tensor, cos: Tensor, sin: Tensor, eps: float, num_q_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Query [T, Hq, D] and key [T, Hkv, D], normed and rotated, and value [T, Hkv, D]."""
    num_qk_heads, head_dim = qk_norm.shape
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    qk, value = heads[:, :num_qk_heads], heads[:, num_qk_heads:]
    wide = qk.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    normed = (wide * scale).to(qk.dtype) * qk_norm
    rotary_dim = cos.shape[-1]
    rotary, rest = normed[..., :rotary_dim], normed[..., rotary_dim:]
    first, second = rotary.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    qk = torch.cat((rotary * cos[:, None] + turned * sin[:, None], rest), dim=-1)
    return qk[:, :num_q_heads], qk[:, num_q_heads:], value


def store(target: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Write rows [T, Hkv, D] to `slots` [T] of a layer's view [slots, Hkv, D]; -1 writes nothing.

    Reads back the number of slots of -1, so this is for tests.
    """
    kept = slots >= 0
    target.index_copy_(0, slots[kept].long(), rows[kept])
