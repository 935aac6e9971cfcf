"""The experts' feed-forward: equal to a loop over experts on every shape, and repeatable."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor

from focus_bench.engine.kernels.expert_routing.launcher import Routing
from focus_bench.engine.kernels.grouped_experts import launcher, reference
from focus_bench.engine.kernels.grouped_experts.candidates import DOWN, GATE_UP
from focus_bench.engine.kernels.grouped_experts.launcher import ExpertWeights, grouped_experts
from focus_bench.engine.kernels.grouped_experts.tuning import ProductTuning, Tuning
from focus_bench.engine.kernels.grouped_experts.workspace import ExpertWorkspace

ON_GPU = torch.cuda.is_available()
# Tokens, top_k, experts, expert width, hidden size.
Shape = tuple[int, int, int, int, int]
SHAPES: list[Shape] = [(1, 1, 1, 16, 16), (5, 2, 4, 40, 72), (20, 3, 8, 33, 48), (19, 8, 8, 16, 33)]
if ON_GPU:
    SHAPES += [(tokens, 8, 256, 512, 2048) for tokens in (1, 32, 300, 2048)]  # LLaDA2.0-mini
    SHAPES += [(257, 8, 128, 768, 2048), (300, 8, 256, 1024, 4096), (8192, 8, 16, 512, 1024)]
RAGGED: Shape = (20, 3, 6, 40, 72)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What one call takes."""

    x: Tensor
    weights: ExpertWeights
    routing: Routing
    shared: Tensor
    residual: Tensor


def random(shape: tuple[int, ...], device: torch.device, seed: int) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device)


def inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Routing that favours some experts; outputs are about as large as the residual."""
    tokens, top_k, experts, width, hidden = shape
    liking = random((tokens, experts), device, 1) + random((experts,), device, 2)
    ids = liking.argsort(dim=1, descending=True)[:, :top_k].to(torch.int32).contiguous()
    gate_up = random((experts, 2 * width, hidden), device, 3) * hidden**-0.5
    down = random((experts, hidden, width), device, 4) * width**-0.5
    return Inputs(
        x=random((tokens, hidden), device, 5).to(dtype),
        weights=ExpertWeights(gate_up=gate_up.to(dtype), down=down.to(dtype)),
        routing=Routing(ids=ids, weights=random((tokens, top_k), device, 6).sigmoid()),
        shared=random((tokens, hidden), device, 7).to(dtype),
        residual=random((tokens, hidden), device, 8).to(dtype),
    )


def exact(given: Inputs, *addends: Tensor) -> Tensor:
    """In float64, choice by choice with each token's own weights: no sort, no loop over experts."""
    out = sum((addend.double() for addend in addends), torch.zeros_like(given.x).double())
    tokens, top_k = given.routing.ids.shape
    for choice in range(top_k):
        for chunk in range(0, tokens, 64):
            part = slice(chunk, chunk + 64)
            expert = given.routing.ids[part, choice].long()
            gate_up = torch.einsum(
                "th,tfh->tf", given.x[part].double(), given.weights.gate_up[expert].double()
            )
            gate, up = gate_up.chunk(2, dim=1)
            rows = torch.einsum(
                "tf,thf->th", functional.silu(gate) * up, given.weights.down[expert].double()
            )
            out[part] += rows * given.routing.weights[part, choice, None].double()
    return out


def assert_close(ours: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """`expected` is float64; bfloat16 rounds activations, outputs of experts and the sum."""
    assert ours.dtype == dtype
    if dtype is torch.float32:
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=2e-5)
    else:
        assert (ours.double() - expected).norm() <= 5e-3 * expected.norm()
        torch.testing.assert_close(ours.double(), expected, rtol=2e-2, atol=5e-2)


