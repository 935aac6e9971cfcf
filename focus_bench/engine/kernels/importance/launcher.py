"""Launches the importance kernels: two launches for both layers, nothing read on the host."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.importance.kernel import (
    importance_delta_kernel,
    partial_importance_kernel,
)

MAX_BLOCK_LENGTH = 64
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class MaskedTokens:
    """The masked tokens that a step feeds, sequence after sequence, ascending in position.

    `cu_masked` int32 [n + 1]: bounds of the sequences (equal bounds: nothing to compute). Per
    masked token, int32 [at least cu_masked[n]]: `token`, its row among the fed tokens; `slot`, its
    row of the key cache; `column`, its position in the block, < `block_length` <= 64. What lies
    behind cu_masked[n] is never used.
    """

    cu_masked: Tensor
    token: Tensor
    slot: Tensor
    column: Tensor
    block_length: int

    @property
    def num_sequences(self) -> int:
        """Sequences n."""
        return self.cu_masked.shape[0] - 1


def workspace_shape(masked: MaskedTokens, num_kv_heads: int) -> tuple[int, int, int, int]:
    """Shape of the float32 workspace of partial sums."""
    return (masked.num_sequences, 2, num_kv_heads, masked.block_length)


def importance_delta(
    q0: Tensor,
    q1: Tensor,
    keys0: Tensor,
    keys1: Tensor,
    masked: MaskedTokens,
    *,
    out: Tensor,
    workspace: Tensor | None = None,
) -> Tensor:
    """Importance of layer 1 minus that of layer 0 at each masked token (paper, Eq. 2).

    q0, q1 [T, Hq, D] are the layers' queries of the fed tokens, keys0, keys1 [slots, Hkv, D] their
    key caches, both after QK norm and RoPE; their rows (dim 0) may be strided. `out` float32
    [n, block_length] is overwritten whole: 0 where no masked token is. Equal inputs give equal
    bits. Raises ValueError for shapes, dtypes or strides that the kernels do not take.
    """
    num_q_heads, head_dim = q0.shape[1:]
    num_kv_heads = keys0.shape[1]
    _check(q0, q1, keys0, keys1, masked, out)
    if masked.num_sequences == 0:
        return out
    shape = workspace_shape(masked, num_kv_heads)
    if workspace is None:
        workspace = torch.empty(shape, dtype=torch.float32, device=q0.device)
    elif workspace.shape != shape or workspace.dtype is not torch.float32:
        raise ValueError(f"workspace: {tuple(workspace.shape)}, needs float32 {shape}")
    elif not workspace.is_contiguous():
        raise ValueError("workspace: not contiguous")
    # 64 rows are 16 queries of 4 heads. float32 has no tensor cores, and its tiles are twice as
    # large: short pieces of the head dimension keep them in registers.
    block_d = 32 if q0.dtype is torch.float32 else 128
    block_j = triton.next_power_of_2(max(16, masked.block_length))
    partial_importance_kernel[(masked.num_sequences, num_kv_heads, 2)](
        q0,
        q1,
        keys0,
        keys1,
        q0.stride(0),
        q1.stride(0),
        keys0.stride(0),
        keys1.stride(0),
        masked.cu_masked,
        masked.token,
        masked.slot,
        workspace,
        head_dim**-0.5,
        masked.block_length,
        GROUP=num_q_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_R=64,
        BLOCK_J=block_j,
        BLOCK_D=min(block_d, triton.next_power_of_2(head_dim)),
        num_warps=4,
        num_stages=1,
    )
    importance_delta_kernel[(masked.num_sequences,)](
        workspace,
        masked.cu_masked,
        masked.column,
        out,
        num_kv_heads,
        masked.block_length,
        BLOCK_J=block_j,
        num_warps=1,
    )
    return out


def _check(
    q0: Tensor, q1: Tensor, keys0: Tensor, keys1: Tensor, masked: MaskedTokens, out: Tensor
) -> None:
    if not 1 <= masked.block_length <= MAX_BLOCK_LENGTH:
        raise ValueError(f"block_length: {masked.block_length}, needs 1 to {MAX_BLOCK_LENGTH}")
    for name, q in (("q0", q0), ("q1", q1)):
        if q.shape != q0.shape or q.ndim != 3:
            raise ValueError(f"{name}: {tuple(q.shape)}, needs q0's shape [T, Hq, D]")
    for name, keys in (("keys0", keys0), ("keys1", keys1)):
        if keys.ndim != 3 or keys.shape[1:] != keys0.shape[1:]:
            raise ValueError(f"{name}: {tuple(keys.shape)}, needs [slots, Hkv, D] as keys0")
    if keys0.shape[2] != q0.shape[2] or q0.shape[1] % keys0.shape[1]:
        raise ValueError(f"keys0: {tuple(keys0.shape)} does not serve q0: {tuple(q0.shape)}")
    if not 16 <= q0.shape[2] <= 256:
        raise ValueError(f"head_dim: {q0.shape[2]}, needs 16 to 256")
    for name, tensor in (("q0", q0), ("q1", q1), ("keys0", keys0), ("keys1", keys1)):
        if tensor.dtype is not q0.dtype or tensor.dtype not in DTYPES:
            raise ValueError(f"{name}: {tensor.dtype}, needs one of {DTYPES}, as q0")
        if tensor.stride(2) != 1 or tensor.stride(1) != tensor.shape[2]:
            raise ValueError(f"{name}: strides {tensor.stride()}, needs contiguous heads")
    for name in ("cu_masked", "token", "slot", "column"):
        index: Tensor = getattr(masked, name)
        if index.dtype is not torch.int32 or index.ndim != 1 or not index.is_contiguous():
            raise ValueError(f"{name}: {index.dtype} {tuple(index.shape)}, needs int32 [.]")
        if index.device != q0.device:
            raise ValueError(f"{name}: on {index.device}, needs {q0.device}")
    shape = (masked.num_sequences, masked.block_length)
    if out.shape != shape or out.dtype is not torch.float32 or not out.is_contiguous():
        raise ValueError(f"out: {out.dtype} {tuple(out.shape)}, needs contiguous float32 {shape}")
