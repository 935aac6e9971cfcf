"""Choice of experts and sort by expert: as the references, bit by bit where ids are chosen."""

import itertools

import pytest
import torch
from torch import Tensor

from focus_bench.engine.kernels.expert_routing import reference
from focus_bench.engine.kernels.expert_routing.launcher import (
    RouterConfig,
    Routing,
    SortedPairs,
    max_tiles,
    route,
    sort_by_expert,
)

ON_GPU = torch.cuda.is_available()
SOFTMAX = RouterConfig(scoring="softmax", top_k=3)
GROUPED = RouterConfig(
    scoring="sigmoid", top_k=3, n_group=4, topk_group=2, routed_scaling_factor=2.5
)
# Configuration, experts, tokens.
CASES = [
    (SOFTMAX, 6, 13),
    (RouterConfig(scoring="softmax", top_k=8, norm_topk_prob=False), 8, 1),
    (RouterConfig(scoring="sigmoid", top_k=2), 5, 7),
    (GROUPED, 8, 13),
    (GROUPED, 8, 0),
]
LLADA2 = RouterConfig(
    scoring="sigmoid", top_k=8, n_group=8, topk_group=4, routed_scaling_factor=2.5
)
if ON_GPU:
    CASES += [(LLADA2, 256, tokens) for tokens in (1, 33, 8192)]
    CASES += [(RouterConfig(scoring="softmax", top_k=8), 128, tokens) for tokens in (1, 33, 8192)]


