"""Tiles, splits and pipeline depth by shape; knows no tensor."""

from dataclasses import dataclass

import torch
import triton

_NUM_SMS = 132  # of an H200; another number costs balance only
_PROGRAMS_PER_SM = 3
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
    # Float32 uses no tensor cores, and rows that are not aligned arrive element by element: there
    # the operands lie in registers, and only small tiles fit.
    if dtype == torch.float32 or k % 16 != 0:
        block_n, block_k, num_stages = 32, 32, 3
    elif block_rows(m) == 64:
        block_n, block_k, num_stages = 64, 64, 4
    else:
        return _measured(n, k, block_rows(m))
    return Tuning(
        block_n=block_n,
        block_k=block_k,
        split_k=_split_k(triton.cdiv(n, block_n), triton.cdiv(k, block_k)),
        num_warps=4,
        num_stages=num_stages,
    )


def _measured(n: int, k: int, rows: int) -> Tuning:
    """The fastest of eleven or twelve for the shapes of SDAR-8B on an H200, 16 and 32 rows."""
    if n >= 64 * 2 * _NUM_SMS:  # [24576, 4096]: 48.8 us, cuBLAS 49.2 (32 rows)
        return Tuning(block_n=64, block_k=128, split_k=1, num_warps=4, num_stages=3)
    if k < 8192:  # [4096, 4096] with residual: 11.8 us, cuBLAS 16.0
        return Tuning(block_n=64, block_k=128, split_k=2, num_warps=4, num_stages=6)
    if rows == 16:  # [4096, 12288] with residual: 27.1 us, cuBLAS 31.0
        return Tuning(block_n=64, block_k=64, split_k=4, num_warps=4, num_stages=6)
    # The same with 32 rows: 28.5 us, cuBLAS 30.6.
    return Tuning(block_n=64, block_k=256, split_k=2, num_warps=8, num_stages=4)


def _split_k(tiles: int, blocks: int) -> int:
    """Splits with which all programs are resident at once, and the longest is shortest."""
    most = min(_MAX_SPLIT_K, _PROGRAMS_PER_SM * _NUM_SMS // tiles, blocks // _MIN_BLOCKS)
    return min(range(1, max(1, most) + 1), key=lambda split: (-(-blocks // split), split))
