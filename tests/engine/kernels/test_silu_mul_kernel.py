"""SiLU-times-up kernel: equal to torch on odd and strided shapes, at the extremes, repeatable."""

import pytest
import torch
from torch import Tensor

from focus_bench.engine.kernels.silu_mul import reference
from focus_bench.engine.kernels.silu_mul.launcher import silu_mul

ON_GPU = torch.cuda.is_available()
SHAPES = [(1, 1), (1, 64), (3, 99), (2, 2049), (4, 5000)]
if ON_GPU:
    SHAPES += [(10, 12288), (2458, 12288), (70_000, 96), (1, 100_003)]


def random(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return (3 * torch.randn(shape, generator=generator)).to(device=device, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_definition(
    shape: tuple[int, int], kernel_dtype: torch.dtype, kernel_device: torch.device
) -> None:
    num_rows, width = shape
    gate_up = random((num_rows, 2 * width), kernel_dtype, kernel_device)
    out = torch.full(shape, torch.nan, device=kernel_device, dtype=kernel_dtype)
    assert silu_mul(gate_up, out=out) is out
    gate, up = gate_up.double().chunk(2, dim=-1)
    exact = gate * torch.sigmoid(gate) * up
    if kernel_dtype is torch.float32:
        torch.testing.assert_close(out.double(), exact, rtol=4e-6, atol=1e-6)
    else:
        assert (out.double() - exact).norm() <= 1e-2 * exact.norm()
    torch.testing.assert_close(out, reference.silu_mul(gate_up))


def test_strided_rows_and_nothing_outside_is_written(kernel_device: torch.device) -> None:
    around = torch.full((7, 90), 5.0, device=kernel_device)
    gate_up = around[1:6:2, 3:77]
    gate_up.copy_(random((3, 74), torch.float32, kernel_device))
    target = torch.full((7, 50), torch.nan, device=kernel_device)
    silu_mul(gate_up, out=target[::3, 5:42])
    expected = reference.silu_mul(gate_up)
    torch.testing.assert_close(target[::3, 5:42].contiguous(), expected)
    assert target.isnan().sum() == 7 * 50 - 3 * 37


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # the interpreter's numpy
def test_extreme_gates(kernel_device: torch.device) -> None:
    gate = torch.tensor([[-1e4, -200.0, -88.0, 0.0, 88.0, 1e4, torch.inf]], device=kernel_device)
    out = silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    torch.testing.assert_close(out, torch.nn.functional.silu(gate))


def test_repeats_and_no_rows(
    kernel_dtype: torch.dtype, kernel_device: torch.device, num_repeats: int
) -> None:
    gate_up = random((9, 600), kernel_dtype, kernel_device)
    first = silu_mul(gate_up)
    assert torch.equal(silu_mul(gate_up[2:4]), first[2:4])
    for _ in range(num_repeats):
        assert torch.equal(silu_mul(gate_up), first)
    assert silu_mul(gate_up[:0]).shape == (0, 300)


def test_bad_arguments_are_named(kernel_device: torch.device) -> None:
    gate_up = torch.ones(2, 8, device=kernel_device)
    with pytest.raises(ValueError, match="two equal halves"):
        silu_mul(gate_up[:, :7])
    with pytest.raises(ValueError, match="out must be"):
        silu_mul(gate_up, out=gate_up)
    with pytest.raises(ValueError, match="gate_up must have contiguous rows"):
        silu_mul(gate_up.new_ones(8, 2).T)
