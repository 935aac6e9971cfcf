"""SiLU times up at SDAR-8B's width beside torch's two kernels."""

import torch

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.silu_mul import reference
from focus_bench.engine.kernels.silu_mul.launcher import silu_mul

WIDTH = 12288
NUM_ROWS = (10, 320, 2458, 8192)


def cases() -> list[Case]:
    """Rows of FOCUS at batch 1, 32 and 256 (suffix), and of a whole batch of 256 blocks."""
    return [case(num_rows) for num_rows in NUM_ROWS]


def case(num_rows: int) -> Case:
    """One shape."""
    gate_up = torch.randn(num_rows, 2 * WIDTH, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(num_rows, WIDTH, device="cuda", dtype=torch.bfloat16)
    return Case(
        name=f"T {num_rows}",
        ours=lambda: silu_mul(gate_up, out=out),
        others={"torch": lambda: reference.silu_mul(gate_up)},
        num_bytes=gate_up.nbytes + out.nbytes,
    )
