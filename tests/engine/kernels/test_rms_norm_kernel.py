"""RMS norm kernel: equal to torch on every kind of width, in place, strided, and repeatable."""

import pytest
import torch
from torch import Tensor

from focus_bench.engine.kernels.rms_norm import reference
from focus_bench.engine.kernels.rms_norm.launcher import rms_norm
from focus_bench.engine.models import layers

EPS = 1e-6
ON_GPU = torch.cuda.is_available()
SHAPES = [(1, 1), (1, 64), (3, 99), (5, 256), (2, 4097), (70, 33)]
if ON_GPU:
    SHAPES += [(1, 4096), (2458, 4096), (8192, 4096), (313, 12289), (3, 65536), (1000, 7)]


def random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)


def assert_close(ours: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """`exact` is float64; bfloat16 is compared by the norm of the difference."""
    assert ours.dtype == dtype
    if dtype is torch.float32:
        torch.testing.assert_close(ours.double(), exact, rtol=2e-6, atol=1e-6)
    else:
        assert (ours.double() - exact).norm() <= 1e-2 * exact.norm()


def exact_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide * weight.double() / (wide.square().mean(dim=-1, keepdim=True) + EPS).sqrt()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_definition(
    shape: tuple[int, int], kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    x = random(shape, kernel_dtype, kernel_device, 1)
    weight = random(shape[1:], kernel_dtype, kernel_device, 2)
    out = torch.full_like(x, torch.nan)
    assert rms_norm(x, weight, EPS, out=out) is out
    assert_close(out, exact_norm(x, weight), kernel_dtype)
    reference_out, _ = reference.rms_norm(x, weight, EPS)
    torch.testing.assert_close(out, reference_out)
    torch.testing.assert_close(out, layers.rms_norm(x, weight, EPS))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_residual_is_added_in_place_and_normed(
    shape: tuple[int, int], kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    x = random(shape, kernel_dtype, kernel_device, 3)
    residual = random(shape, kernel_dtype, kernel_device, 4)
    weight = random(shape[1:], kernel_dtype, kernel_device, 5)
    normed, total = reference.rms_norm(x, weight, EPS, residual=residual)
    kept = x.clone()
    out = rms_norm(x, weight, EPS, residual=residual)
    assert torch.equal(residual, total)  # the very bits: one sum, one rounding
    assert torch.equal(x, kept)
    assert_close(out, exact_norm(total, weight), kernel_dtype)
    torch.testing.assert_close(out, normed)


def test_strided_rows_and_nothing_outside_is_read_or_written(kernel_device: torch.device) -> None:
    x, residual, out = (
        torch.full((7, 50), torch.nan, device=kernel_device)[1:6:2, 3:40] for _ in range(3)
    )
    x.copy_(random((3, 37), torch.float32, kernel_device, 6))
    residual.copy_(random((3, 37), torch.float32, kernel_device, 7))
    weight = random((37,), torch.float32, kernel_device, 8)
    normed, total = reference.rms_norm(x.clone(), weight, EPS, residual=residual.clone())
    rms_norm(x, weight, EPS, residual=residual, out=out)
    torch.testing.assert_close(out.contiguous(), normed)
    torch.testing.assert_close(residual.contiguous(), total)
    for tensor in (residual, out):
        assert tensor._base is not None
        assert tensor._base.isnan().sum() == 7 * 50 - 3 * 37


def test_output_may_be_the_input(kernel_device: torch.device) -> None:
    x = random((4, 40), torch.float32, kernel_device, 9)
    weight = random((40,), torch.float32, kernel_device, 10)
    expected = rms_norm(x, weight, EPS)
    rms_norm(x, weight, EPS, out=x)
    assert torch.equal(x, expected)


def test_a_row_does_not_depend_on_the_others_and_repeats(
    kernel_dtype: torch.dtype, kernel_device: torch.device, num_repeats: int
) -> None:
    x = random((9, 200), kernel_dtype, kernel_device, 11)
    weight = random((200,), kernel_dtype, kernel_device, 12)
    first = rms_norm(x, weight, EPS)
    assert torch.equal(rms_norm(x[4:6], weight, EPS), first[4:6])
    for _ in range(num_repeats):
        assert torch.equal(rms_norm(x, weight, EPS), first)


def test_no_rows(kernel_device: torch.device) -> None:
    x = torch.empty(0, 64, device=kernel_device)
    assert rms_norm(x, x.new_ones(64), EPS, residual=x).shape == (0, 64)


def test_rows_of_nan_stay_nan_and_harm_no_other(kernel_device: torch.device) -> None:
    x = random((4, 40), torch.float32, kernel_device, 13)
    weight = random((40,), torch.float32, kernel_device, 14)
    expected = rms_norm(x, weight, EPS)
    x[1, 3] = torch.nan
    out = rms_norm(x, weight, EPS)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2, 3]], expected[[0, 2, 3]])


def test_bad_arguments_are_named(kernel_device: torch.device) -> None:
    x = torch.ones(2, 8, device=kernel_device)
    with pytest.raises(ValueError, match="weight must be contiguous"):
        rms_norm(x, x.new_ones(9), EPS)
    with pytest.raises(ValueError, match="residual must be"):
        rms_norm(x, x.new_ones(8), EPS, residual=x.new_ones(3, 8))
    with pytest.raises(ValueError, match="x must have contiguous rows"):
        rms_norm(x.new_ones(8, 8).T, x.new_ones(8), EPS)
