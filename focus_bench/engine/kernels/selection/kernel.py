"""The budget, ranking and constraints of FOCUS for one row a program; knows masks and scores only.

The rule is stated in plain array code elsewhere (the project's decoding package); the tests hold
this kernel to it.
"""

import triton
import triton.language as tl


@triton.jit
def select_kernel(
    delta_ptr,
    scores_ptr,  # float64, read in mode "given" only
    fed_ptr,
    masked_ptr,
    progress_ptr,
    budget_ptr,
    block_start_ptr,
    flags_ptr,
    kept_ptr,
    num_kept_ptr,
    num_head_ptr,
    progress_out_ptr,
    num_keys_ptr,
    block_length,
    SIGN: tl.constexpr,  # of the delta as a fixed row's score; 0: the given scores
    ACTIVE: tl.constexpr,
    FIXED: tl.constexpr,
    RIGHTMOST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: which of its fed positions are kept, and what follows from that."""
    row = tl.program_id(0)
    position = tl.arange(0, BLOCK)
    in_block = position < block_length
    cell = row.to(tl.int64) * block_length + position
    fed = tl.load(fed_ptr + cell, mask=in_block, other=0) != 0
    masked = (tl.load(masked_ptr + cell, mask=in_block, other=0) != 0) & fed
    delta = tl.load(delta_ptr + cell, mask=masked, other=0.0).to(tl.float64)
    progress = tl.load(progress_ptr + row)
    flags = tl.load(flags_ptr + row)
    fixed = (flags & FIXED) != 0
    is_finite = tl.abs(delta) < float("inf")  # false for NaN
    num_bad = tl.sum((masked & ~is_finite).to(tl.int32), axis=0)
    active = ((flags & ACTIVE) != 0) & (num_bad == 0)
    delta = tl.where(is_finite, delta, 0.0)

    # Outliers: float64, since the squares of large deltas swamp small deviations in float32.
    num_masked = tl.sum(masked.to(tl.int32), axis=0)
    count = tl.maximum(num_masked, 1).to(tl.float64)
    mean = tl.sum(delta, axis=0) / count
    deviation = tl.where(masked, delta - mean, 0.0)
    std = tl.sqrt(tl.sum(deviation * deviation, axis=0) / count)
    num_outliers = tl.sum((masked & (delta >= mean + std)).to(tl.int32), axis=0)
    budget = tl.load(budget_ptr + row)
    budget = tl.where(fixed | (std == 0), budget, tl.maximum(budget, num_outliers))

    score = delta
    if SIGN == 0:
        given = tl.load(scores_ptr + cell, mask=masked, other=0.0)
        score = tl.where(fixed, given, delta)
    elif SIGN < 0:
        score = tl.where(fixed, -delta, delta)
    # rank[p]: how many candidates come before p; ties go to the lower position.
    before = score[None, :] > score[:, None]
    before |= (score[None, :] == score[:, None]) & (position[None, :] < position[:, None])
    rank = tl.sum((before & masked[None, :]).to(tl.int32), axis=1)
    selected = masked & (rank < budget)

    # AR context: p stays if p + 1 was selected.
    is_next = position[None, :] == position[:, None] + 1
    next_selected = tl.sum((is_next & selected[None, :]).to(tl.int32), axis=1) > 0
    kept_masked = selected | (masked & next_selected)
    # Placeholder integrity: no hole left of the rightmost kept mask that was never processed.
    rightmost_masked = tl.max(tl.where(kept_masked, position, -1), axis=0)
    kept_masked |= masked & (position > progress) & (position < rightmost_masked)

    kept = (kept_masked & active) | (fed & ~(masked & active))
    num_kept = tl.sum(kept.to(tl.int32), axis=0)
    rightmost = tl.max(tl.where(kept, position, -1), axis=0)
    progress_out = tl.maximum(progress, rightmost)
    # A row that keeps nothing is padding: it attends to what it attended to.
    to_rightmost = ((flags & RIGHTMOST) != 0) & (num_kept > 0)
    attended = tl.where(to_rightmost, rightmost, progress_out)
    tl.store(kept_ptr + cell, kept.to(tl.uint8), mask=in_block)
    tl.store(num_kept_ptr + row, num_kept)
    tl.store(num_head_ptr + row, tl.sum((kept & masked).to(tl.int32), axis=0))
    tl.store(progress_out_ptr + row, progress_out)
    tl.store(num_keys_ptr + row, tl.load(block_start_ptr + row) + attended + 1)
