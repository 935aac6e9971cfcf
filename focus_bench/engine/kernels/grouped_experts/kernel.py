"""Triton kernels of the experts: two grouped products over tiles of rows, and the combination."""

import triton
import triton.language as tl


@triton.jit
def _place(item, num_tiles, NUM_BLOCKS: tl.constexpr, GROUP_TILES: tl.constexpr):
    """Tile of rows and block of columns of a piece of work.

    Pieces done at the same time share rows, and the weights too where one expert has several tiles:
    within a group of tiles the tile runs faster than the block of columns.
    """
    first = item // (GROUP_TILES * NUM_BLOCKS) * GROUP_TILES
    tiles = tl.minimum(num_tiles - first, GROUP_TILES)
    rest = item % (GROUP_TILES * NUM_BLOCKS)
    return first + rest % tiles, rest // tiles


@triton.jit(do_not_specialize=["max_tiles"])
def gate_up_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    pairs_ptr,
    tiles_ptr,
    num_tiles_ptr,
    max_tiles,
    x_stride,
    TOP_K: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_TILES: tl.constexpr,
):
    """out[row] = silu(x[token] gate^T) * (x[token] up^T) for tiles of sorted rows of one expert.

    The programs take turns at as many pieces of work as the device says there are. The product is
    computed transposed, so that the tensor cores' 64 rows are rows of the weight and a tile may
    have as few as 16 tokens.
    """
    NUM_BLOCKS: tl.constexpr = (WIDTH + BLOCK_N - 1) // BLOCK_N
    inner = tl.arange(0, BLOCK_K)
    num_tiles = tl.load(num_tiles_ptr)
    for item in range(tl.program_id(0), num_tiles * NUM_BLOCKS, tl.num_programs(0)):
        tile, block = _place(item, num_tiles, NUM_BLOCKS, GROUP_TILES)
        expert = tl.load(tiles_ptr + tile)
        rows = tl.load(tiles_ptr + max_tiles + tile) + tl.arange(0, BLOCK_M)[None, :]
        end = tl.load(tiles_ptr + 2 * max_tiles + tile)
        columns = block * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
        # Beyond the edge the last row is read again (and not stored), so that no load needs a mask.
        tokens = tl.load(pairs_ptr + tl.minimum(rows, end - 1)) // TOP_K
        x_places = x_ptr + tokens.to(tl.int64) * x_stride + inner[:, None]
        weight_rows = columns if WIDTH % BLOCK_N == 0 else tl.minimum(columns, WIDTH - 1)
        expert_places = weight_ptr + expert.to(tl.int64) * (2 * WIDTH * DEPTH)
        gate_places = expert_places + weight_rows * DEPTH + inner[None, :]
        up_places = gate_places + WIDTH * DEPTH

        gate_acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        up_acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for start in range(0, DEPTH, BLOCK_K):
            if DEPTH % BLOCK_K == 0:
                gate = tl.load(gate_places + start)
                up = tl.load(up_places + start)
                x = tl.load(x_places + start)
            else:
                inside = inner < DEPTH - start
                gate = tl.load(gate_places + start, mask=inside[None, :], other=0.0)
                up = tl.load(up_places + start, mask=inside[None, :], other=0.0)
                x = tl.load(x_places + start, mask=inside[:, None], other=0.0)
            gate_acc = tl.dot(gate, x, gate_acc, input_precision="ieee")
            up_acc = tl.dot(up, x, up_acc, input_precision="ieee")

        out = (gate_acc / (1.0 + tl.exp(-gate_acc)) * up_acc).to(out_ptr.dtype.element_ty)
        out_places = out_ptr + rows.to(tl.int64) * WIDTH + columns
        tl.store(out_places, out, mask=(rows < end) & (columns < WIDTH))


@triton.jit(do_not_specialize=["max_tiles"])
def down_kernel(
    x_ptr,
    weight_ptr,
    expert_weights_ptr,
    out_ptr,
    pairs_ptr,
    tiles_ptr,
    num_tiles_ptr,
    max_tiles,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_TILES: tl.constexpr,
):
    """out[pair] = weight of the pair * x[row] down^T for tiles of sorted rows of one expert.

    In turns and transposed as in `gate_up_kernel`; rows return to the order of (token, choice).
    """
    NUM_BLOCKS: tl.constexpr = (WIDTH + BLOCK_N - 1) // BLOCK_N
    inner = tl.arange(0, BLOCK_K)
    num_tiles = tl.load(num_tiles_ptr)
    for item in range(tl.program_id(0), num_tiles * NUM_BLOCKS, tl.num_programs(0)):
        tile, block = _place(item, num_tiles, NUM_BLOCKS, GROUP_TILES)
        expert = tl.load(tiles_ptr + tile)
        rows = tl.load(tiles_ptr + max_tiles + tile) + tl.arange(0, BLOCK_M)[None, :]
        end = tl.load(tiles_ptr + 2 * max_tiles + tile)
        columns = block * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
        read_rows = tl.minimum(rows, end - 1)
        x_places = x_ptr + read_rows.to(tl.int64) * DEPTH + inner[:, None]
        weight_rows = columns if WIDTH % BLOCK_N == 0 else tl.minimum(columns, WIDTH - 1)
        expert_places = weight_ptr + expert.to(tl.int64) * (WIDTH * DEPTH)
        weight_places = expert_places + weight_rows * DEPTH + inner[None, :]
        pairs = tl.load(pairs_ptr + read_rows)

        acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        for start in range(0, DEPTH, BLOCK_K):
            if DEPTH % BLOCK_K == 0:
                weight = tl.load(weight_places + start)
                x = tl.load(x_places + start)
            else:
                inside = inner < DEPTH - start
                weight = tl.load(weight_places + start, mask=inside[None, :], other=0.0)
                x = tl.load(x_places + start, mask=inside[:, None], other=0.0)
            acc = tl.dot(weight, x, acc, input_precision="ieee")

        # Not before the loop, whose first loads would wait for `pairs`.
        acc *= tl.load(expert_weights_ptr + pairs)
        out = acc.to(out_ptr.dtype.element_ty)
        out_places = out_ptr + pairs.to(tl.int64) * WIDTH + columns
        tl.store(out_places, out, mask=(rows < end) & (columns < WIDTH))


@triton.jit
def combine_kernel(
    partials_ptr,
    ids_ptr,
    shared_ptr,
    residual_ptr,
    out_ptr,
    shared_stride,
    residual_stride,
    out_stride,
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (t, i): columns i BLOCK to (i + 1) BLOCK of token t, summed in order of choice."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    acc = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(TOP_K):
        pair = token * TOP_K + choice
        expert = tl.load(ids_ptr + pair)
        # What no expert wrote is not read.
        width = tl.where((expert >= 0) & (expert < NUM_EXPERTS), WIDTH, 0)
        places = partials_ptr + pair * WIDTH + columns
        acc += tl.load(places, mask=columns < width, other=0.0).to(tl.float32)
    if HAS_SHARED:
        places = shared_ptr + token * shared_stride + columns
        acc += tl.load(places, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        places = residual_ptr + token * residual_stride + columns
        acc += tl.load(places, mask=inside, other=0.0).to(tl.float32)
    out_places = out_ptr + token * out_stride + columns
    tl.store(out_places, acc.to(out_ptr.dtype.element_ty), mask=inside)
