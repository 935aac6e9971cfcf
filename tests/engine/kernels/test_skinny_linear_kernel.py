"""Linear layer of few rows: equal to the product on every shape and split, and repeatable."""

import pytest
import torch
from torch import Tensor

from focus_bench.engine.kernels.skinny_linear import reference
from focus_bench.engine.kernels.skinny_linear.launcher import MAX_ROWS, skinny_linear
from focus_bench.engine.kernels.skinny_linear.tuning import Tuning, block_rows, tuning_for
from focus_bench.engine.kernels.skinny_linear.workspace import SplitWorkspace, shared_workspace

ON_GPU = torch.cuda.is_available()
# Rows, columns, depth.
SHAPES = [(1, 1, 1), (1, 64, 128), (7, 70, 130), (16, 33, 64), (33, 96, 100), (64, 5, 257)]
if ON_GPU:
    MODEL_SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288))
    SHAPES += [(rows, n, k) for rows in (1, 10, 20, 32, 64) for n, k in MODEL_SHAPES]
    SHAPES += [(32, 4097, 4095), (17, 1000, 4104), (48, 151936, 256)]
SPLITS = (1, 2, 3, 8)


def random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def inputs(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and residual; the product is about as large as the residual."""
    rows, columns, depth = shape
    weight = random((columns, depth), torch.float32, device, 2) / depth**0.5
    x, residual = random((rows, depth), dtype, device, 1), random((rows, columns), dtype, device, 3)
    return x, weight.to(dtype), residual


def exact_linear(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    product = x.double() @ weight.double().T
    return product if residual is None else product + residual.double()


def assert_close(ours: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """`exact` is float64; one rounding to the dtype is allowed, and what float32 sums lose.

    Tensor cores cut off where float32 units round.
    """
    assert ours.dtype == dtype
    if dtype is torch.float32:
        torch.testing.assert_close(ours.double(), exact, rtol=3e-6, atol=3e-5)
    else:
        half_step = torch.finfo(dtype).eps / 2
        torch.testing.assert_close(ours.double(), exact, rtol=1.01 * half_step, atol=1e-4)


def split_tuning(split_k: int) -> Tuning:
    return Tuning(block_n=32, block_k=32, split_k=split_k, num_warps=4, num_stages=3)


def poisoned_workspace(device: torch.device) -> SplitWorkspace:
    workspace = SplitWorkspace.allocate(device, num_partials=1 << 17, num_tiles=8)
    workspace.partials.fill_(torch.nan)
    return workspace


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_product(
    shape: tuple[int, int, int], kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    x, weight, residual = inputs(shape, kernel_dtype, kernel_device)
    out = torch.full_like(residual, torch.nan)
    assert skinny_linear(x, weight, out=out) is out
    assert_close(out, exact_linear(x, weight), kernel_dtype)
    ours = skinny_linear(x, weight, residual=residual)
    assert_close(ours, exact_linear(x, weight, residual), kernel_dtype)
    expected = reference.skinny_linear(x, weight, residual=residual)
    assert_close(expected, exact_linear(x, weight, residual), kernel_dtype)


@pytest.mark.parametrize("split_k", SPLITS)
def test_splits_meet_in_a_poisoned_workspace(
    split_k: int, kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    # Of 8 splits 3 have no depth to sum; 70 columns are 3 tiles, the last of them ragged.
    x, weight, residual = inputs((17, 70, 130), kernel_dtype, kernel_device)
    workspace = poisoned_workspace(kernel_device)
    out = torch.full_like(residual, torch.nan)
    skinny_linear(
        x, weight, residual=residual, out=out, workspace=workspace, tuning=split_tuning(split_k)
    )
    assert_close(out, exact_linear(x, weight, residual), kernel_dtype)
    assert not workspace.counters.any()
    used = 3 * split_k * 32 * 32 if split_k > 1 else 0
    assert workspace.partials[used:].isnan().all()
    assert workspace.partials[:used].isfinite().all()


def test_half_precision(kernel_device: torch.device) -> None:
    x, weight, residual = inputs((9, 40, 72), torch.float16, kernel_device)
    out = skinny_linear(x, weight, residual=residual)
    assert_close(out, exact_linear(x, weight, residual), torch.float16)


@pytest.mark.parametrize("split_k", [1, 3])
def test_residual_in_place(
    split_k: int, kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    x, weight, residual = inputs((7, 40, 100), kernel_dtype, kernel_device)
    kept = x.clone(), weight.clone()
    expected = skinny_linear(x, weight, residual=residual, tuning=split_tuning(split_k))
    before = residual.clone()
    assert torch.equal(residual, before)
    skinny_linear(x, weight, residual=residual, out=residual, tuning=split_tuning(split_k))
    assert torch.equal(residual, expected)
    assert torch.equal(x, kept[0])
    assert torch.equal(weight, kept[1])


@pytest.mark.parametrize("split_k", [1, 3])
def test_strided_rows_and_nothing_outside_is_read_or_written(
    split_k: int, kernel_device: torch.device
) -> None:
    def strided(rows: int, columns: int, seed: int) -> Tensor:
        whole = torch.full((2 * rows + 1, columns + 5), torch.nan, device=kernel_device)
        part = whole[1::2, 3 : 3 + columns]
        part.copy_(random((rows, columns), torch.float32, kernel_device, seed))
        return part

    x, weight, residual, out = (
        strided(5, 50, 1),
        strided(37, 50, 2),
        strided(5, 37, 3),
        strided(5, 37, 4),
    )
    skinny_linear(x, weight, residual=residual, out=out, tuning=split_tuning(split_k))
    exact = exact_linear(x, weight, residual)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    assert out._base is not None
    assert out._base.isnan().sum() == 11 * 42 - 5 * 37


@pytest.mark.parametrize("split_k", [1, 3])
def test_repeats_give_identical_bits(
    split_k: int, kernel_dtype: torch.dtype, kernel_device: torch.device, num_repeats: int
) -> None:
    shape = (32, 4096, 4096) if ON_GPU else (5, 40, 130)
    x, weight, residual = inputs(shape, kernel_dtype, kernel_device)
    workspace = SplitWorkspace.allocate(kernel_device)
    first = skinny_linear(
        x, weight, residual=residual, workspace=workspace, tuning=split_tuning(split_k)
    )
    for _ in range(num_repeats):
        workspace.partials.fill_(torch.nan)
        again = skinny_linear(
            x, weight, residual=residual, workspace=workspace, tuning=split_tuning(split_k)
        )
        assert torch.equal(again, first)
    assert not workspace.counters.any()


def test_a_row_does_not_depend_on_the_others(
    kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    x, weight, _ = inputs((9, 40, 100), kernel_dtype, kernel_device)
    first = skinny_linear(x, weight)
    x[4] = torch.nan
    second = skinny_linear(x, weight)
    assert second[4].isnan().all()
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(second[others], first[others])


@pytest.mark.skipif(not ON_GPU, reason="graphs are captured on a GPU only")
def test_replays_of_a_graph_leave_the_counters_at_zero(kernel_device: torch.device) -> None:
    x, weight, residual = inputs((32, 4096, 12288), torch.bfloat16, kernel_device)
    assert tuning_for(32, 4096, 12288, torch.bfloat16).split_k > 1
    workspace = SplitWorkspace.allocate(kernel_device)
    out = torch.empty_like(residual)

    def call() -> None:
        skinny_linear(x, weight, residual=residual, out=out, workspace=workspace)

    call()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
        call()
    for seed in range(5):
        x.copy_(random((32, 12288), torch.bfloat16, kernel_device, seed))
        out.fill_(torch.nan)
        graph.replay()
        assert_close(out, exact_linear(x, weight, residual), torch.bfloat16)
        assert not workspace.counters.any()


@pytest.mark.skipif(not ON_GPU, reason="graphs are captured on a GPU only")
def test_no_workspace_is_made_while_capturing(kernel_device: torch.device) -> None:
    buffer = torch.ones(4, device=kernel_device)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        buffer.zero_()  # an empty graph would warn
        with pytest.raises(RuntimeError, match="before a graph is captured"):
            SplitWorkspace.allocate(kernel_device)


def test_no_rows_and_no_columns(kernel_device: torch.device) -> None:
    x = torch.empty(0, 64, device=kernel_device)
    assert skinny_linear(x, x.new_ones(8, 64)).shape == (0, 8)
    assert skinny_linear(x.new_ones(3, 64), x).shape == (3, 0)


def test_tunings_of_a_large_model_fill_the_device_and_fit_the_shared_workspace() -> None:
    workspace = shared_workspace(torch.device("cpu"))
    for n, k in ((4096, 4096), (24576, 4096), (4096, 12288)):  # those that SDAR-8B uses
        for m in (1, 16, 17, 64):
            tuning = tuning_for(m, n, k, torch.bfloat16)
            assert n % tuning.block_n == 0
            assert k % tuning.block_k == 0
            tiles = n // tuning.block_n
            programs = tiles * tuning.split_k
            # All resident at once on the 132 multiprocessors of an H200: so many with all their
            # stages, and what CUDA reserves, fit on one.
            stage = 2 * tuning.block_k * (tuning.block_n + block_rows(m))
            resident = 227 * 1024 // (tuning.num_stages * stage + 1024)
            assert 120 <= programs <= 132 * resident
            if tuning.split_k > 1:
                floats = programs * tuning.block_n * block_rows(m)
                workspace.check(floats, tiles, torch.device("cpu"))


def test_misfits_are_named(kernel_device: torch.device) -> None:
    x = torch.ones(2, 96, device=kernel_device)
    weight = x.new_ones(40, 96)
    with pytest.raises(ValueError, match=f"x has 65 rows; allowed are 0 to {MAX_ROWS}"):
        skinny_linear(x.new_ones(65, 96), weight)
    with pytest.raises(ValueError, match="K at least 1"):
        skinny_linear(x[:, :0], weight[:, :0])
    with pytest.raises(ValueError, match=r"x is torch\.int32"):
        skinny_linear(x.int(), weight.int())
    with pytest.raises(ValueError, match=r"weight must be \[N, 96\]"):
        skinny_linear(x, x.new_ones(40, 95))
    with pytest.raises(ValueError, match="weight must have contiguous rows"):
        skinny_linear(x, x.new_ones(96, 40).T)
    with pytest.raises(ValueError, match=r"residual must be \[2, 40\]"):
        skinny_linear(x, weight, residual=x.new_ones(1, 40))
    with pytest.raises(ValueError, match=r"out must be \[2, 40\]"):
        skinny_linear(x, weight, out=x.new_ones(2, 40).half())
    with pytest.raises(ValueError, match="residual is on meta"):
        skinny_linear(x, weight, residual=torch.empty(2, 40, device="meta"))
    small = SplitWorkspace.allocate(kernel_device, num_partials=64, num_tiles=2)
    with pytest.raises(ValueError, match=r"workspace\.partials has 64 places; needed 3072"):
        skinny_linear(x, weight, workspace=small, tuning=split_tuning(3))
    small = SplitWorkspace.allocate(kernel_device, num_tiles=1)
    with pytest.raises(ValueError, match=r"workspace\.counters has 1 places; needed 2"):
        skinny_linear(x, weight, workspace=small, tuning=split_tuning(3))
