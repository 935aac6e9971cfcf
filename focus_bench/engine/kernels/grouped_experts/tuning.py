"""Tiles, warps and pipeline depth by the number of rows of an expert; knows no tensor."""

import math
from dataclasses import dataclass

import torch

MIN_BLOCK_M = 16


@dataclass(frozen=True, kw_only=True)
class ProductTuning:
    """Meta-parameters of one grouped product: tiles of `block_n` rows of the weight.

    `programs_per_sm`: how many fit at once, by registers and shared memory.
    """

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    programs_per_sm: int

    def __str__(self) -> str:
        return (
            f"{self.block_n}x{self.block_k} warps {self.num_warps} stages {self.num_stages}"
            f" programs {self.programs_per_sm}"
        )


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Meta-parameters of both products, which share their tiles of `block_m` rows.

    `group_tiles`: tiles that run together on one block of columns.
    """

    block_m: int
    group_tiles: int
    gate_up: ProductTuning
    down: ProductTuning

    def __str__(self) -> str:
        return (
            f"m {self.block_m} group {self.group_tiles}, gate_up {self.gate_up}, down {self.down}"
        )


def product(block_n: int, block_k: int, warps: int, stages: int, programs: int) -> ProductTuning:
    """One line of a table."""
    return ProductTuning(
        block_n=block_n,
        block_k=block_k,
        num_warps=warps,
        num_stages=stages,
        programs_per_sm=programs,
    )


# Up to how many rows the mean expert has, and the choice there. Tiles hold about half as many rows
# again, so that most experts read their weights once; up to 32 rows the weights are streamed, and
# blocks are deep. The fastest of sweep.py on an H200 with Triton 3.6, at means of 1, 2, 8, 16, 64,
# 128, 256 and 512 rows; for means of 22 to 43 none was timed, by registers and shared memory.
TABLE = (
    (
        4,
        Tuning(
            block_m=16,
            group_tiles=1,
            gate_up=product(64, 64, warps=4, stages=3, programs=4),
            down=product(128, 128, warps=4, stages=3, programs=2),
        ),
    ),
    (
        11,
        Tuning(
            block_m=16,
            group_tiles=1,
            gate_up=product(64, 128, warps=4, stages=3, programs=2),
            down=product(128, 64, warps=4, stages=3, programs=4),
        ),
    ),
    (
        21,
        Tuning(
            block_m=32,
            group_tiles=1,
            gate_up=product(128, 128, warps=8, stages=3, programs=1),
            down=product(128, 64, warps=4, stages=5, programs=2),
        ),
    ),
    (
        43,
        Tuning(
            block_m=64,
            group_tiles=1,
            gate_up=product(64, 64, warps=4, stages=4, programs=2),
            down=product(128, 64, warps=4, stages=4, programs=2),
        ),
    ),
    (
        96,
        Tuning(
            block_m=128,
            group_tiles=4,
            gate_up=product(128, 64, warps=8, stages=4, programs=1),
            down=product(128, 64, warps=4, stages=3, programs=2),
        ),
    ),
    (
        math.inf,
        Tuning(
            block_m=128,
            group_tiles=1,
            gate_up=product(128, 64, warps=8, stages=4, programs=1),
            down=product(128, 64, warps=4, stages=3, programs=2),
        ),
    ),
)


def tuning_for(num_pairs: int, num_experts: int, dtype: torch.dtype) -> Tuning:
    """Meta-parameters for `num_pairs` rows spread over `num_experts`: the table's."""
    mean = -(-num_pairs // num_experts)
    chosen = next(tuning for most, tuning in TABLE if mean <= most)
    if dtype == torch.float32:  # no tensor cores: operands in registers, small tiles only
        small = product(32, 32, warps=4, stages=2, programs=4)
        return Tuning(block_m=min(chosen.block_m, 32), group_tiles=1, gate_up=small, down=small)
    return chosen
