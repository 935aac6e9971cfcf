"""The linear layers of SDAR-8B at batch 1 beside cuBLAS through torch."""

import itertools

import torch

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.skinny_linear.launcher import skinny_linear

# Name, columns, depth, and whether a residual is added.
LAYERS = (
    ("qkv", 6144, 4096, False),
    ("out", 4096, 4096, True),
    ("gate_up", 24576, 4096, False),
    ("down", 4096, 12288, True),
)
NUM_ROWS = (10, 16, 20, 32, 64)
_CACHE_BYTES = 60e6  # second-level cache of an H200


def cases() -> list[Case]:
    """Rows of FOCUS after and before eviction at batch 1, one baseline block, and two."""
    return [case(rows, *layer) for layer in LAYERS for rows in NUM_ROWS]


def case(num_rows: int, name: str, columns: int, depth: int, with_residual: bool) -> Case:
    """One shape; calls take turns at weights that no cache holds together."""
    x = torch.randn(num_rows, depth, device="cuda", dtype=torch.bfloat16)
    copies = 2 + int(2 * _CACHE_BYTES / (2 * columns * depth))
    weights = [
        torch.randn(columns, depth, device="cuda", dtype=torch.bfloat16) for _ in range(copies)
    ]
    out = torch.empty(num_rows, columns, device="cuda", dtype=torch.bfloat16)
    residual = torch.randn_like(out) if with_residual else None
    ours_next, theirs_next = itertools.cycle(weights), itertools.cycle(weights)

    def theirs() -> torch.Tensor:
        weight = next(theirs_next).T
        if residual is None:
            return torch.mm(x, weight, out=out)
        return torch.addmm(residual, x, weight, out=out)

    return Case(
        name=f"{name} M {num_rows}",
        ours=lambda: skinny_linear(x, next(ours_next), residual=residual, out=out),
        others={"torch": theirs},
        num_bytes=weights[0].nbytes + x.nbytes + (2 if with_residual else 1) * out.nbytes,
        flops=2.0 * num_rows * columns * depth,
    )
