"""Paged attention on the device: one program per tile of query rows, KV head and run of keys.

Knows rows, slots and limits; how tiles and splits are chosen is the launcher's business.
"""

import triton
import triton.language as tl


@triton.jit
def _load_tile(pointers, inside, within, MASK_ROWS: tl.constexpr, MASK_COLUMNS: tl.constexpr):
    """Load [rows, columns]; what lies outside reads as zero (0 * NaN would be NaN)."""
    if MASK_ROWS and MASK_COLUMNS:
        tile = tl.load(pointers, mask=inside & within, other=0.0)
    elif MASK_ROWS:
        tile = tl.load(pointers, mask=inside, other=0.0)
    elif MASK_COLUMNS:
        tile = tl.load(pointers, mask=within, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def _attend(
    acc,
    top,
    total,
    q,
    keys,
    values,
    pages,
    start,
    end,
    limits,
    stride_k,
    stride_v,
    scale,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    ROW_LIMITS: tl.constexpr,
):
    """Take keys start..start + BLOCK_N - 1 into the online softmax (base 2).

    MASKED: keys from `end` on are unreadable. ROW_LIMITS: and row r sees those below limits[r].
    """
    columns = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, PADDED_DIM)
    positions = start + columns
    if PAGE_SIZE % BLOCK_N == 0:
        # The block lies within one page: one page id, and offsets that the loop does not change.
        page = tl.load(pages + start // PAGE_SIZE).to(tl.int64)
        slot = page * PAGE_SIZE + start % PAGE_SIZE
        k_pointers = keys + slot * stride_k + (columns[:, None] * stride_k + dims[None, :])
        v_pointers = values + slot * stride_v + (columns[:, None] * stride_v + dims[None, :])
    else:
        if MASKED:
            page = tl.load(pages + positions // PAGE_SIZE, mask=positions < end, other=0)
        else:
            page = tl.load(pages + positions // PAGE_SIZE)
        slots = page.to(tl.int64) * PAGE_SIZE + positions % PAGE_SIZE
        k_pointers = keys + (slots * stride_k)[:, None] + dims[None, :]
        v_pointers = values + (slots * stride_v)[:, None] + dims[None, :]
    inside = positions[:, None] < end
    within = dims[None, :] < HEAD_DIM
    k = _load_tile(k_pointers, inside, within, MASKED, HEAD_DIM != PADDED_DIM)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if MASKED:
        if ROW_LIMITS:
            scores = tl.where(positions[None, :] < limits[:, None], scores, float("-inf"))
        else:
            scores = tl.where(positions[None, :] < end, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    shift = new_top
    if MASKED and ROW_LIMITS:
        # A row that has seen no key yet: -inf - -inf would be NaN.
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores * scale - shift[:, None])
    decay = tl.exp2(top - shift)
    total = total * decay + tl.sum(weights, 1)
    acc = acc * decay[:, None]
    v = _load_tile(v_pointers, inside, within, MASKED, HEAD_DIM != PADDED_DIM)
    acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
    return acc, new_top, total


@triton.jit(do_not_specialize=["stride_table", "num_tokens", "tiles", "num_splits"])
def attention_kernel(
    q,
    keys,
    values,
    out,
    partial,
    log_sums,
    cu_queries,
    num_keys,
    page_table,
    query_start,
    stride_q,
    stride_k,
    stride_v,
    stride_out,
    stride_table,
    num_tokens,
    tiles,
    num_splits,
    scale,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_LENGTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    PEEL: tl.constexpr,
):
    """Attend from one tile of rows; row r of a sequence is query r // GROUP, head r % GROUP.

    Grid (sequences * tiles * NUM_KV_HEADS, num_splits). `scale` includes log2(e). BLOCK_LENGTH 0:
    every query to every key. SPLIT: writes `partial` and `log_sums` (base 2) of one run of keys
    instead of `out`. PEEL: blocks of keys that every row sees whole get a loop without masks.
    """
    program = tl.program_id(0)
    split = tl.program_id(1)
    head = program % NUM_KV_HEADS
    tile = (program // NUM_KV_HEADS) % tiles
    sequence = program // NUM_KV_HEADS // tiles
    if BLOCK_LENGTH > 0:
        tile = tiles - 1 - tile  # the tiles with most keys first: they end together
    first_query = tl.load(cu_queries + sequence)
    num_queries = tl.load(cu_queries + sequence + 1) - first_query
    if tile * BLOCK_M >= num_queries * GROUP:
        return
    visible = tl.load(num_keys + sequence)

    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    limits = tl.zeros([BLOCK_M], tl.int32)
    shared = visible  # keys that every row of the tile sees
    if BLOCK_LENGTH > 0:
        position = tl.load(query_start + sequence)
        limits = ((position + rows // GROUP) // BLOCK_LENGTH + 1) * BLOCK_LENGTH
        limits = tl.minimum(limits, visible)
        first = position + tile * BLOCK_M // GROUP
        last = position + tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // GROUP, num_queries - 1)
        shared = tl.minimum(visible, (first // BLOCK_LENGTH + 1) * BLOCK_LENGTH)
        visible = tl.minimum(visible, (last // BLOCK_LENGTH + 1) * BLOCK_LENGTH)
    begin = 0
    end = visible
    if SPLIT:
        blocks_each = tl.cdiv(tl.cdiv(visible, BLOCK_N), num_splits)
        begin = split * blocks_each * BLOCK_N
        end = tl.minimum(visible, begin + blocks_each * BLOCK_N)

    dims = tl.arange(0, PADDED_DIM)
    is_row = (rows < num_queries * GROUP)[:, None]
    within = dims[None, :] < HEAD_DIM
    token = (first_query + rows // GROUP).to(tl.int64)
    q_head = head * GROUP + rows % GROUP
    inner = (q_head * HEAD_DIM)[:, None] + dims[None, :]
    q_pointers = q + (token * stride_q)[:, None] + inner
    q_tile = _load_tile(q_pointers, is_row, within, True, HEAD_DIM != PADDED_DIM)
    keys += head * HEAD_DIM
    values += head * HEAD_DIM
    pages = page_table + sequence.to(tl.int64) * stride_table

    acc = tl.zeros([BLOCK_M, PADDED_DIM], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    masked_from = begin
    if PEEL:
        masked_from = begin + tl.maximum(tl.minimum(end, shared) - begin, 0) // BLOCK_N * BLOCK_N
        for start in range(begin, masked_from, BLOCK_N):
            acc, top, total = _attend(
                acc,
                top,
                total,
                q_tile,
                keys,
                values,
                pages,
                start,
                end,
                limits,
                stride_k,
                stride_v,
                scale,
                HEAD_DIM,
                PADDED_DIM,
                PAGE_SIZE,
                BLOCK_N,
                False,
                BLOCK_LENGTH > 0,
            )
    for start in range(masked_from, end, BLOCK_N):
        acc, top, total = _attend(
            acc,
            top,
            total,
            q_tile,
            keys,
            values,
            pages,
            start,
            end,
            limits,
            stride_k,
            stride_v,
            scale,
            HEAD_DIM,
            PADDED_DIM,
            PAGE_SIZE,
            BLOCK_N,
            True,
            BLOCK_LENGTH > 0,
        )

    # A row without keys has total 0, and its output is 0.
    safe_total = tl.where(total == 0.0, 1.0, total)
    result = acc / safe_total[:, None]
    if SPLIT:
        index = (split.to(tl.int64) * num_tokens + token) * (NUM_KV_HEADS * GROUP) + q_head
        log_sum = tl.where(total == 0.0, float("-inf"), top + tl.log2(safe_total))
        tl.store(log_sums + index, log_sum, mask=rows < num_queries * GROUP)
        pointers = partial + (index * HEAD_DIM)[:, None] + dims[None, :]
        tl.store(pointers, result, mask=is_row & within)
    else:
        pointers = out + (token * stride_out)[:, None] + inner
        tl.store(pointers, result.to(out.dtype.element_ty), mask=is_row & within)


@triton.jit(do_not_specialize=["num_sequences", "num_tokens", "num_splits"])
def combine_kernel(
    partial,
    log_sums,
    out,
    cu_queries,
    stride_out,
    num_sequences,
    num_tokens,
    num_splits,
    NUM_Q_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
):
    """Weigh one row's partial outputs by their sums; grid (tokens, NUM_Q_HEADS)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    if token >= tl.load(cu_queries + num_sequences):
        return
    dims = tl.arange(0, PADDED_DIM)
    # Unrolled over scalars: reductions of so few values go through shared memory, where Triton lets
    # several threads write one value to one place.
    top = float("-inf")
    for i in tl.static_range(PADDED_SPLITS):
        split = tl.full((), i, tl.int64)
        index = (split * num_tokens + token) * NUM_Q_HEADS + head
        top = tl.maximum(
            top, tl.load(log_sums + index, mask=split < num_splits, other=float("-inf"))
        )
    base = tl.where(top == float("-inf"), 0.0, top)
    total = 0.0
    result = tl.zeros((PADDED_DIM,), tl.float32)
    for i in tl.static_range(PADDED_SPLITS):
        split = tl.full((), i, tl.int64)
        index = (split * num_tokens + token) * NUM_Q_HEADS + head
        log = tl.load(log_sums + index, mask=split < num_splits, other=float("-inf"))
        width = tl.where(split < num_splits, HEAD_DIM, 0)
        part = tl.load(partial + index * HEAD_DIM + dims, mask=dims < width, other=0.0)
        weight = tl.exp2(log - base)
        total += weight
        result += weight * part
    result = result / tl.where(total == 0.0, 1.0, total)
    pointers = out + token * stride_out + head * HEAD_DIM + dims
    tl.store(pointers, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)
