"""RMS norm and residual addition in plain torch."""

import torch
from torch import Tensor


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The norm of x [T, h], or of x + residual, times `weight` [h]; and that sum, if any."""
    total = None if residual is None else residual + x
    wide = (x if total is None else total).float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight, total
