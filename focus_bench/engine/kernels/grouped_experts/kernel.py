"""Triton kernels of the experts: two grouped products over tiles of rows, and the combination."""

import triton
import triton.language as tl


@triton.jit
def _place(num_tiles, NUM_BLOCKS: tl.constexpr, GROUP_TILES: tl.constexpr):
    """Tile of rows and block of columns of the program.

    Programs that run together share rows, and the weights too where one expert has several tiles:
    within a group of tiles the tile runs faster than the block of columns.
    """
    program = tl.program_id(0)
    first = program // (GROUP_TILES * NUM_BLOCKS) * GROUP_TILES
    tiles = tl.minimum(num_tiles - first, GROUP_TILES)
    rest = program % (GROUP_TILES * NUM_BLOCKS)
    return first + rest % tiles, rest // tiles


@triton.jit(do_not_specialize=["num_tiles"])
def gate_up_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    pairs_ptr,
    tiles_ptr,
    num_tiles,
    x_stride,
    TOP_K: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_TILES: tl.constexpr,
):
    """out[row] = silu(x[token] gate^T) * (x[token] up^T) for a tile of sorted rows of one expert.

    The product is computed transposed, so that the tensor cores' 64 rows are rows of the weight
    and a tile may have as few as 16 tokens.
    """
    tile, block = _place(num_tiles, (WIDTH + BLOCK_N - 1) // BLOCK_N, GROUP_TILES)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    rows = tl.load(tiles_ptr + num_tiles + tile) + tl.arange(0, BLOCK_M)[None, :]
    end = tl.load(tiles_ptr + 2 * num_tiles + tile)
    columns = block * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    inner = tl.arange(0, BLOCK_K)
    # Beyond the edge the last row is read again (and not stored), so that no load needs a mask.
    tokens = tl.load(pairs_ptr + tl.minimum(rows, end - 1)) // TOP_K
    x_places = x_ptr + tokens.to(tl.int64) * x_stride + inner[:, None]
    gate_places = weight_ptr + expert.to(tl.int64) * (2 * WIDTH * DEPTH)
    if WIDTH % BLOCK_N == 0:
        gate_places += columns * DEPTH + inner[None, :]
    else:
        gate_places += tl.minimum(columns, WIDTH - 1) * DEPTH + inner[None, :]
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


@triton.jit(do_not_specialize=["num_tiles"])
def down_kernel(
    x_ptr,
    weight_ptr,
    expert_weights_ptr,
    out_ptr,
    pairs_ptr,
    tiles_ptr,
    num_tiles,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_TILES: tl.constexpr,
):
    """out[pair] = weight of the pair * x[row] down^T for a tile of sorted rows of one expert.

    Transposed as in `gate_up_kernel`; rows return to the order of (token, choice).
    """
    tile, block = _place(num_tiles, (WIDTH + BLOCK_N - 1) // BLOCK_N, GROUP_TILES)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    rows = tl.load(tiles_ptr + num_tiles + tile) + tl.arange(0, BLOCK_M)[None, :]
    end = tl.load(tiles_ptr + 2 * num_tiles + tile)
    columns = block * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    inner = tl.arange(0, BLOCK_K)
    read_rows = tl.minimum(rows, end - 1)
    x_places = x_ptr + read_rows.to(tl.int64) * DEPTH + inner[:, None]
    weight_places = weight_ptr + expert.to(tl.int64) * (WIDTH * DEPTH)
    if WIDTH % BLOCK_N == 0:
        weight_places += columns * DEPTH + inner[None, :]
    else:
        weight_places += tl.minimum(columns, WIDTH - 1) * DEPTH + inner[None, :]
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
