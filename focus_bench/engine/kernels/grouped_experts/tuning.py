"""Tiles, warps and pipeline depth by the number of rows of an expert; knows no tensor."""

from dataclasses import dataclass

import torch
import triton

MIN_BLOCK_M = 16
MAX_BLOCK_M = 128


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


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Meta-parameters of both products, which share their tiles of `block_m` rows.

    `group_tiles`: tiles that run together on one block of columns.
    """

    block_m: int
    group_tiles: int
    gate_up: ProductTuning
    down: ProductTuning


def tuning_for(num_pairs: int, num_experts: int, dtype: torch.dtype) -> Tuning:
    """Meta-parameters for `num_pairs` rows spread over `num_experts`.

    Tiles hold half as many rows again as the mean expert has, so that most experts read their
    weights once. Chosen by registers and shared memory as compiled for sm_90 by Triton 3.6,
    without spills; to be measured.
    """
    mean = -(-num_pairs // num_experts)
    wanted = triton.next_power_of_2(mean + mean // 2)
    block_m = int(min(max(wanted, MIN_BLOCK_M), MAX_BLOCK_M))
    if dtype == torch.float32:  # no tensor cores: operands in registers, small tiles only
        small = ProductTuning(block_n=32, block_k=32, num_warps=4, num_stages=2, programs_per_sm=4)
        return Tuning(block_m=min(block_m, 32), group_tiles=1, gate_up=small, down=small)
    return Tuning(
        block_m=block_m,
        group_tiles=4 if block_m == MAX_BLOCK_M else 1,
        gate_up=_GATE_UP[block_m],
        down=_DOWN[block_m],
    )


def _product(block_n: int, block_k: int, warps: int, stages: int, programs: int) -> ProductTuning:
    return ProductTuning(
        block_n=block_n,
        block_k=block_k,
        num_warps=warps,
        num_stages=stages,
        programs_per_sm=programs,
    )


# By rows of a tile. Up to 32 rows the weights are streamed, and blocks are deep.
_GATE_UP = {
    16: _product(64, 128, warps=4, stages=3, programs=2),
    32: _product(64, 64, warps=4, stages=5, programs=2),
    64: _product(64, 64, warps=4, stages=4, programs=2),
    128: _product(128, 64, warps=8, stages=4, programs=1),
}
_DOWN = {
    16: _product(64, 128, warps=4, stages=4, programs=2),
    32: _product(64, 128, warps=4, stages=4, programs=2),
    64: _product(128, 64, warps=4, stages=4, programs=2),
    128: _product(64, 64, warps=4, stages=4, programs=2),
}
