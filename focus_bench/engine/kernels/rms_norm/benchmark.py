"""RMS norm at SDAR-8B's width beside torch's, with and without the residual."""

import torch
from torch.nn import functional

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.rms_norm.launcher import rms_norm

WIDTH = 4096
EPS = 1e-6
NUM_ROWS = (10, 320, 2458, 8192)


def cases() -> list[Case]:
    """Rows of FOCUS at batch 1, 32 and 256 (suffix), and of a whole batch of 256 blocks."""
    return [case(rows, with_residual) for with_residual in (False, True) for rows in NUM_ROWS]


def case(num_rows: int, with_residual: bool) -> Case:
    """One shape; buffers are made once, so that no allocation is timed in ours or theirs."""
    x = torch.randn(num_rows, WIDTH, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(WIDTH, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    residual = torch.zeros_like(x) if with_residual else None

    def theirs() -> torch.Tensor:
        rows = x if residual is None else residual.add_(x)
        return functional.rms_norm(rows, (WIDTH,), weight, EPS)

    return Case(
        name=f"T {num_rows}{' + residual' if with_residual else ''}",
        ours=lambda: rms_norm(x, weight, EPS, residual=residual, out=out),
        others={"torch": theirs},
        num_bytes=(4 if with_residual else 2) * x.nbytes,
    )
