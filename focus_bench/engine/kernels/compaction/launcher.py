"""Launches the compaction kernel: one launch for all states of a step, nothing read on the host."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.compaction.kernel import compact_kernel

MAX_BLOCK_LENGTH = 64
MAX_ROPE_WIDTH = 1024
# A program moves BLOCK_K rows of BLOCK_W elements at a time, 16 KB of bf16 for 128 threads, so each
# has eight 16-byte loads under way. A FOCUS step keeps some 10 rows a sequence. On an H200 within
# 27 % of the bytes' floor for 2,657 rows of 5,143.
BLOCK_K = 16
BLOCK_W = 512
NUM_WARPS = 4


@dataclass(frozen=True, kw_only=True)
class CompactionStates:
    """What layers >= 1 need of each of the T fed tokens.

    `hidden` [T, h] and `q` [T, Hq, D], rows (dim 0) may be strided; `cos`, `sin` [T, width], rows
    may be strided; `slots`, `positions` int32 [T]. Each floating array has a dtype of its own.
    """

    hidden: Tensor
    q: Tensor
    cos: Tensor
    sin: Tensor
    slots: Tensor
    positions: Tensor


@dataclass(frozen=True, kw_only=True)
class CompactionOutputs:
    """The states of the kept tokens, contiguous, with room for C >= their number.

    `cu_kept` int32 [n + 1] bounds the sequences; `head_rows` int32 [C]: for each kept masked token,
    in order, its row among the kept; `totals` int32 [2]: kept tokens, and kept masked tokens.
    Behind them `slots` is -1 and `head_rows` 0; the other arrays are not written there.
    """

    hidden: Tensor
    q: Tensor
    cos: Tensor
    sin: Tensor
    slots: Tensor
    positions: Tensor
    cu_kept: Tensor
    head_rows: Tensor
    totals: Tensor

    @classmethod
    def empty(
        cls, states: CompactionStates, num_sequences: int, capacity: int
    ) -> "CompactionOutputs":
        """Uninitialised outputs for `capacity` kept tokens of such states."""

        def rows_like(state: Tensor) -> Tensor:
            return torch.empty((capacity, *state.shape[1:]), dtype=state.dtype, device=state.device)

        def int32(length: int) -> Tensor:
            return torch.empty(length, dtype=torch.int32, device=states.slots.device)

        return cls(
            hidden=rows_like(states.hidden),
            q=rows_like(states.q),
            cos=rows_like(states.cos),
            sin=rows_like(states.sin),
            slots=rows_like(states.slots),
            positions=rows_like(states.positions),
            cu_kept=int32(num_sequences + 1),
            head_rows=int32(capacity),
            totals=int32(2),
        )


def compact(
    kept: Tensor,
    fed: Tensor,
    masked: Tensor,
    num_kept: Tensor,
    num_head: Tensor,
    cu_fed: Tensor,
    states: CompactionStates,
    outputs: CompactionOutputs,
) -> None:
    """Gather the kept tokens' states, sequence after sequence, in ascending position.

    `kept`, `fed`, `masked` uint8 [n, B], kept and masked within fed; `num_kept` and `num_head`
    int32 [n], the kept positions and the masked ones among them; `cu_fed` int32 [n + 1]: sequence
    r's fed tokens are rows cu_fed[r].. of the states, in ascending position. Raises ValueError for
    shapes, dtypes or strides that the kernel does not take.
    """
    _check_masks(kept, fed, masked, num_kept, num_head, cu_fed)
    _check_states(states, outputs, fed.shape[0])
    num_sequences, block_length = fed.shape
    hidden_width = states.hidden.shape[1]
    q_width = states.q.shape[1] * states.q.shape[2]
    rope_width = states.cos.shape[1]
    hidden_chunks = triton.cdiv(hidden_width, BLOCK_W)
    q_chunks = triton.cdiv(q_width, BLOCK_W)
    compact_kernel[(max(num_sequences, 1), hidden_chunks + q_chunks + 1)](
        kept,
        fed,
        masked,
        num_kept,
        num_head,
        cu_fed,
        states.hidden,
        states.q,
        states.cos,
        states.sin,
        states.slots,
        states.positions,
        outputs.hidden,
        outputs.q,
        outputs.cos,
        outputs.sin,
        outputs.slots,
        outputs.positions,
        outputs.cu_kept,
        outputs.head_rows,
        outputs.totals,
        states.hidden.stride(0),
        states.q.stride(0),
        states.cos.stride(0),
        states.sin.stride(0),
        num_sequences,
        block_length,
        outputs.slots.shape[0],
        HIDDEN=hidden_width,
        Q_WIDTH=q_width,
        ROPE=rope_width,
        HIDDEN_CHUNKS=hidden_chunks,
        Q_CHUNKS=q_chunks,
        BLOCK_B=triton.next_power_of_2(max(16, block_length)),
        BLOCK_N=256,
        BLOCK_K=BLOCK_K,
        BLOCK_W=BLOCK_W,
        BLOCK_ROPE=triton.next_power_of_2(rope_width),
        num_warps=NUM_WARPS,
    )


def _check_masks(
    kept: Tensor, fed: Tensor, masked: Tensor, num_kept: Tensor, num_head: Tensor, cu_fed: Tensor
) -> None:
    if fed.ndim != 2 or not 1 <= fed.shape[1] <= MAX_BLOCK_LENGTH:
        raise ValueError(f"fed: {tuple(fed.shape)}, needs [n, B], B from 1 to {MAX_BLOCK_LENGTH}")
    n = fed.shape[0]
    for name, tensor, dtype, shape in (
        ("kept", kept, torch.uint8, tuple(fed.shape)),
        ("fed", fed, torch.uint8, tuple(fed.shape)),
        ("masked", masked, torch.uint8, tuple(fed.shape)),
        ("num_kept", num_kept, torch.int32, (n,)),
        ("num_head", num_head, torch.int32, (n,)),
        ("cu_fed", cu_fed, torch.int32, (n + 1,)),
    ):
        _check(name, tensor, dtype, shape)


def _check_states(states: CompactionStates, outputs: CompactionOutputs, num_sequences: int) -> None:
    num_fed = states.slots.shape[0]
    capacity = outputs.slots.shape[0]
    for name, ndim in (("hidden", 2), ("q", 3), ("cos", 2), ("sin", 2)):
        state: Tensor = getattr(states, name)
        output: Tensor = getattr(outputs, name)
        if state.ndim != ndim or state.shape[0] != num_fed:
            raise ValueError(f"{name}: {tuple(state.shape)}, needs {num_fed} rows as slots")
        if not state[:1].is_contiguous():
            raise ValueError(f"{name}: strides {state.stride()}, needs contiguous rows")
        _check(f"outputs.{name}", output, state.dtype, (capacity, *state.shape[1:]))
    if states.sin.shape != states.cos.shape or states.cos.shape[1] > MAX_ROPE_WIDTH:
        raise ValueError(
            f"sin: {tuple(states.sin.shape)}, needs cos's shape {tuple(states.cos.shape)}, "
            f"at most {MAX_ROPE_WIDTH} wide"
        )
    for name, tensor, length in (
        ("slots", states.slots, num_fed),
        ("positions", states.positions, num_fed),
        ("outputs.slots", outputs.slots, capacity),
        ("outputs.positions", outputs.positions, capacity),
        ("head_rows", outputs.head_rows, capacity),
        ("cu_kept", outputs.cu_kept, num_sequences + 1),
        ("totals", outputs.totals, 2),
    ):
        _check(name, tensor, torch.int32, (length,))


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype is not dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
        raise ValueError(
            f"{name}: {tensor.dtype} {tuple(tensor.shape)}, needs contiguous {dtype} {shape}"
        )
