"""Attention importance over ragged masked tokens; knows no budget, no selection, no paging."""

import triton
import triton.language as tl


@triton.jit
def _add_importance(
    q_ptr,
    k_ptr,
    q_stride,
    k_stride,
    token_ptr,
    slot_ptr,
    partial_ptr,
    first,
    num_masked,
    kv_head,
    scale,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """partial[j] = sum over one KV head's query heads and the masked queries of softmax(pool(S)).

    Queries and the heads of a group share the rows of a tile. Pooling takes the maximum of three
    products, with the keys shifted by -1, 0 and 1: products of registers cannot be shifted.
    """
    j = tl.arange(0, BLOCK_J)
    here_in = j < num_masked
    left_in = (j >= 1) & here_in
    right_in = j + 1 < num_masked
    left_slot = tl.load(slot_ptr + first + j - 1, mask=left_in, other=0).to(tl.int64)
    here_slot = tl.load(slot_ptr + first + j, mask=here_in, other=0).to(tl.int64)
    right_slot = tl.load(slot_ptr + first + j + 1, mask=right_in, other=0).to(tl.int64)
    k_ptr += kv_head * HEAD_DIM
    total = tl.zeros([BLOCK_J], dtype=tl.float32)
    num_rows = num_masked * GROUP
    for start in range(0, num_rows, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        row_in = row < num_rows
        query = row // GROUP
        head = kv_head * GROUP + row % GROUP
        token = tl.load(token_ptr + first + query, mask=row_in, other=0).to(tl.int64)
        q_row = q_ptr + token * q_stride + head * HEAD_DIM
        left = tl.zeros([BLOCK_R, BLOCK_J], dtype=tl.float32)
        here = tl.zeros([BLOCK_R, BLOCK_J], dtype=tl.float32)
        right = tl.zeros([BLOCK_R, BLOCK_J], dtype=tl.float32)
        for d_start in range(0, HEAD_DIM, BLOCK_D):
            d = d_start + tl.arange(0, BLOCK_D)
            d_in = d < HEAD_DIM
            q = tl.load(
                q_row[:, None] + d[None, :], mask=row_in[:, None] & d_in[None, :], other=0.0
            )
            k_left = tl.load(
                k_ptr + left_slot[None, :] * k_stride + d[:, None],
                mask=left_in[None, :] & d_in[:, None],
                other=0.0,
            )
            left = tl.dot(q, k_left, left, input_precision="ieee")
            k_here = tl.load(
                k_ptr + here_slot[None, :] * k_stride + d[:, None],
                mask=here_in[None, :] & d_in[:, None],
                other=0.0,
            )
            here = tl.dot(q, k_here, here, input_precision="ieee")
            k_right = tl.load(
                k_ptr + right_slot[None, :] * k_stride + d[:, None],
                mask=right_in[None, :] & d_in[:, None],
                other=0.0,
            )
            right = tl.dot(q, k_right, right, input_precision="ieee")
        left = tl.where(left_in[None, :], left, float("-inf"))
        right = tl.where(right_in[None, :], right, float("-inf"))
        # A maximum without propagation would hide one NaN among three finite scores.
        pooled = tl.maximum(left, here, propagate_nan=tl.PropagateNan.ALL)
        pooled = tl.maximum(pooled, right, propagate_nan=tl.PropagateNan.ALL) * scale
        pooled = tl.where(here_in[None, :], pooled, float("-inf"))
        weights = tl.exp(pooled - tl.max(pooled, axis=1)[:, None])
        weights *= tl.div_rn(1.0, tl.sum(weights, axis=1))[:, None]
        total += tl.sum(tl.where(row_in[:, None], weights, 0.0), axis=0)
    tl.store(partial_ptr + j, total, mask=here_in)


@triton.jit
def partial_importance_kernel(
    q0_ptr,
    q1_ptr,
    k0_ptr,
    k1_ptr,
    q0_stride,
    q1_stride,
    k0_stride,
    k1_stride,
    cu_masked_ptr,
    token_ptr,
    slot_ptr,
    partial_ptr,  # float32 [n, 2, KV heads, block_length], written at [.., .., .., :M]
    scale,
    block_length,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One program a (sequence, KV head, layer)."""
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    layer = tl.program_id(2)
    first = tl.load(cu_masked_ptr + sequence)
    num_masked = tl.load(cu_masked_ptr + sequence + 1) - first
    if num_masked == 0:
        return
    cell = (sequence * 2 + layer) * tl.num_programs(1) + kv_head
    partial_ptr += cell.to(tl.int64) * block_length
    if layer == 0:
        _add_importance(
            q0_ptr,
            k0_ptr,
            q0_stride,
            k0_stride,
            token_ptr,
            slot_ptr,
            partial_ptr,
            first,
            num_masked,
            kv_head,
            scale,
            GROUP,
            HEAD_DIM,
            BLOCK_R,
            BLOCK_J,
            BLOCK_D,
        )
    else:
        _add_importance(
            q1_ptr,
            k1_ptr,
            q1_stride,
            k1_stride,
            token_ptr,
            slot_ptr,
            partial_ptr,
            first,
            num_masked,
            kv_head,
            scale,
            GROUP,
            HEAD_DIM,
            BLOCK_R,
            BLOCK_J,
            BLOCK_D,
        )


@triton.jit
def importance_delta_kernel(
    partial_ptr,
    cu_masked_ptr,
    column_ptr,
    out_ptr,
    num_kv_heads,
    block_length,
    BLOCK_J: tl.constexpr,
):
    """Sums a sequence's heads in their order and puts I1 - I0 at the tokens' columns, else 0."""
    sequence = tl.program_id(0)
    first = tl.load(cu_masked_ptr + sequence)
    num_masked = tl.load(cu_masked_ptr + sequence + 1) - first
    j = tl.arange(0, BLOCK_J)
    j_in = j < num_masked
    partial_ptr += sequence.to(tl.int64) * 2 * num_kv_heads * block_length
    layer0 = tl.zeros([BLOCK_J], dtype=tl.float32)
    layer1 = tl.zeros([BLOCK_J], dtype=tl.float32)
    for head in range(0, num_kv_heads):
        layer0 += tl.load(partial_ptr + head * block_length + j, mask=j_in, other=0.0)
        layer1 += tl.load(
            partial_ptr + (num_kv_heads + head) * block_length + j, mask=j_in, other=0.0
        )
    column = tl.load(column_ptr + first + j, mask=j_in, other=-1)
    # Scattering inside the program by comparison: every entry is stored once, with no barrier.
    here = column[None, :] == j[:, None]
    delta = tl.sum(tl.where(here, (layer1 - layer0)[None, :], 0.0), axis=1)
    tl.store(out_ptr + sequence.to(tl.int64) * block_length + j, delta, mask=j < block_length)
