"""Triton kernels of routing: the choice of experts for each token, and the sort by expert."""

import triton
import triton.language as tl

# Below every key of `_keys`.
NO_KEY = tl.constexpr(-(2**63))
# The low half of a key, which holds a place and is never negative.
PLACE_BITS = tl.constexpr(2**31 - 1)


@triton.jit
def _keys(values, places, NUM_PLACES: tl.constexpr):
    """int64 keys: the larger key has the larger value, of equal values the lower place.

    NaN counts as minus infinity, so that every choice is a valid place.
    """
    values = tl.where(values == values, values, float("-inf"))
    values = tl.where(values == 0.0, 0.0, values)  # both zeros have the same bits from here on
    bits = values.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & PLACE_BITS)
    return (ordered.to(tl.int64) << 32) + (NUM_PLACES - 1 - places).to(tl.int64)


@triton.jit
def _value(keys):
    """The float32 values that `_keys` made keys of."""
    ordered = (keys >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & PLACE_BITS)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["num_rows"])
def router_kernel(
    logits_ptr,
    bias_ptr,
    ids_ptr,
    weights_ptr,
    slots_ptr,
    num_rows,
    logits_stride,
    scale,
    NUM_EXPERTS: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    PADDED_K: tl.constexpr,
    N_GROUP: tl.constexpr,
    TOPK_GROUP: tl.constexpr,
    SIGMOID: tl.constexpr,
    NORMALISE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Program t: experts and weights of tokens t BLOCK_T to (t + 1) BLOCK_T."""
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    experts = tl.arange(0, PADDED_EXPERTS)[None, :]
    is_expert = experts < NUM_EXPERTS
    is_row = rows < num_rows
    is_token = is_row
    if HAS_SLOTS:
        is_token = is_row & (tl.load(slots_ptr + rows, mask=is_row, other=-1) >= 0)
    logits = tl.load(
        logits_ptr + rows[:, None].to(tl.int64) * logits_stride + experts,
        mask=is_token[:, None] & is_expert,
        other=0.0,
    )
    if SIGMOID:
        # Through float64, so that the float32 result is the correctly rounded one: devices' own
        # exponentials differ in the last bit, which would decide between near-ties.
        wide = logits.to(tl.float64)
        small = tl.exp(-tl.abs(wide))
        scores = (tl.where(wide >= 0.0, 1.0, small) / (1.0 + small)).to(tl.float32)
        choice = scores
        if HAS_BIAS:
            choice += tl.load(bias_ptr + experts, mask=is_expert, other=0.0)
    else:
        highest = tl.max(tl.where(is_expert, logits, float("-inf")), axis=1)
        powers = tl.where(is_expert, tl.exp(logits - highest[:, None]), 0.0)
        scores = powers / tl.sum(powers, axis=1)[:, None]
        choice = logits  # in the order of the probabilities, and not rounded

    keys = tl.where(is_expert, _keys(choice, experts, NUM_EXPERTS), NO_KEY)
    if TOPK_GROUP < N_GROUP:
        grouped = tl.reshape(keys, [BLOCK_T, N_GROUP, PADDED_EXPERTS // N_GROUP])
        best = tl.max(grouped, axis=2)
        second = tl.max(tl.where(grouped == best[:, :, None], NO_KEY, grouped), axis=2)
        groups = tl.arange(0, N_GROUP)[None, :]
        group_keys = _keys(_value(best) + _value(second), groups, N_GROUP)
        for _ in tl.static_range(TOPK_GROUP):
            top = tl.max(group_keys, axis=1)
            group_keys = tl.where(group_keys == top[:, None], NO_KEY, group_keys)
        grouped = tl.where((group_keys == NO_KEY)[:, :, None], grouped, NO_KEY)
        keys = tl.reshape(grouped, [BLOCK_T, PADDED_EXPERTS])

    places = tl.arange(0, PADDED_K)[None, :]
    ids = tl.full([BLOCK_T, PADDED_K], -1, tl.int32)
    weights = tl.zeros([BLOCK_T, PADDED_K], tl.float32)
    total = tl.zeros([BLOCK_T], tl.float32)
    for place in tl.static_range(TOP_K):
        top = tl.max(keys, axis=1)
        is_top = keys == top[:, None]
        score = tl.sum(tl.where(is_top, scores, 0.0), axis=1)
        expert = (NUM_EXPERTS - 1 - (top & PLACE_BITS)).to(tl.int32)
        ids = tl.where(places == place, expert[:, None], ids)
        weights = tl.where(places == place, score[:, None], weights)
        total += score
        keys = tl.where(is_top, NO_KEY, keys)
    if NORMALISE:
        weights = weights / (total + 1e-20)[:, None]
    weights *= scale
    # Rows that are no tokens have no experts.
    ids = tl.where(is_token[:, None], ids, -1)
    weights = tl.where(is_token[:, None], weights, 0.0)
    outs = rows[:, None].to(tl.int64) * TOP_K + places
    inside = is_row[:, None] & (places < TOP_K)
    tl.store(ids_ptr + outs, ids, mask=inside)
    tl.store(weights_ptr + outs, weights, mask=inside)


@triton.jit(do_not_specialize=["num_tokens"])
def count_kernel(
    ids_ptr,
    counts_ptr,
    num_tokens,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program e: the number of pairs of expert e.

    Each program reads all ids (256 KB at most, from the second-level cache), so that no program
    need know of another, and nothing is added atomically.
    """
    expert = tl.program_id(0)
    num_pairs = num_tokens * TOP_K  # so that loads are wide where top_k is a multiple of 4
    places = tl.arange(0, BLOCK)
    mine = tl.zeros([BLOCK], tl.int32)
    for start in range(0, num_pairs, BLOCK):
        ids = tl.load(ids_ptr + start + places, mask=start + places < num_pairs, other=-1)
        mine += (ids == expert).to(tl.int32)
    tl.store(counts_ptr + expert, tl.sum(mine, axis=0))


@triton.jit(do_not_specialize=["num_tokens", "max_tiles"])
def sort_kernel(
    ids_ptr,
    counts_ptr,
    pairs_ptr,
    offsets_ptr,
    tiles_ptr,
    num_tiles_ptr,
    num_tokens,
    max_tiles,
    TOP_K: tl.constexpr,
    NUM_EXPERTS: tl.constexpr,
    PADDED_EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_TILES: tl.constexpr,
):
    """Program e: places the pairs of expert e, and writes its offset and its tiles."""
    expert = tl.program_id(0)
    experts = tl.arange(0, PADDED_EXPERTS)
    counts = tl.load(counts_ptr + experts, mask=experts < NUM_EXPERTS, other=0)
    tiles_of = (counts + BLOCK_M - 1) // BLOCK_M
    first = tl.sum(tl.where(experts < expert, counts, 0), axis=0)
    end = tl.sum(tl.where(experts <= expert, counts, 0), axis=0)
    first_tile = tl.sum(tl.where(experts < expert, tiles_of, 0), axis=0)
    end_tile = tl.sum(tl.where(experts <= expert, tiles_of, 0), axis=0)
    tl.store(offsets_ptr + expert, first)
    if expert == NUM_EXPERTS - 1:
        tl.store(offsets_ptr + NUM_EXPERTS, end)
        tl.store(num_tiles_ptr, end_tile)
    if first == end:
        return

    for start in range(first_tile, end_tile, BLOCK_TILES):
        tiles = start + tl.arange(0, BLOCK_TILES)
        inside = tiles < end_tile
        starts = first + (tiles - first_tile) * BLOCK_M
        tl.store(tiles_ptr + tiles, tl.zeros([BLOCK_TILES], tl.int32) + expert, mask=inside)
        tl.store(tiles_ptr + max_tiles + tiles, starts, mask=inside)
        tl.store(tiles_ptr + 2 * max_tiles + tiles, tl.minimum(starts + BLOCK_M, end), inside)

    num_pairs = num_tokens * TOP_K
    places = tl.arange(0, BLOCK)
    next_place = first
    for start in range(0, num_pairs, BLOCK):
        ids = tl.load(ids_ptr + start + places, mask=start + places < num_pairs, other=-1)
        is_mine = ids == expert
        ranks = tl.cumsum(is_mine.to(tl.int32), axis=0)
        tl.store(pairs_ptr + next_place + ranks - 1, start + places, mask=is_mine)
        next_place += tl.sum(is_mine.to(tl.int32), axis=0)
