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
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Program (t, i): heads i HEADS to (i + 1) HEADS of token t.

    Of a head's dimensions the first 2 HALF are rotated; REST follow that are not.
    """
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    # Dimension i is rotated with i + HALF, so each half of what rotates is a tile of its own.
    columns = tl.arange(0, BLOCK)[None, :]
    in_half = columns < HALF
    inside = in_half & (heads < NUM_Q + 2 * NUM_KV)
    rotated = inside & (heads < NUM_Q + NUM_KV)

    places = heads * HEAD_DIM + columns
    x_ptr = qkv_ptr + token * qkv_stride + places
    first = tl.load(x_ptr, mask=inside, other=0.0)
    second = tl.load(x_ptr + HALF, mask=inside, other=0.0)
    cos = tl.load(cos_ptr + token * cos_stride + columns, mask=in_half, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * sin_stride + columns, mask=in_half, other=0.0).to(tl.float32)
    # A tile of one, because the interpreter takes no scalar in a mask.
    slot = tl.load(slots_ptr + token + tl.zeros([1, 1], tl.int64)).to(tl.int64)

    a = first.to(tl.float32)
    b = second.to(tl.float32)
    if REST > 0:
        rest_columns = tl.arange(0, BLOCK_REST)[None, :]
        rest_inside = (rest_columns < REST) & (heads < NUM_Q + 2 * NUM_KV)
        rest_normed = rest_inside & (heads < NUM_Q + NUM_KV)
        rest_places = heads * HEAD_DIM + 2 * HALF + rest_columns
        rest = tl.load(qkv_ptr + token * qkv_stride + rest_places, mask=rest_inside, other=0.0)
        c = rest.to(tl.float32)
    if HAS_NORM:
        first_weight = tl.load(weight_ptr + places, mask=rotated, other=0.0).to(tl.float32)
        second_weight = tl.load(weight_ptr + HALF + places, mask=rotated, other=0.0).to(tl.float32)
        squares = tl.sum(a * a + b * b, axis=1)
        if REST > 0:
            squares += tl.sum(c * c, axis=1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        a = a * scale * first_weight
        b = b * scale * second_weight
        if REST > 0:
            rest_weight = tl.load(weight_ptr + rest_places, mask=rest_normed, other=0.0)
            c = c * scale * rest_weight.to(tl.float32)
    first_rotated = (a * cos - b * sin).to(first.dtype)
    second_rotated = (b * cos + a * sin).to(first.dtype)

    q_out = q_ptr + token * (NUM_Q * HEAD_DIM) + places
    is_q = inside & (heads < NUM_Q)
    tl.store(q_out, first_rotated, mask=is_q)
    tl.store(q_out + HALF, second_rotated, mask=is_q)
    stored = slot >= 0
    key_heads = keys_ptr + slot * slot_stride + (heads - NUM_Q).to(tl.int64) * head_stride
    key_out = key_heads + columns
    is_key = rotated & (heads >= NUM_Q) & stored
    tl.store(key_out, first_rotated, mask=is_key)
    tl.store(key_out + HALF, second_rotated, mask=is_key)
    value_of = (heads - (NUM_Q + NUM_KV)).to(tl.int64)
    value_heads = values_ptr + slot * slot_stride + value_of * head_stride
    value_out = value_heads + columns
    is_value = inside & (value_of >= 0) & stored
    tl.store(value_out, first, mask=is_value)
    tl.store(value_out + HALF, second, mask=is_value)
    if REST > 0:
        rest_out = c.to(first.dtype)
        rest_is_q = rest_inside & (heads < NUM_Q)
        tl.store(q_ptr + token * (NUM_Q * HEAD_DIM) + rest_places, rest_out, mask=rest_is_q)
        rest_is_key = rest_normed & (heads >= NUM_Q) & stored
        tl.store(key_heads + 2 * HALF + rest_columns, rest_out, mask=rest_is_key)
        rest_is_value = rest_inside & (value_of >= 0) & stored
        tl.store(value_heads + 2 * HALF + rest_columns, rest, mask=rest_is_value)