def workspace_for(
    given: Inputs, *, partial_dtype: torch.dtype | None = None, spare_pairs: int = 0
) -> ExpertWorkspace:
    """Poisoned memory: NaN, and indices far outside."""
    workspace = ExpertWorkspace.allocate(
        num_pairs=given.routing.num_pairs + spare_pairs,
        num_experts=given.weights.num_experts,
        expert_width=given.weights.expert_width,
        hidden_size=given.weights.hidden_size,
        dtype=given.x.dtype,
        device=given.x.device,
        partial_dtype=partial_dtype,
    )
    for indices in (
        workspace.pairs,
        workspace.offsets,
        workspace.tiles,
        workspace.num_tiles,
        workspace.counts,
    ):
        indices.fill_(2**30)
    for values in (workspace.activations, workspace.partials):
        values.fill_(torch.nan)
    return workspace


def tuning(block_m: int, group_tiles: int) -> Tuning:
    product = ProductTuning(block_n=32, block_k=32, num_warps=4, num_stages=2, programs_per_sm=1)
    return Tuning(block_m=block_m, group_tiles=group_tiles, gate_up=product, down=product)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_sum_over_choices(
    shape: Shape, kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    given = inputs(shape, kernel_dtype, kernel_device)
    out = torch.full_like(given.x, torch.nan)
    workspace = workspace_for(given)
    result = grouped_experts(given.x, given.weights, given.routing, out=out, workspace=workspace)
    assert result is out
    expected = exact(given)
    assert_close(out, expected, kernel_dtype)
    plain = reference.grouped_experts(given.x, given.weights, given.routing)
    assert_close(plain, expected, kernel_dtype)


@pytest.mark.parametrize(("block_m", "group_tiles"), [(16, 1), (16, 3), (32, 2)])
@pytest.mark.parametrize("programs", [2, 1000])
def test_tiles_of_any_size_and_order(
    block_m: int,
    group_tiles: int,
    programs: int,
    kernel_dtype: torch.dtype,
    kernel_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With fewer programs than pieces of work they take turns; with more, some have none.
    monkeypatch.setattr(launcher, "num_sms", lambda device: programs)
    given = inputs(
        (40, 3, 3, 40, 72) if ON_GPU else (20, 3, 3, 40, 48), kernel_dtype, kernel_device
    )
    ours = grouped_experts(
        given.x,
        given.weights,
        given.routing,
        workspace=workspace_for(given),
        tuning=tuning(block_m, group_tiles),
    )
    assert_close(ours, exact(given), kernel_dtype)


@pytest.mark.parametrize(("block_m", "place"), [(16, 1), (16, -1), (64, -1)])
def test_candidates_change_rounding_only(
    block_m: int, place: int, kernel_device: torch.device
) -> None:
    dtype = torch.bfloat16 if ON_GPU else torch.float32  # float32 has small tiles on a GPU
    given = inputs((40, 3, 3, 256, 512) if ON_GPU else (20, 3, 3, 40, 48), dtype, kernel_device)
    candidate = Tuning(
        block_m=block_m,
        group_tiles=4,
        gate_up=GATE_UP[block_m][place],
        down=DOWN[block_m][place],
    )
    ours = grouped_experts(
        given.x, given.weights, given.routing, workspace=workspace_for(given), tuning=candidate
    )
    assert_close(ours, exact(given), dtype)


def test_shared_expert_and_residual(kernel_dtype: torch.dtype, kernel_device: torch.device) -> None:
    given = inputs(RAGGED, kernel_dtype, kernel_device)
    x, weights, routing = given.x, given.weights, given.routing
    both = grouped_experts(x, weights, routing, shared=given.shared, residual=given.residual)
    assert_close(both, exact(given, given.shared, given.residual), kernel_dtype)
    plain = reference.grouped_experts(
        x, weights, routing, shared=given.shared, residual=given.residual
    )
    assert_close(plain, exact(given, given.shared, given.residual), kernel_dtype)
    assert_close(
        grouped_experts(x, weights, routing, shared=given.shared),
        exact(given, given.shared),
        kernel_dtype,
    )
    # In place of either.
    for target in (given.residual, given.shared):
        shared, residual = given.shared.clone(), given.residual.clone()
        in_place = residual if target is given.residual else shared
        grouped_experts(x, weights, routing, shared=shared, residual=residual, out=in_place)
        assert torch.equal(in_place, both)


def test_pairs_without_an_expert_and_experts_without_pairs_are_not_read(
    kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    given = inputs(RAGGED, kernel_dtype, kernel_device)
    ids = given.routing.ids
    ids[ids == 2] = -1  # no token goes to expert 2
    ids[3] = -1
    ids[4] = torch.tensor([-1, 6, 1], dtype=torch.int32)  # there is no expert 6
    outside = (ids < 0) | (ids > 5)
    given.routing.weights[outside] = 0.0
    given.x[3] = 0.0
    ids_inside = replace(given, routing=replace(given.routing, ids=ids.clamp(0, 5)))
    expected = exact(ids_inside, given.residual)
    given.routing.weights[outside] = torch.nan
    given.x[3] = torch.nan
    given.weights.gate_up[2] = torch.nan
    given.weights.down[2] = torch.nan
    ours = grouped_experts(
        given.x,
        given.weights,
        given.routing,
        residual=given.residual,
        workspace=workspace_for(given),
    )
    assert_close(ours, expected, kernel_dtype)
    assert torch.equal(ours[3], given.residual[3])
    ids.fill_(-1)
    nothing = grouped_experts(given.x, given.weights, given.routing)
    assert (nothing == 0).all()


def test_an_expert_chosen_twice_counts_twice(kernel_device: torch.device) -> None:
    given = inputs(RAGGED, torch.float32, kernel_device)
    given.routing.ids[:, 1] = given.routing.ids[:, 0]
    ours = grouped_experts(given.x, given.weights, given.routing)
    assert_close(ours, exact(given), torch.float32)


def test_partials_in_float32_round_once(
    kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    given = inputs(RAGGED, kernel_dtype, kernel_device)
    workspace = workspace_for(given, partial_dtype=torch.float32, spare_pairs=7)
    ours = grouped_experts(given.x, given.weights, given.routing, workspace=workspace)
    assert_close(ours, exact(given), kernel_dtype)
    pairs = given.routing.num_pairs
    used = workspace.partials[: pairs * given.weights.hidden_size].view(pairs, -1)
    total = used.view(*given.routing.ids.shape, -1).double().sum(dim=1)
    rtol = 1e-5 if kernel_dtype is torch.float32 else 4.1e-3
    torch.testing.assert_close(ours.double(), total, rtol=rtol, atol=1e-5)
    assert workspace.partials[pairs * given.weights.hidden_size :].isnan().all()
    assert workspace.activations[pairs * given.weights.expert_width :].isnan().all()


def test_half_precision(kernel_device: torch.device) -> None:
    given = inputs((7, 2, 3, 24, 32), torch.float16, kernel_device)
    ours = grouped_experts(given.x, given.weights, given.routing, residual=given.residual)
    assert_close(ours, exact(given, given.residual), torch.float16)


def test_strided_rows_and_nothing_outside_is_read_or_written(kernel_device: torch.device) -> None:
    given = inputs((5, 2, 4, 40, 50), torch.float32, kernel_device)

    def strided(values: Tensor) -> Tensor:
        whole = torch.full((11, 55), torch.nan, device=kernel_device)
        part = whole[1::2, 3:53]
        part.copy_(values)
        return part

    x, shared, residual = map(strided, (given.x, given.shared, given.residual))
    out = strided(torch.zeros_like(given.x))
    grouped_experts(x, given.weights, given.routing, shared=shared, residual=residual, out=out)
    assert_close(out, exact(given, given.shared, given.residual), torch.float32)
    assert out._base is not None
    assert out._base.isnan().sum() == 11 * 55 - 5 * 50


def test_repeats_give_identical_bits(
    kernel_dtype: torch.dtype, kernel_device: torch.device, num_repeats: int
) -> None:
    given = inputs((300, 8, 64, 512, 1024) if ON_GPU else RAGGED, kernel_dtype, kernel_device)
    first = grouped_experts(given.x, given.weights, given.routing)
    for _ in range(num_repeats):
        workspace = workspace_for(given)
        again = grouped_experts(given.x, given.weights, given.routing, workspace=workspace)
        assert torch.equal(again, first)


def test_a_token_does_not_depend_on_the_others(
    kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    given = inputs(RAGGED, kernel_dtype, kernel_device)
    first = grouped_experts(given.x, given.weights, given.routing)
    given.x[4] = torch.nan
    second = grouped_experts(given.x, given.weights, given.routing)
    assert second[4].isnan().all()
    others = [token for token in range(20) if token != 4]
    assert torch.equal(second[others], first[others])


@pytest.mark.skipif(not ON_GPU, reason="graphs are captured on a GPU only")
def test_a_graph_replays_with_other_ids(kernel_device: torch.device) -> None:
    given = inputs((64, 8, 32, 256, 512), torch.bfloat16, kernel_device)
    out = torch.empty_like(given.x)
    grouped_experts(given.x, given.weights, given.routing, out=out)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_experts(given.x, given.weights, given.routing, out=out)
    for seed in range(5):
        liking = random((64, 32), kernel_device, 100 + seed)
        given.routing.ids.copy_(liking.argsort(dim=1)[:, :8])
        if seed == 4:
            given.routing.ids.copy_(torch.arange(8, device=kernel_device).expand(64, 8))
        given.x.copy_(random((64, 512), kernel_device, 200 + seed))
        out.fill_(torch.nan)
        graph.replay()
        assert_close(out, exact(given), torch.bfloat16)


def test_no_tokens(kernel_device: torch.device) -> None:
    given = inputs((0, 3, 4, 16, 32), torch.float32, kernel_device)
    assert grouped_experts(given.x, given.weights, given.routing).shape == (0, 32)


def test_misfits_are_named(kernel_device: torch.device) -> None:
    given = inputs((2, 3, 4, 16, 32), torch.float32, kernel_device)
    x, weights, routing = given.x, given.weights, given.routing
    with pytest.raises(ValueError, match=r"x must be \(2, 32\), not \(1, 32\)"):
        grouped_experts(x[:1], weights, routing)
    with pytest.raises(ValueError, match=r"x: torch\.float64"):
        grouped_experts(x.double(), weights, routing)
    with pytest.raises(ValueError, match=r"gate_up: torch\.float32 .*torch\.float16"):
        grouped_experts(x.half(), weights, routing)
    with pytest.raises(ValueError, match=r"gate_up: .*\(4, 32, 32\) is needed"):
        grouped_experts(x, replace(weights, gate_up=weights.gate_up[:3]), routing)
    down = weights.down.mT.contiguous().mT
    with pytest.raises(ValueError, match="down must be contiguous"):
        grouped_experts(x, replace(weights, down=down), routing)
    with pytest.raises(ValueError, match=r"down must be \[E, h, F\]"):
        grouped_experts(x, replace(weights, down=weights.down[0]), routing)
    with pytest.raises(ValueError, match=r"ids: torch\.int64"):
        grouped_experts(x, weights, replace(routing, ids=routing.ids.long()))
    with pytest.raises(ValueError, match=r"weights: .*\(2, 3\) is needed"):
        grouped_experts(x, weights, replace(routing, weights=routing.weights[:, :2]))
    with pytest.raises(ValueError, match=r"residual must be \(2, 32\)"):
        grouped_experts(x, weights, routing, residual=x[:1])
    with pytest.raises(ValueError, match="shared must have contiguous rows"):
        grouped_experts(x, weights, routing, shared=x.new_zeros(32, 2).T)
    with pytest.raises(ValueError, match="out is on meta"):
        grouped_experts(x, weights, routing, out=torch.empty(2, 32, device="meta"))
    with pytest.raises(ValueError, match=r"tuning\.block_m is 8; at least 16"):
        grouped_experts(x, weights, routing, tuning=tuning(8, 1))
    workspace = workspace_for(given)
    small = replace(workspace, activations=workspace.activations[:-1])
    with pytest.raises(ValueError, match=r"workspace\.activations has 95 places; needed 96"):
        grouped_experts(x, weights, routing, workspace=small)
    other = replace(workspace, partials=workspace.partials.double())
    with pytest.raises(ValueError, match=r"workspace\.partials must be flat"):
        grouped_experts(x, weights, routing, workspace=other)
