"""Tiles, splits and pipeline depth by shape; knows no tensor."""

from dataclasses import dataclass

import torch
import triton

_NUM_SMS = 132  # of an H200; another number costs balance only
_PROGRAMS_PER_SM = 2
_MIN_BLOCKS = 4  # of depth per split: fewer do not fill the pipeline
_MAX_SPLIT_K = 8


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Meta-parameters of one launch; powers of two except `split_k` and `num_stages`."""

    block_n: int
    block_k: int
    split_k: int
    num_warps: int
    num_stages: int


def block_rows(m: int) -> int:
    """Rows of the tile that holds `m` rows: at least the 16 of a tensor-core operand."""
    return max(16, 1 << (m - 1).bit_length())


def tuning_for(m: int, n: int, k: int, dtype: torch.dtype) -> Tuning:
    """Meta-parameters for x [m, k] and weight [n, k]."""
    if dtype == torch.float32:  # no tensor cores: small tiles, or the operands leave the registers
        return Tuning(
            block_n=32, block_k=32, split_k=_split_k(n, k, 32, 32), num_warps=4, num_stages=3
        )
    # To be measured. Every stage holds a piece of weight (16 KiB) and one of x; two programs with
    # all their stages fit on an SM.
    return Tuning(
        block_n=64,
        block_k=128,
        split_k=_split_k(n, k, 64, 128),
        num_warps=4,
        num_stages=3 if block_rows(m) == 64 else 4,
    )


def _split_k(n: int, k: int, block_n: int, block_k: int) -> int:
    """The most splits, of 1, 2, 4 and 8, with which all programs are resident at once."""
    tiles = triton.cdiv(n, block_n)
    split_k = 1
    while (
        split_k < _MAX_SPLIT_K
        and 2 * split_k * tiles <= _PROGRAMS_PER_SM * _NUM_SMS
        and 2 * split_k * _MIN_BLOCKS * block_k <= k
    ):
        split_k *= 2
    return split_k
