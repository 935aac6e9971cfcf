"""SiLU of the gate times up in plain torch."""

from torch import Tensor
from torch.nn import functional


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [T, F] of gate_up [T, 2 F], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up
