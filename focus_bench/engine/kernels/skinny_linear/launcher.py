"""Checks and launches linear layers of few rows; knows no model."""

import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.skinny_linear.kernel import skinny_linear_kernel
from focus_bench.engine.kernels.skinny_linear.tuning import Tuning, block_rows, tuning_for
from focus_bench.engine.kernels.skinny_linear.workspace import SplitWorkspace, shared_workspace

MAX_ROWS = 64
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    *,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    workspace: SplitWorkspace | None = None,
    tuning: Tuning | None = None,
) -> Tensor:
    """Return x [M, K] times the transpose of `weight` [N, K], plus `residual` [M, N] if given.

    M is at most MAX_ROWS. Sums are float32 and rounded once, after the residual; the order of
    summation depends on the shape and the tuning only, never on the run. `out` [M, N] may be
    `residual`, else it must overlap no input. Rows may be strided. Without a `workspace` the
    device's shared one is used: launches on several streams need one each. ValueError if shapes,
    dtypes, devices or layouts do not fit.
    """
    num_rows, num_columns = _check(x, weight)
    if out is None:
        out = torch.empty((num_rows, num_columns), device=x.device, dtype=x.dtype)
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor is None:
            continue
        if tensor.shape != (num_rows, num_columns) or tensor.dtype != x.dtype:
            raise ValueError(f"{name} must be [{num_rows}, {num_columns}] of {x.dtype}")
        _check_layout(name, tensor, x.device)
    if num_rows == 0 or num_columns == 0:
        return out
    depth = x.shape[1]
    if tuning is None:
        tuning = tuning_for(num_rows, num_columns, depth, x.dtype)
    block_m = block_rows(num_rows)
    tiles = triton.cdiv(num_columns, tuning.block_n)
    partials = counters = None
    if tuning.split_k > 1:
        if workspace is None:
            workspace = shared_workspace(x.device)
        workspace.check(tiles * tuning.split_k * tuning.block_n * block_m, tiles, x.device)
        partials, counters = workspace.partials, workspace.counters
    skinny_linear_kernel[(tiles * tuning.split_k,)](
        x,
        weight,
        residual,
        out,
        partials,
        counters,
        num_rows,
        num_columns,
        depth,
        x.stride(0),
        weight.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        BLOCK_M=block_m,
        BLOCK_N=tuning.block_n,
        BLOCK_K=tuning.block_k,
        SPLIT_K=tuning.split_k,
        EVEN_K=depth % tuning.block_k == 0,
        HAS_RESIDUAL=residual is not None,
        num_warps=tuning.num_warps,
        num_stages=tuning.num_stages,
    )
    return out


def _check(x: Tensor, weight: Tensor) -> tuple[int, int]:
    """The numbers of rows and columns of the product."""
    if x.ndim != 2 or x.shape[1] < 1:
        raise ValueError(f"x must be [M, K] with K at least 1, not {tuple(x.shape)}")
    if x.shape[0] > MAX_ROWS:
        raise ValueError(f"x has {x.shape[0]} rows; allowed are 0 to {MAX_ROWS}")
    if x.dtype not in DTYPES:
        raise ValueError(f"x is {x.dtype}; allowed are {', '.join(map(str, DTYPES))}")
    if weight.ndim != 2 or weight.shape[1] != x.shape[1] or weight.dtype != x.dtype:
        raise ValueError(f"weight must be [N, {x.shape[1]}] of {x.dtype}")
    _check_layout("x", x, x.device)
    _check_layout("weight", weight, x.device)
    return x.shape[0], weight.shape[0]


def _check_layout(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}; x is on {device}")
    if tensor.stride(1) != 1 and tensor.shape[1] > 1:
        raise ValueError(f"{name} must have contiguous rows, not strides {tensor.stride()}")