def random(shape: tuple[int, ...], device: torch.device, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def bias_of(config: RouterConfig, num_experts: int, device: torch.device) -> Tensor | None:
    return 0.1 * random((num_experts,), device, 1) if config.scoring == "sigmoid" else None


def poisoned(num_tokens: int, top_k: int, device: torch.device) -> Routing:
    routing = Routing.allocate(num_tokens, top_k, device)
    routing.ids.fill_(12345)
    routing.weights.fill_(torch.nan)
    return routing


def assert_equal(ours: Routing, expected: Routing) -> None:
    assert torch.equal(ours.ids, expected.ids)
    torch.testing.assert_close(ours.weights, expected.weights, rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize(("config", "num_experts", "num_tokens"), CASES)
def test_equals_the_reference(
    config: RouterConfig, num_experts: int, num_tokens: int, kernel_device: torch.device
) -> None:
    logits = random((num_tokens, num_experts), kernel_device)
    bias = bias_of(config, num_experts, kernel_device)
    out = poisoned(num_tokens, config.top_k, kernel_device)
    assert route(logits, config, bias=bias, out=out) is out
    assert_equal(out, reference.route(logits, config, bias=bias))


@pytest.mark.parametrize("config", [SOFTMAX, GROUPED], ids=["softmax", "sigmoid"])
def test_near_ties(config: RouterConfig, kernel_device: torch.device) -> None:
    # Logits of a row are 0 to 3 steps of float32 apart, as are the biases.
    generator = torch.Generator().manual_seed(3)
    tokens = 4096 if ON_GPU else 40
    base = torch.randn(tokens, 1, generator=generator)
    steps = torch.randint(0, 4, (tokens, 8), generator=generator, dtype=torch.int32)
    logits = (base.view(torch.int32) + steps).view(torch.float32).to(kernel_device)
    bias = None
    if config.scoring == "sigmoid":
        scores = logits.double().sigmoid().float()
        ranks = [row.unique().numel() for row in scores]
        assert 1 in ranks  # some rows are all ties,
        assert max(ranks) > 1  # others are not
        bias = (2.0**-24 * torch.randint(0, 3, (8,), generator=generator)).to(kernel_device)
    ours = route(logits, config, bias=bias)
    assert_equal(ours, reference.route(logits, config, bias=bias))


def test_ties_go_to_the_lower_id_and_the_lower_group(kernel_device: torch.device) -> None:
    logits = torch.zeros(2, 8, device=kernel_device)
    logits[1, ::2] = -0.0  # equal to 0.0
    assert route(logits, SOFTMAX).ids.tolist() == [[0, 1, 2]] * 2
    assert route(logits, GROUPED).ids.tolist() == [[0, 1, 2]] * 2
    logits[1, 5] = 1.0
    assert route(logits, SOFTMAX).ids.tolist() == [[0, 1, 2], [5, 0, 1]]
    assert route(logits, GROUPED).ids.tolist() == [[0, 1, 2], [5, 0, 1]]


def test_groups_bias_and_weights_by_hand(kernel_device: torch.device) -> None:
    # Sums of two by group: 0.5 + 0.5, 0.9 + 0.05, 0.7 + 0.6, 0.1 + 0.1: expert 2, the best of all,
    # is left out with its group.
    scores = torch.tensor([[0.5, 0.5, 0.9, 0.05, 0.7, 0.6, 0.1, 0.1]], device=kernel_device)
    routing = route(scores.logit(), GROUPED)
    assert routing.ids.tolist() == [[4, 5, 0]]
    expected = torch.tensor([[0.7, 0.6, 0.5]], device=kernel_device) * 2.5 / 1.8
    torch.testing.assert_close(routing.weights, expected)
    # A bias that makes all sums negative prefers group 3, and changes no score.
    bias = torch.tensor([-3.0] * 6 + [-2.0, -2.0], device=kernel_device)
    routing = route(scores.logit(), GROUPED, bias=bias)
    assert routing.ids.tolist() == [[6, 7, 4]]
    expected = torch.tensor([[0.1, 0.1, 0.7]], device=kernel_device) * 2.5 / 0.9
    torch.testing.assert_close(routing.weights, expected)


@pytest.mark.parametrize("config", [SOFTMAX, GROUPED], ids=["softmax", "sigmoid"])
def test_rows_that_are_no_tokens_are_not_read(
    config: RouterConfig, kernel_device: torch.device
) -> None:
    whole = torch.full((9, 11), torch.nan, device=kernel_device)
    logits = whole[:, 2:10]
    tokens = [0, 1, 3, 7]
    logits[tokens] = random((4, 8), kernel_device)
    bias = bias_of(config, 8, kernel_device)
    for filled in (tokens, []):
        out = poisoned(9, 3, kernel_device)
        slots = torch.full((9,), -1, dtype=torch.int32, device=kernel_device)
        slots[filled] = torch.arange(len(filled), dtype=torch.int32, device=kernel_device)
        route(logits, config, bias=bias, slots=slots, out=out)
        assert (out.ids[slots < 0] == -1).all()
        assert (out.weights[slots < 0] == 0).all()
        part = Routing(ids=out.ids[filled], weights=out.weights[filled])
        assert_equal(part, reference.route(logits[filled], config, bias=bias))


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("config", [SOFTMAX, GROUPED], ids=["softmax", "sigmoid"])
def test_extreme_logits_choose_valid_experts(
    config: RouterConfig, kernel_device: torch.device
) -> None:
    logits = torch.full((5, 8), torch.nan, device=kernel_device)
    logits[1] = -1e30
    logits[2] = 1e30
    logits[3, 5] = 1.0
    logits[4] = torch.tensor([200.0, -200.0] * 4)
    ids = route(logits, config).ids.sort(dim=1).values
    assert ((ids >= 0) & (ids < 8)).all()
    assert (ids[:, 1:] > ids[:, :-1]).all()
    if config is SOFTMAX:
        assert route(logits, config).ids[3, 0] == 5  # a number before NaN
    assert route(logits[1:3], config).weights.isfinite().all()


def tiles_by_hand(offsets: Tensor, block_m: int) -> list[list[int]]:
    """Expert, first and end row of every tile."""
    bounds = offsets.tolist()
    return [
        [expert, start, min(start + block_m, bounds[expert + 1])]
        for expert in range(len(bounds) - 1)
        for start in range(bounds[expert], bounds[expert + 1], block_m)
    ]


def sort_cases(device: torch.device) -> list[tuple[Tensor, int, int]]:
    """Ids, experts and rows of a tile."""
    generator = torch.Generator().manual_seed(5)

    def ids(tokens: int, top_k: int, low: int, high: int) -> Tensor:
        shape = (tokens, top_k)
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32).to(device)

    cases = [
        (ids(1, 1, 0, 1), 1, 16),
        (ids(20, 8, 0, 8), 8, 16),
        (ids(20, 3, -1, 10), 8, 4),  # -1, 8 and 9 are no experts
        (ids(20, 3, 3, 4), 8, 16),  # all of one
        (ids(7, 2, -1, 0), 4, 16),  # none at all
        (ids(0, 3, 0, 1), 4, 16),
        (ids(1100, 8, 0, 3), 3, 2),  # more pairs than one block of the sort, and tiles
    ]
    if ON_GPU:
        cases += [(ids(tokens, 8, 0, 256), 256, 16) for tokens in (1, 32, 8191)]
        cases += [(ids(8192, 8, 100, 101), 256, 128), (ids(8192, 8, -1, 128), 128, 64)]
    return cases


@pytest.mark.parametrize("case", range(len(sort_cases(torch.device("cpu")))))
def test_sort_and_tiles(case: int, kernel_device: torch.device) -> None:
    ids, num_experts, block_m = sort_cases(kernel_device)[case]
    out = SortedPairs.allocate(ids.numel(), num_experts, block_m, kernel_device)
    for tensor in (out.pairs, out.offsets, out.tiles, out.num_tiles, out.counts):
        tensor.fill_(-77)
    assert sort_by_expert(ids, num_experts, block_m, out=out) is out
    pairs, offsets = reference.sort_by_expert(ids, num_experts)
    assert torch.equal(out.offsets, offsets)
    assert torch.equal(out.pairs[: pairs.numel()], pairs)
    assert (out.pairs[pairs.numel() :] == -77).all()
    assert torch.equal(out.counts, offsets.diff())
    expected = tiles_by_hand(offsets, block_m)
    assert out.num_tiles.item() == len(expected)
    assert out.tiles[:, : len(expected)].T.tolist() == expected
    assert (out.tiles[:, len(expected) :] == -77).all()


def test_there_is_room_for_all_tiles_and_for_no_more() -> None:
    # All counts of three experts of up to 7 rows, in tiles of 3.
    needed: dict[int, int] = {}
    for counts in itertools.product(range(8), repeat=3):
        tiles = sum(-(-count // 3) for count in counts)
        needed[sum(counts)] = max(tiles, needed.get(sum(counts), 0))
    for pairs, tiles in needed.items():
        assert tiles <= max_tiles(pairs, 3, 3)
        if pairs <= 15:  # beyond, 7 rows of each leave no choice
            assert max_tiles(pairs, 3, 3) <= tiles + 1


def test_repeats_give_identical_bits(kernel_device: torch.device, num_repeats: int) -> None:
    config, num_experts = (LLADA2, 256) if ON_GPU else (GROUPED, 8)
    logits = random((300 if ON_GPU else 9, num_experts), kernel_device)
    bias = bias_of(config, num_experts, kernel_device)
    first = route(logits, config, bias=bias)
    rows = sort_by_expert(first.ids, num_experts, 16)
    for _ in range(num_repeats):
        again = route(logits, config, bias=bias)
        assert torch.equal(again.ids, first.ids)
        assert torch.equal(again.weights, first.weights)
        rows_again = sort_by_expert(again.ids, num_experts, 16)
        assert torch.equal(rows_again.pairs, rows.pairs)


def test_misfits_are_named(kernel_device: torch.device) -> None:
    logits = torch.zeros(2, 8, device=kernel_device)
    with pytest.raises(ValueError, match=r"float32 \[T, E\] is needed"):
        route(logits.half(), SOFTMAX)
    with pytest.raises(ValueError, match="logits must have contiguous rows"):
        route(logits.new_zeros(8, 2).T, SOFTMAX)
    with pytest.raises(ValueError, match="top_k is 9; allowed are 1 to 8"):
        route(logits, RouterConfig(scoring="softmax", top_k=9))
    with pytest.raises(ValueError, match="top_k is 3; allowed are 1 to 2"):
        route(logits, RouterConfig(scoring="sigmoid", top_k=3, n_group=4))
    with pytest.raises(ValueError, match="topk_group is 5; allowed are 1 to 4"):
        route(logits, RouterConfig(scoring="sigmoid", top_k=3, n_group=4, topk_group=5))
    with pytest.raises(ValueError, match="n_group is 2; softmax allows 1 only"):
        route(logits, RouterConfig(scoring="softmax", top_k=2, n_group=2))
    with pytest.raises(ValueError, match="n_group is 3 of 6 experts; both must be powers of two"):
        route(logits[:, :6], RouterConfig(scoring="sigmoid", top_k=1, n_group=3))
    with pytest.raises(ValueError, match="bias: softmax allows none"):
        route(logits, SOFTMAX, bias=logits[0])
    with pytest.raises(ValueError, match=r"bias: .*float32 \(8,\) is needed"):
        route(logits, GROUPED, bias=logits[0, :4])
    with pytest.raises(ValueError, match=r"slots: .*int32 \(2,\) is needed"):
        route(logits, SOFTMAX, slots=logits[:, 0])
    with pytest.raises(ValueError, match=r"out\.ids must be \(2, 3\)"):
        route(logits, SOFTMAX, out=poisoned(1, 3, kernel_device))
    with pytest.raises(ValueError, match=r"ids must be \[T, top_k\]"):
        sort_by_expert(logits[0].int(), 8, 16)
    with pytest.raises(ValueError, match=r"ids: torch\.float32"):
        sort_by_expert(logits, 8, 16)
    with pytest.raises(ValueError, match="both must be at least 1"):
        sort_by_expert(logits.int(), 0, 16)
    small = SortedPairs.allocate(16, 8, 16, kernel_device)
    with pytest.raises(ValueError, match=r"out\.block_m is 16; 15 is asked for"):
        sort_by_expert(logits.int(), 8, 15, out=small)
    with pytest.raises(ValueError, match=r"out\.pairs: .*\(24,\) is needed"):
        sort_by_expert(logits.new_zeros(3, 8).int(), 8, 16, out=small)
