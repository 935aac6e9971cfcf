"""Checks and launches RMS norm; knows no model."""

import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.rms_norm.kernel import rms_norm_kernel

MAX_WIDTH = 65536  # one row must fit in the registers of one program

# Elements of one program, and elements per warp: 16 per thread are two loads of 16 bytes in 16-bit
# types. On an H200 within 10 % of the bytes' floor at 8,192 tokens.
_TILE = 2048
_ELEMENTS_PER_WARP = 512


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Root-mean-square norm of the rows of x [T, h] times `weight` [h]; returns `out` [T, h].

    With `residual` [T, h], first `residual += x` in place, rounded to its dtype, and the norm is of
    that sum. Statistics are float32; the normed row is rounded before it meets the weight. Rows may
    be strided; `out` may be x. ValueError if shapes, dtypes or layouts do not fit.
    """
    num_rows, width = x.shape
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"x has rows of {width} elements; allowed are 1 to {MAX_WIDTH}")
    if weight.shape != (width,) or weight.dtype != x.dtype or not weight.is_contiguous():
        raise ValueError(f"weight must be contiguous [{width}] of {x.dtype}")
    if out is None:
        out = torch.empty((num_rows, width), device=x.device, dtype=x.dtype)
    for name, tensor in (("x", x), ("residual", residual), ("out", out)):
        if tensor is None:
            continue
        if tensor.shape != x.shape or tensor.dtype != x.dtype:
            raise ValueError(f"{name} must be {tuple(x.shape)} of {x.dtype}")
        if tensor.stride(1) != 1 and width > 1:
            raise ValueError(f"{name} must have contiguous rows, not strides {tensor.stride()}")
    if num_rows == 0:
        return out
    block = triton.next_power_of_2(width)
    rows = max(1, _TILE // block) if num_rows > 1 else 1
    rows_residual = x if residual is None else residual
    rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
        x,
        rows_residual,
        weight,
        out,
        num_rows,
        x.stride(0),
        rows_residual.stride(0),
        out.stride(0),
        eps,
        WIDTH=width,
        HAS_RESIDUAL=residual is not None,
        ROWS=rows,
        BLOCK=block,
        num_warps=min(16, max(1, rows * block // _ELEMENTS_PER_WARP)),
    )
    return out
