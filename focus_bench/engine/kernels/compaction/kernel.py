"""Moves the kept rows of several arrays to the front; knows nothing of what they mean.

Every program finds its place by itself, by summing the counts of the sequences before its own, so
that one launch does all.
"""

import triton
import triton.language as tl


@triton.jit
def _sums(count_ptr, sequence, n, BLOCK_N: tl.constexpr):
    """(sum of the counts before `sequence`, sum of all counts)."""
    before = tl.zeros([BLOCK_N], dtype=tl.int32)
    everything = tl.zeros([BLOCK_N], dtype=tl.int32)
    for start in range(0, n, BLOCK_N):
        index = start + tl.arange(0, BLOCK_N)
        count = tl.load(count_ptr + index, mask=index < n, other=0)
        before += tl.where(index < sequence, count, 0)
        everything += count
    return tl.sum(before, axis=0), tl.sum(everything, axis=0)


@triton.jit
def _copy_rows(
    from_ptr,
    to_ptr,
    from_stride,
    to_stride,
    from_first,
    to_first,
    kept,
    fed_rank,
    kept_rank,
    num_kept,
    column,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Columns `column` of a sequence's kept rows, BLOCK_K rows at a time.

    `fed_rank` and `kept_rank` [B]: where a position's row stands among the sequence's fed and kept.
    """
    column_in = column < WIDTH
    for start in range(0, num_kept, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        row_in = k < num_kept
        is_kth = kept[None, :] & (kept_rank[None, :] == k[:, None])
        source = from_first + tl.sum(tl.where(is_kth, fed_rank[None, :], 0), axis=1)
        mask = row_in[:, None] & column_in[None, :]
        from_row = from_ptr + source.to(tl.int64) * from_stride
        values = tl.load(from_row[:, None] + column[None, :], mask=mask)
        to_row = to_ptr + (to_first + k).to(tl.int64) * to_stride
        tl.store(to_row[:, None] + column[None, :], values, mask=mask)


@triton.jit
def compact_kernel(
    kept_ptr,
    fed_ptr,
    masked_ptr,
    num_kept_ptr,
    num_head_ptr,
    cu_fed_ptr,
    hidden_ptr,
    q_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    positions_ptr,
    hidden_out_ptr,
    q_out_ptr,
    cos_out_ptr,
    sin_out_ptr,
    slots_out_ptr,
    positions_out_ptr,
    cu_kept_ptr,
    head_rows_ptr,
    totals_ptr,
    hidden_stride,
    q_stride,
    cos_stride,
    sin_stride,
    n,
    block_length,
    capacity,
    HIDDEN: tl.constexpr,
    Q_WIDTH: tl.constexpr,
    ROPE: tl.constexpr,
    HIDDEN_CHUNKS: tl.constexpr,
    Q_CHUNKS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_ROPE: tl.constexpr,
):
    """One program a (sequence, chunk of the row).

    The chunks: HIDDEN_CHUNKS of the hidden state, Q_CHUNKS of the queries, and one of all the rest.
    With n = 0 there is one row of programs, for what lies behind the kept rows.
    """
    sequence = tl.program_id(0)
    chunk = tl.program_id(1)
    position = tl.arange(0, BLOCK_B)
    in_block = position < tl.where(sequence < n, block_length, 0)
    cell = sequence.to(tl.int64) * block_length + position
    fed = tl.load(fed_ptr + cell, mask=in_block, other=0) != 0
    kept = (tl.load(kept_ptr + cell, mask=in_block, other=0) != 0) & fed
    fed_first = tl.load(cu_fed_ptr + sequence)
    fed_rank = tl.cumsum(fed.to(tl.int32), axis=0) - 1
    kept_rank = tl.cumsum(kept.to(tl.int32), axis=0) - 1
    num_kept = tl.sum(kept.to(tl.int32), axis=0)
    kept_first, total = _sums(num_kept_ptr, sequence, n, BLOCK_N)
    if chunk < HIDDEN_CHUNKS:
        _copy_rows(
            hidden_ptr,
            hidden_out_ptr,
            hidden_stride,
            HIDDEN,
            fed_first,
            kept_first,
            kept,
            fed_rank,
            kept_rank,
            num_kept,
            chunk * BLOCK_W + tl.arange(0, BLOCK_W),
            HIDDEN,
            BLOCK_K,
        )
    elif chunk < HIDDEN_CHUNKS + Q_CHUNKS:
        _copy_rows(
            q_ptr,
            q_out_ptr,
            q_stride,
            Q_WIDTH,
            fed_first,
            kept_first,
            kept,
            fed_rank,
            kept_rank,
            num_kept,
            (chunk - HIDDEN_CHUNKS) * BLOCK_W + tl.arange(0, BLOCK_W),
            Q_WIDTH,
            BLOCK_K,
        )
    else:
        rope_column = tl.arange(0, BLOCK_ROPE)
        _copy_rows(
            cos_ptr,
            cos_out_ptr,
            cos_stride,
            ROPE,
            fed_first,
            kept_first,
            kept,
            fed_rank,
            kept_rank,
            num_kept,
            rope_column,
            ROPE,
            BLOCK_K,
        )
        _copy_rows(
            sin_ptr,
            sin_out_ptr,
            sin_stride,
            ROPE,
            fed_first,
            kept_first,
            kept,
            fed_rank,
            kept_rank,
            num_kept,
            rope_column,
            ROPE,
            BLOCK_K,
        )
        source = fed_first + fed_rank
        target = kept_first + kept_rank
        slots = tl.load(slots_ptr + source, mask=kept, other=-1)
        tl.store(slots_out_ptr + target, slots, mask=kept)
        positions = tl.load(positions_ptr + source, mask=kept, other=0)
        tl.store(positions_out_ptr + target, positions, mask=kept)
        head = kept & (tl.load(masked_ptr + cell, mask=in_block, other=0) != 0)
        head_first, total_head = _sums(num_head_ptr, sequence, n, BLOCK_N)
        head_rank = tl.cumsum(head.to(tl.int32), axis=0) - 1
        tl.store(head_rows_ptr + head_first + head_rank, target, mask=head)
        tl.store(cu_kept_ptr + sequence, kept_first)
        if sequence == 0:
            tl.store(cu_kept_ptr + n, total)
            tl.store(totals_ptr, total)
            tl.store(totals_ptr + 1, total_head)
        # The rows behind the kept ones, shared among the sequences.
        first_fill = sequence * BLOCK_N
        step = tl.num_programs(0) * BLOCK_N
        for start in range(first_fill, capacity, step):
            row = start + tl.arange(0, BLOCK_N)
            row_in = row < capacity
            tl.store(slots_out_ptr + row, -1, mask=row_in & (row >= total))
            tl.store(head_rows_ptr + row, 0, mask=row_in & (row >= total_head))
