"""Launches paged attention: checks the layout, chooses tiles and splits, allocates what is missing.

Knows shapes and host bounds only: how many queries and keys there are is read on the device, so
that a launch can be captured in a CUDA graph and replayed with others.
"""

import functools
import math
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.paged_attention.kernel import attention_kernel, combine_kernel

MAX_SPLITS = 32
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Costs of a program, of the second kernel and of each part that it reads, in blocks of keys; on the
# H200 one sequence of 32 queries and 650 keys takes 20.0 us unsplit, 9.3 us in 11 parts and 15.8 us
# in 21; 32 such sequences are slower in any number of parts.
PROGRAM_COST = 3.0
COMBINE_COST = 4.0
PART_COST = 0.5


@dataclass(frozen=True, kw_only=True)
class AttentionLayout:
    """Which rows of q belong to which of n sequences, and which cache slots hold their keys.

    On the device, int32: sequence s has the rows `cu_queries[s]`:`cu_queries[s + 1]` ([n + 1],
    ascending from 0), attends to its keys 0..`num_keys[s]` - 1 ([n]), and its key p lies in slot
    `page_table[s, p // page_size] * page_size + p % page_size` ([n, W], rows may be strided).
    On the host: no sequence has more than `max_queries` queries; `max_keys` is about the largest
    of `num_keys`, and decides only over how many programs the keys are spread.

    Block-causal prefill also gives `query_start` [n], int32, the position of each sequence's first
    query, and `block_length` B: a query at position p attends to the keys below
    min(num_keys, (p // B + 1) * B). Both are None in decode steps: every query, every key.
    """

    cu_queries: Tensor
    num_keys: Tensor
    page_table: Tensor
    page_size: int
    max_queries: int
    max_keys: int
    query_start: Tensor | None = None
    block_length: int | None = None


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Meta-parameters: tiles of `block_m` rows and `block_n` keys (powers of two, from 16).

    `peel`: keys that every row of a tile sees get a loop of their own, without masks: fewer
    instructions, but the loads of the second loop start only after the first has ended.
    `programs_per_sm`: how many fit at once, by registers and shared memory; for splits only.
    `max_registers` of a thread (None: the compiler's choice). `num_splits`: fixed, or None to
    choose by the host bounds.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    peel: bool
    programs_per_sm: int = 2
    max_registers: int | None = None
    num_splits: int | None = None


def tuning_for(dtype: torch.dtype, head_dim: int, rows: int, block_causal: bool) -> Tuning:
    """Meta-parameters by dtype, head_dim and the `rows` (queries * group) of a typical sequence.

    Registers and shared memory as compiled for sm_90 by Triton 3.6; in bf16 none of it spills. The
    16-bit tiles were the fastest of nine to twelve tried on an H200 with D = 128 (laboratory log).
    Page ids take a stage of their own before the keys and values they lead to, so 3
    stages keep two blocks of keys in shared memory, and 5 keep three.
    """
    dim = max(16, triton.next_power_of_2(head_dim))
    if dtype is torch.float32:  # no tensor cores: products of operands in registers, which spill
        small = rows <= 16 and dim <= 128
        return Tuning(
            block_m=16 if small else 32,
            block_n=32 if dim <= 64 else 16,
            num_warps=4 if small or dim <= 64 else 8,
            num_stages=2,
            peel=block_causal,
        )
    if dim > 128:
        return Tuning(
            block_m=64 if rows <= 64 else 128,
            block_n=32,
            num_warps=8,
            num_stages=3 if rows > 64 else 2,
            peel=block_causal,
            programs_per_sm=2 if rows <= 64 else 1,
        )
    if rows <= 64:  # bound by reading keys and values: two programs of 112 KB and 229 registers
        return Tuning(
            block_m=16 if rows <= 16 else 32 if rows <= 32 else 64,
            block_n=64,
            num_warps=4,
            num_stages=5 if rows > 32 else 3,
            peel=block_causal,
        )
    if block_causal:  # bound by arithmetic: two programs of 96 KB, at most 128 registers
        return Tuning(
            block_m=128, block_n=64, num_warps=8, num_stages=3, peel=True, max_registers=128
        )
    # Between both bounds: two programs of 80 KB, so that one multiplies while the other takes its
    # softmax; that needs at most 128 registers, and spills with 64 keys.
    return Tuning(block_m=128, block_n=32, num_warps=8, num_stages=5, peel=False, max_registers=128)


@functools.lru_cache(maxsize=4096)
def choose_splits(programs: int, key_blocks: int, capacity: int) -> int:
    """Over how many programs to spread the keys that one program would read.

    `programs` without splits, each of `key_blocks` blocks; `capacity` run at once. Minimises the
    number of waves times the blocks of a program, with what a program and the combination of the
    parts cost; of equals, the fewest.
    """
    if programs >= 4 * capacity:
        return 1

    def cost(splits: int) -> float:
        waves = -(-programs * splits // capacity)
        blocks = -(-key_blocks // splits)
        combine = COMBINE_COST + PART_COST * splits if splits > 1 else 0.0
        return waves * (blocks + PROGRAM_COST) + combine

    return min(range(1, max(1, min(MAX_SPLITS, key_blocks)) + 1), key=cost)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What a launch needs beside its tensors."""

    tuning: Tuning
    tiles: int
    num_splits: int


def _plan(q: Tensor, keys: Tensor, layout: AttentionLayout, tuning: Tuning | None) -> _Plan:
    num_tokens, num_q_heads, head_dim = q.shape
    num_kv_heads = keys.shape[1]
    group = num_q_heads // num_kv_heads
    sequences = layout.num_keys.shape[0]
    if tuning is None:
        # Where the bound is far above the mean, more than one small tile for some sequences costs
        # less than large tiles that are mostly empty; below 64 rows the tile is not worth cutting.
        mean = min(layout.max_queries, -(-num_tokens // max(1, sequences))) * group
        rows = min(layout.max_queries * group, max(64, mean))
        if sequences * num_kv_heads * -(-rows // 64) <= _num_sms(q.device):
            rows = min(rows, 64)  # too few tiles to fill the GPU: smaller ones
        tuning = tuning_for(q.dtype, head_dim, rows, layout.block_length is not None)
    tiles = max(1, -(-layout.max_queries * group // tuning.block_m))
    splits = tuning.num_splits
    if splits is None:
        key_blocks = -(-layout.max_keys // tuning.block_n)
        capacity = _num_sms(q.device) * tuning.programs_per_sm
        splits = choose_splits(sequences * tiles * num_kv_heads, key_blocks, capacity)
    return _Plan(tuning=tuning, tiles=tiles, num_splits=splits)


@functools.cache
def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return 132  # the interpreter splits as an H200 does
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def compile_prefill(
    keys: Tensor, values: Tensor, *, num_q_heads: int, page_size: int, block_length: int
) -> None:
    """Launch every variant of the block-causal kernel that chunks of whole blocks can need, over
    one block without keys, so that none is compiled in a step. `keys` and `values` as below.
    """
    zero = torch.zeros(1, dtype=torch.int32, device=keys.device)
    layout = AttentionLayout(
        cu_queries=torch.tensor([0, block_length], dtype=torch.int32, device=keys.device),
        num_keys=zero,
        page_table=zero[None],
        page_size=page_size,
        max_queries=block_length,
        max_keys=block_length,
        query_start=zero,
        block_length=block_length,
    )
    q = keys.new_zeros((block_length, num_q_heads, keys.shape[2]))
    block_rows = block_length * (num_q_heads // keys.shape[1])
    sizes = {64, *(min(block_rows << i, 65) for i in range(7))}  # beyond 64, all are alike
    for tuning in {tuning_for(q.dtype, q.shape[2], rows, True) for rows in sizes}:
        for i in range(MAX_SPLITS.bit_length()):  # the parts are combined by powers of two
            fixed = replace(tuning, num_splits=1 << i)
            paged_attention(q, keys, values, layout, tuning=fixed)


def workspace_size(
    q: Tensor, keys: Tensor, layout: AttentionLayout, tuning: Tuning | None = None
) -> int:
    """float32 elements that `paged_attention` needs of its workspace; 0 where keys are not split.

    Bounded by about MAX_SPLITS * T * Hq * (D + 1), and in practice by what the SMs hold at once:
    keys are split only while there are few tiles.
    """
    splits = _plan(q, keys, layout, tuning).num_splits
    return 0 if splits == 1 else splits * q.shape[0] * q.shape[1] * (q.shape[2] + 1)


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    layout: AttentionLayout,
    *,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
    tuning: Tuning | None = None,
) -> Tensor:
    """Attention output [T, Hq * D], in q's dtype, of q [T, Hq, D] over a paged cache.

    `keys` and `values` [slots, Hkv, D] are one layer's; query head h reads KV head
    h // (Hq / Hkv). Scores are scaled by D ** -0.5 and the softmax is taken in float32. Rows may be
    strided (dim 0 of q, keys, values and out). Rows of q beyond the last sequence's are not read
    and theirs of `out` not written; a query without keys gives zeros. `workspace`: flat float32,
    at least `workspace_size`; allocated if None and needed. Equal inputs give equal bits.
    Raises ValueError for tensors that do not fit together.
    """
    _check(q, keys, values, layout)
    num_tokens, num_q_heads, head_dim = q.shape
    num_kv_heads = keys.shape[1]
    sequences = layout.num_keys.shape[0]
    if out is None:
        out = q.new_empty((num_tokens, num_q_heads * head_dim))
    elif out.shape != (num_tokens, num_q_heads * head_dim) or out.dtype is not q.dtype:
        raise ValueError(f"out: {out.dtype} {tuple(out.shape)}; it must be like q's rows")
    elif out.stride(1) != 1:
        raise ValueError(f"out: strides {out.stride()}; the last must be 1")
    if num_tokens == 0 or sequences == 0 or layout.max_queries == 0:
        return out

    plan = _plan(q, keys, layout, tuning)
    chosen, splits = plan.tuning, plan.num_splits
    partial: Tensor | None = None
    log_sums: Tensor | None = None
    if splits > 1:
        num_sums = splits * num_tokens * num_q_heads
        size = num_sums * (head_dim + 1)
        if workspace is None:
            workspace = torch.empty(size, dtype=torch.float32, device=q.device)
        elif workspace.dtype is not torch.float32 or not workspace.is_contiguous():
            raise ValueError(f"workspace: {workspace.dtype}; it must be contiguous float32")
        elif workspace.numel() < size:
            raise ValueError(f"workspace: {workspace.numel()} elements; {size} are needed")
        flat = workspace.view(-1)
        partial, log_sums = flat[: num_sums * head_dim], flat[num_sums * head_dim : size]

    padded_dim = max(16, triton.next_power_of_2(head_dim))
    attention_kernel[(sequences * plan.tiles * num_kv_heads, splits)](
        q,
        keys,
        values,
        out,
        partial,
        log_sums,
        layout.cu_queries,
        layout.num_keys,
        layout.page_table,
        layout.query_start,
        q.stride(0),
        keys.stride(0),
        values.stride(0),
        out.stride(0),
        layout.page_table.stride(0),
        num_tokens,
        plan.tiles,
        splits,
        head_dim**-0.5 * math.log2(math.e),
        GROUP=num_q_heads // num_kv_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=padded_dim,
        PAGE_SIZE=layout.page_size,
        BLOCK_LENGTH=layout.block_length or 0,
        BLOCK_M=chosen.block_m,
        BLOCK_N=chosen.block_n,
        SPLIT=splits > 1,
        PEEL=chosen.peel,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
        maxnreg=chosen.max_registers,
    )
    if splits > 1:
        combine_kernel[(num_tokens, num_q_heads)](
            partial,
            log_sums,
            out,
            layout.cu_queries,
            out.stride(0),
            sequences,
            num_tokens,
            splits,
            NUM_Q_HEADS=num_q_heads,
            HEAD_DIM=head_dim,
            PADDED_DIM=padded_dim,
            PADDED_SPLITS=triton.next_power_of_2(splits),
            num_warps=1 if padded_dim <= 128 else 2,
        )
    return out


def _check(q: Tensor, keys: Tensor, values: Tensor, layout: AttentionLayout) -> None:
    if q.dim() != 3 or keys.dim() != 3 or keys.shape != values.shape:
        raise ValueError(
            f"q {tuple(q.shape)}, keys {tuple(keys.shape)}, values {tuple(values.shape)}: they must"
            " be [T, Hq, D], [slots, Hkv, D] and [slots, Hkv, D]"
        )
    if q.shape[2] != keys.shape[2] or q.shape[1] % keys.shape[1]:
        raise ValueError(
            f"q {tuple(q.shape)}, keys {tuple(keys.shape)}: D must be equal and Hq a multiple"
            " of Hkv"
        )
    if not 1 <= q.shape[2] <= 256:
        raise ValueError(f"q: head_dim {q.shape[2]}; 1 to 256 are supported")
    if q.dtype not in DTYPES or keys.dtype is not q.dtype or values.dtype is not q.dtype:
        raise ValueError(f"q {q.dtype}, keys {keys.dtype}, values {values.dtype}: all of {DTYPES}")
    for name, tensor in (("q", q), ("keys", keys), ("values", values)):
        if tensor.stride(2) != 1 or tensor.stride(1) != tensor.shape[2]:
            raise ValueError(f"{name}: strides {tensor.stride()}; a row must be contiguous")
    sequences = layout.num_keys.shape[0]
    indices = [
        ("cu_queries", layout.cu_queries, (sequences + 1,)),
        ("num_keys", layout.num_keys, (sequences,)),
    ]
    if layout.query_start is not None:
        indices.append(("query_start", layout.query_start, (sequences,)))
    for name, tensor, shape in indices:
        if tensor.dtype is not torch.int32 or tensor.shape != shape or not tensor.is_contiguous():
            raise ValueError(
                f"{name}: {tensor.dtype} {tuple(tensor.shape)}; it must be int32 {shape}"
            )
    table = layout.page_table
    if table.dtype is not torch.int32 or table.dim() != 2 or table.shape[0] != sequences:
        raise ValueError(f"page_table: {table.dtype} {tuple(table.shape)}; int32 [n, W] is needed")
    if table.shape[1] > 1 and table.stride(1) != 1:
        raise ValueError(f"page_table: strides {table.stride()}; the last must be 1")
    if layout.page_size < 1:
        raise ValueError(f"page_size: {layout.page_size}; it must be at least 1")
    if (layout.query_start is None) != (layout.block_length is None):
        raise ValueError("query_start and block_length: give both, or neither")
    if layout.block_length is not None and layout.block_length < 1:
        raise ValueError(f"block_length: {layout.block_length}; it must be at least 1")
