"""Triton kernel of RMS norm and residual addition: whole rows in registers, a few per program."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    WIDTH: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program i: rows i ROWS to (i + 1) ROWS."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < num_rows) & (columns < WIDTH)
    x = tl.load(x_ptr + rows * x_stride + columns, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        places = residual_ptr + rows * residual_stride + columns
        residual = tl.load(places, mask=inside, other=0.0)
        # Rounded before the statistics: the norm must see what later layers will read.
        x = (residual.to(tl.float32) + x.to(tl.float32)).to(x.dtype)
        tl.store(places, x, mask=inside)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / WIDTH + eps)
    normed = (wide * scale[:, None]).to(x.dtype).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    out = (normed * weight).to(x.dtype)
    tl.store(out_ptr + rows * out_stride + columns, out, mask=inside)
