"""Triton kernel of a linear layer of few rows: streams weights, sums split products in order."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def skinny_linear_kernel(
    x_ptr,
    weight_ptr,
    residual_ptr,
    out_ptr,
    partials_ptr,
    counters_ptr,
    num_rows,
    num_columns,
    depth,
    x_stride,
    weight_stride,
    residual_stride,
    out_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    """Program t * SPLIT_K + s: columns t BLOCK_N to (t + 1) BLOCK_N of all rows, blocks s modulo
    SPLIT_K of the depth. The last program of a tile to arrive adds up the tile's partial products.

    The product is computed transposed: the tensor cores' 64 rows are rows of the weight.
    """
    split = tl.program_id(0) % SPLIT_K
    tile = tl.program_id(0) // SPLIT_K
    rows = tl.arange(0, BLOCK_M)[None, :]
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    inner = tl.arange(0, BLOCK_K)
    # Beyond the edge the last row is read again (and not stored), so that no load needs a mask.
    x_rows = tl.minimum(rows, num_rows - 1).to(tl.int64)
    weight_rows = tl.minimum(columns, num_columns - 1).to(tl.int64)
    x_places = x_ptr + x_rows * x_stride + inner[:, None]
    weight_places = weight_ptr + weight_rows * weight_stride + inner[None, :]

    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    # Splits take turns: programs that run together read neighbouring pieces of the same rows.
    for start in range(split * BLOCK_K, depth, SPLIT_K * BLOCK_K):
        if EVEN_K:
            weight = tl.load(weight_places + start)
            x = tl.load(x_places + start)
        else:
            inside = inner < depth - start
            weight = tl.load(weight_places + start, mask=inside[None, :], other=0.0)
            x = tl.load(x_places + start, mask=inside[:, None], other=0.0)
        acc = tl.dot(weight, x, acc, input_precision="ieee")

    if SPLIT_K > 1:
        # [row, column] within the tile, as in `out`.
        places = rows * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
        partials = partials_ptr + tile.to(tl.int64) * (SPLIT_K * BLOCK_N * BLOCK_M) + places
        tl.store(partials + split * (BLOCK_N * BLOCK_M), acc, cache_modifier=".cg")
        # Why this is free of races: the barrier orders every thread's stores before the atomic of
        # the one thread that executes it, whose release makes them visible to the device. The
        # atomics on one counter are totally ordered, so whoever draws SPLIT_K - 1 has acquired all
        # releases before its own, and its threads learn the number behind another barrier. Its
        # loads skip the first-level cache. Nobody else reads partials, nor touches the counter
        # after that; the next launch on the stream sees the 0.
        tl.debug_barrier()
        arrived = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
        if arrived < SPLIT_K - 1:
            return
        tl.store(counters_ptr + tile, 0)
        # In order of the splits, whoever arrived last: the same bits every time.
        acc = tl.load(partials, cache_modifier=".cg")
        for other in tl.static_range(1, SPLIT_K):
            acc += tl.load(partials + other * (BLOCK_N * BLOCK_M), cache_modifier=".cg")

    inside_out = (rows < num_rows) & (columns < num_columns)
    out_rows = rows.to(tl.int64)
    if HAS_RESIDUAL:
        residual = tl.load(
            residual_ptr + out_rows * residual_stride + columns, mask=inside_out, other=0.0
        )
        acc += residual.to(tl.float32)
    out = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_rows * out_stride + columns, out, mask=inside_out)
