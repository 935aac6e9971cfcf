"""Triton kernel of SiLU times up: one stretch of one row per program."""

import triton
import triton.language as tl


@triton.jit
def silu_mul_kernel(
    gate_up_ptr,
    out_ptr,
    gate_up_stride,
    out_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (t, i): columns i BLOCK to (i + 1) BLOCK of row t."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    places = gate_up_ptr + row * gate_up_stride + columns
    gate = tl.load(places, mask=inside, other=0.0)
    up = tl.load(places + WIDTH, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    out = (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)
    tl.store(out_ptr + row * out_stride + columns, out, mask=inside)
