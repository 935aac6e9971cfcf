"""Triton kernels of the unmasking head: partial results, their combination, and the draw.

A sub-chunk is SUB consecutive ids. Probabilities are of logits times `sharpness`, which is one over
the temperature. NaN and +inf among a row's allowed logits make its sum NaN without any test.
"""

import triton
import triton.language as tl

NO_ID = tl.constexpr(2147483647)


@triton.jit
def _allowed_logits(logits_ptr, row, row_stride, first_id, sub, mask_id, num_valid, SUB):
    """Float32 logits of a sub-chunk and their ids; the mask token and invalid ids are -inf."""
    ids = sub * SUB + tl.arange(0, SUB)
    # The buffer's first column is the logit of first_id. Its rows hold whole sub-chunks, so nothing
    # lies outside it: a mask with one id cut out would turn loads of 16 bytes into single ones.
    x = tl.load(logits_ptr + row.to(tl.int64) * row_stride + (ids - first_id)).to(tl.float32)
    return tl.where((ids < num_valid) & (ids != mask_id), x, float("-inf")), ids


@triton.jit
def partials_kernel(
    logits_ptr,
    maxima_ptr,
    ids_ptr,
    sums_ptr,
    row_stride,
    num_subs,
    first_sub,
    mask_id,
    num_valid,
    sharpness,
    SUB: tl.constexpr,
):
    """Program (r, i): largest logit, its lowest id and sum of row r's sub-chunk first_sub + i."""
    row = tl.program_id(0)
    sub = first_sub + tl.program_id(1)
    x, ids = _allowed_logits(
        logits_ptr, row, row_stride, first_sub * SUB, sub, mask_id, num_valid, SUB
    )
    largest = tl.max(x, axis=0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    place = row.to(tl.int64) * num_subs + sub
    tl.store(maxima_ptr + place, largest)
    tl.store(ids_ptr + place, tl.min(tl.where(x == largest, ids, NO_ID), axis=0))
    tl.store(sums_ptr + place, tl.sum(tl.exp((x - base) * sharpness), axis=0))


@triton.jit
def combine_kernel(
    maxima_ptr,
    ids_ptr,
    sums_ptr,
    uniforms_ptr,
    tokens_ptr,
    confidence_ptr,
    chosen_ptr,
    fraction_ptr,
    row_max_ptr,
    row_sum_ptr,
    num_subs,
    sharpness,
    GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program r: the row's token and confidence if GREEDY, else the sub-chunk to draw from."""
    row = tl.program_id(0)
    subs = tl.arange(0, BLOCK)
    places = row.to(tl.int64) * num_subs + subs
    inside = subs < num_subs
    maxima = tl.load(maxima_ptr + places, mask=inside, other=float("-inf"))
    sums = tl.load(sums_ptr + places, mask=inside, other=0.0)
    largest = tl.max(maxima, axis=0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.exp((maxima - base) * sharpness)
    total = tl.sum(sums * weights, axis=0)
    proper = total > 0.0  # false for NaN, and for a row that is all -inf
    if GREEDY:
        ids = tl.load(ids_ptr + places, mask=inside, other=NO_ID)
        token = tl.min(tl.where(maxima == largest, ids, NO_ID), axis=0)
        tl.store(tokens_ptr + row, tl.where(proper, token, 0))
        tl.store(confidence_ptr + row, tl.where(proper, 1.0 / total, float("nan")))
    else:
        # Overwritten by the draw if the row is proper.
        tl.store(tokens_ptr + row, 0)
        tl.store(confidence_ptr + row, float("nan"))
        # The very expression of draw_kernel for the sub-chunk's largest logit: a sub-chunk counts
        # only if at least that id has a probability above 0.
        possible = weights / total > 0.0
        masses = tl.where(possible, sums.to(tl.float64) * weights.to(tl.float64), 0.0)
        cumulative = tl.cumsum(masses, axis=0)
        target = tl.load(uniforms_ptr + row) * tl.sum(masses, axis=0)
        chosen = tl.min(tl.where(possible & (cumulative > target), subs, NO_ID), axis=0)
        # By rounding the target may lie above every sum: then it is the last one possible.
        chosen = tl.where(chosen == NO_ID, tl.max(tl.where(possible, subs, 0), axis=0), chosen)
        before = tl.sum(tl.where(subs < chosen, masses, 0.0), axis=0)
        mass = tl.sum(tl.where(subs == chosen, masses, 0.0), axis=0)
        tl.store(chosen_ptr + row, tl.where(proper, chosen, -1))
        tl.store(fraction_ptr + row, (target - before) / mass)
        tl.store(row_max_ptr + row, base)
        tl.store(row_sum_ptr + row, total)


@triton.jit
def draw_kernel(
    logits_ptr,
    chosen_ptr,
    fraction_ptr,
    row_max_ptr,
    row_sum_ptr,
    tokens_ptr,
    confidence_ptr,
    row_stride,
    first_sub,
    num_chunk_subs,
    mask_id,
    num_valid,
    sharpness,
    SUB: tl.constexpr,
):
    """Program r: the row's token and confidence, if its sub-chunk is among these logits."""
    row = tl.program_id(0)
    sub = tl.load(chosen_ptr + row)
    if (sub < first_sub) | (sub >= first_sub + num_chunk_subs):
        return
    x, ids = _allowed_logits(
        logits_ptr, row, row_stride, first_sub * SUB, sub, mask_id, num_valid, SUB
    )
    weights = tl.exp((x - tl.load(row_max_ptr + row)) * sharpness)
    probabilities = weights / tl.load(row_sum_ptr + row)
    possible = probabilities > 0.0
    masses = probabilities.to(tl.float64)
    cumulative = tl.cumsum(masses, axis=0)
    target = tl.load(fraction_ptr + row) * tl.sum(masses, axis=0)
    token = tl.min(tl.where(possible & (cumulative > target), ids, NO_ID), axis=0)
    token = tl.where(token == NO_ID, tl.max(tl.where(possible, ids, 0), axis=0), token)
    tl.store(tokens_ptr + row, token)
    tl.store(confidence_ptr + row, tl.sum(tl.where(ids == token, probabilities, 0.0), axis=0))
