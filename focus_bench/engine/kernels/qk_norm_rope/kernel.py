"""Triton kernel of per-head norm, rotary and the KV write: some heads of one token per program.

Without the norm for models that have none (HAS_NORM False: no weights are read).
"""

import triton
import triton.language as tl


@triton.jit
def qk_norm_rope_kernel(
    qkv_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    q_ptr,
    keys_ptr,
    values_ptr,
    qkv_stride,
    cos_stride,
    sin_stride,
    slot_stride,
    head_stride,
    eps,
    NUM_Q: tl.constexpr,
    NUM_KV: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Program (t, i): heads i HEADS to (i + 1) HEADS of token t."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    # Dimension i is rotated with i + HALF, so each half of the heads is a tile of its own.
    columns = tl.arange(0, BLOCK)[None, :]
    in_half = columns < HALF
    inside = in_half & (heads < NUM_Q + 2 * NUM_KV)
    rotated = inside & (heads < NUM_Q + NUM_KV)

    places = heads * (2 * HALF) + columns
    x_ptr = qkv_ptr + token * qkv_stride + places
    first = tl.load(x_ptr, mask=inside, other=0.0)
    second = tl.load(x_ptr + HALF, mask=inside, other=0.0)
    cos = tl.load(cos_ptr + token * cos_stride + columns, mask=in_half, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * sin_stride + columns, mask=in_half, other=0.0).to(tl.float32)
    # A tile of one, because the interpreter takes no scalar in a mask.
    slot = tl.load(slots_ptr + token + tl.zeros([1, 1], tl.int64)).to(tl.int64)

    a = first.to(tl.float32)
    b = second.to(tl.float32)
    if HAS_NORM:
        first_weight = tl.load(weight_ptr + places, mask=rotated, other=0.0).to(tl.float32)
        second_weight = tl.load(weight_ptr + HALF + places, mask=rotated, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / (2 * HALF) + eps)[:, None]
        a = a * scale * first_weight
        b = b * scale * second_weight
    first_rotated = (a * cos - b * sin).to(first.dtype)
    second_rotated = (b * cos + a * sin).to(first.dtype)

    q_out = q_ptr + token * (NUM_Q * 2 * HALF) + places
    is_q = inside & (heads < NUM_Q)
    tl.store(q_out, first_rotated, mask=is_q)
    tl.store(q_out + HALF, second_rotated, mask=is_q)
    stored = slot >= 0
    key_out = keys_ptr + slot * slot_stride + (heads - NUM_Q).to(tl.int64) * head_stride + columns
    is_key = rotated & (heads >= NUM_Q) & stored
    tl.store(key_out, first_rotated, mask=is_key)
    tl.store(key_out + HALF, second_rotated, mask=is_key)
    value_heads = (heads - (NUM_Q + NUM_KV)).to(tl.int64)
    value_out = values_ptr + slot * slot_stride + value_heads * head_stride + columns
    is_value = inside & (value_heads >= 0) & stored
    tl.store(value_out, first, mask=is_value)
    tl.store(value_out + HALF, second, mask=is_value)
