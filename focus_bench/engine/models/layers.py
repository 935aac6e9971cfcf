"""Arithmetic that transformer layers share, on plain tensors; knows no model and no weights' names.

Rounding follows transformers' Qwen3 (normalisation in float32, rounded before the weight; rotary
products in the model's dtype), so that 16-bit logits agree with it too.
"""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square normalisation of the last dimension, times `weight` (broadcast)."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def rope_frequencies(rotary_dim: int, theta: float, device: torch.device) -> Tensor:
    """Angles per position, float32 [rotary_dim / 2]: theta ** (-2 i / rotary_dim)."""
    channels = torch.arange(0, rotary_dim, 2, dtype=torch.int64, device=device)
    exponents = channels.float() / rotary_dim
    return 1.0 / (theta**exponents)


def rope_tables(
    positions: Tensor, frequencies: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cos and sin [T, rotary_dim] of int64 positions [T]; both halves of a row are equal."""
    angles = positions.float()[:, None] * frequencies[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first R channels of x [T, H, D] by tables [T, R]; channel i pairs with i + R / 2.

    The channels behind them, if any, stay as they are (partial rotary embedding).
    """
    rotary_dim = cos.shape[-1]
    half = rotary_dim // 2
    first, second, rest = x[..., :half], x[..., half:rotary_dim], x[..., rotary_dim:]
    cos, sin = cos[:, None, :half], sin[:, None, :half]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """SwiGLU feed-forward of x [T, h]; `gate_up` [2 d_ff, h] holds gate rows, then up rows."""
    gate, up = functional.linear(x, gate_up).chunk(2, dim=-1)
    return functional.linear(functional.silu(gate) * up, down)
