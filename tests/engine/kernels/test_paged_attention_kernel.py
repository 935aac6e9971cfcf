"""Paged attention against a plain loop: ragged, empty, poisoned, split, and always the same."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.paged_attention.launcher import (
    MAX_SPLITS,
    AttentionLayout,
    Tuning,
    choose_splits,
    compile_prefill,
    paged_attention,
    tuning_for,
    workspace_size,
)
from focus_bench.engine.kernels.paged_attention.reference import paged_attention_reference

ON_GPU = torch.cuda.is_available()
UNTOUCHED = 7.0
NUM_PADDING_ROWS = 3
gpu_only = pytest.mark.skipif(not ON_GPU, reason="too large for the interpreter, or needs a GPU")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`queries` and `keys` per sequence; `starts` and `block_length` for block-causal prefill."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    num_kv_heads: int = 2
    group: int = 4
    head_dim: int = 32
    page_size: int = 16
    starts: tuple[int, ...] | None = None
    block_length: int | None = None
    bound: int = 0  # of max_queries, beyond the largest


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What paged_attention takes; rows of no sequence and slots of no key hold NaN."""

    q: Tensor
    keys: Tensor
    values: Tensor
    layout: AttentionLayout


def build(shape: Shape, device: torch.device, dtype: torch.dtype) -> Inputs:
    generator = torch.Generator().manual_seed(5)
    count = len(shape.queries)
    pages_of = [-(-keys // shape.page_size) for keys in shape.keys]
    num_pages = sum(pages_of) + 3
    shuffled = torch.randperm(num_pages, generator=generator)
    # Entries beyond a sequence's pages name a page of NaN; columns beyond W belong to no one.
    width = max(1, *pages_of) + 1
    table = torch.full((count, width + 3), int(shuffled[-1]), dtype=torch.int32)
    size = (num_pages * shape.page_size, shape.num_kv_heads, shape.head_dim)
    keys, values = torch.full(size, torch.nan), torch.full(size, torch.nan)
    taken = 0
    for s, (num_keys, pages) in enumerate(zip(shape.keys, pages_of, strict=True)):
        table[s, :pages] = shuffled[taken : taken + pages]
        taken += pages
        positions = torch.arange(num_keys)
        page = table[s].long()[positions // shape.page_size]
        slots = page * shape.page_size + positions % shape.page_size
        keys[slots] = torch.randn((num_keys, *size[1:]), generator=generator)
        values[slots] = torch.randn((num_keys, *size[1:]), generator=generator)
    total = sum(shape.queries)
    num_q_heads = shape.num_kv_heads * shape.group
    # q is a slice of a wider row, as of a fused projection.
    wide = torch.full((total + NUM_PADDING_ROWS, num_q_heads + 2, shape.head_dim), torch.nan)
    wide[:total] = torch.randn((total, *wide.shape[1:]), generator=generator)
    bounds = torch.tensor([0, *torch.tensor(shape.queries).cumsum(0).tolist()], dtype=torch.int32)
    starts = shape.starts
    return Inputs(
        q=wide.to(device, dtype)[:, :num_q_heads],
        keys=keys.to(device, dtype),
        values=values.to(device, dtype),
        layout=AttentionLayout(
            cu_queries=bounds.to(device),
            num_keys=torch.tensor(shape.keys, dtype=torch.int32, device=device),
            page_table=table.to(device)[:, :width],
            page_size=shape.page_size,
            max_queries=max(shape.queries) + shape.bound,
            max_keys=max(shape.keys),
            query_start=None
            if starts is None
            else torch.tensor(starts, dtype=torch.int32, device=device),
            block_length=shape.block_length,
        ),
    )


def poisoned_output(inputs: Inputs) -> Tensor:
    """NaN for rows that must be written, a number for those that must not."""
    num_tokens, num_q_heads, head_dim = inputs.q.shape
    out = inputs.q.new_full((num_tokens, num_q_heads * head_dim), torch.nan)
    out[num_tokens - NUM_PADDING_ROWS :] = UNTOUCHED
    return out


def check(inputs: Inputs, tuning: Tuning | None = None, workspace: Tensor | None = None) -> Tensor:
    q, keys, values, layout = inputs.q, inputs.keys, inputs.values, inputs.layout
    out = poisoned_output(inputs)
    result = paged_attention(q, keys, values, layout, out=out, tuning=tuning, workspace=workspace)
    assert result is out
    total = q.shape[0] - NUM_PADDING_ROWS
    assert bool((out[total:] == UNTOUCHED).all())
    exact = q.dtype is torch.float32
    expected = paged_attention_reference(
        q, keys, values, layout, dtype=torch.float64 if exact else torch.float32
    )[:total]
    error = (out[:total].to(expected.dtype) - expected).norm(dim=1)
    # By row, so that one wrong row does not hide among many; rows without keys are exactly 0.
    limit = (1e-5 if exact else 2e-2) * expected.norm(dim=1)
    assert bool((error <= limit).all()), (error / limit).max()
    assert float(error.norm()) <= (1e-5 if exact else 1e-2) * float(expected.norm())
    return out


SMALL = {
    "ragged": Shape(queries=(3, 1, 6), keys=(20, 33, 7)),
    "no queries or no keys": Shape(queries=(0, 2, 3, 0), keys=(9, 0, 17, 0)),
    "loose bound": Shape(queries=(2, 5), keys=(18, 31), bound=9),
    "whole pages": Shape(queries=(2, 2), keys=(32, 16)),
    "page of one": Shape(queries=(2, 1), keys=(7, 19), page_size=1, group=1),
    "page of five": Shape(queries=(2, 3), keys=(13, 24), page_size=5),
    "large page": Shape(queries=(4, 2), keys=(70, 10), page_size=64, num_kv_heads=1),
    "one key": Shape(queries=(1, 2), keys=(1, 1), num_kv_heads=1),
    "group 7, head_dim 48": Shape(queries=(5, 2), keys=(18, 5), group=7, head_dim=48),
    "group 6, head_dim 80": Shape(queries=(3, 3), keys=(18, 5), group=6, head_dim=80),
    "group 1, head_dim 96": Shape(queries=(3, 18), keys=(18, 5), group=1, head_dim=96),
    "head_dim 256": Shape(queries=(3,), keys=(21,), num_kv_heads=1, head_dim=256),
    "head_dim 16": Shape(queries=(3, 2), keys=(21, 40), head_dim=16),
    "many keys": Shape(queries=(2,), keys=(200,), num_kv_heads=1, head_dim=16, page_size=64),
    "prefill": Shape(queries=(12, 8), keys=(12, 8), starts=(0, 0), block_length=4),
    "prefill, partial block": Shape(queries=(7, 2), keys=(7, 34), starts=(0, 32), block_length=4),
    "prefill, limit by num_keys": Shape(
        queries=(4, 9), keys=(6, 37), starts=(4, 30), block_length=32
    ),
    "prefill over history": Shape(
        queries=(33, 0, 12), keys=(65, 0, 12), starts=(32, 0, 0), block_length=3, num_kv_heads=1
    ),
    "prefill, group 7": Shape(
        queries=(9, 6), keys=(25, 6), starts=(16, 0), block_length=8, group=7, head_dim=48
    ),
}
LARGE = {
    "decode of 10": Shape(
        queries=(10, 0, 3, 32, 17, 9, 10, 11), keys=(650, 64, 1, 1000, 2048, 0, 63, 65)
    ),
    "decode of 32": Shape(queries=(32,) * 6, keys=(650, 64, 1, 1000, 2048, 65)),
    "decode of 4": Shape(queries=(4,) * 40, keys=tuple(range(500, 540))),
    "decode alone": Shape(queries=(10,), keys=(3000,)),
    "prefill": Shape(
        queries=(512, 96, 0, 1024),
        keys=(512, 608, 0, 1040),
        starts=(0, 512, 0, 16),
        block_length=32,
    ),
    "prefill of odd lengths": Shape(
        queries=(513, 77), keys=(513, 90), starts=(0, 13), block_length=64
    ),
}
MAIN_DIMS = (8, 4, 128, 64)  # KV heads, group, head_dim, page_size
ODD_DIMS = ((2, 7, 80, 16), (4, 6, 256, 64), (3, 1, 64, 1), (2, 4, 48, 128))
LARGE_CASES = [(name, MAIN_DIMS) for name in LARGE] + [
    (name, dims) for name in ("decode of 10", "prefill of odd lengths") for dims in ODD_DIMS
]


@pytest.mark.parametrize("name", SMALL)
def test_equals_reference(
    name: str, kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    check(build(SMALL[name], kernel_device, kernel_dtype))


@gpu_only
@pytest.mark.parametrize(("name", "dims"), LARGE_CASES, ids=str)
def test_equals_reference_on_large_shapes(
    name: str,
    dims: tuple[int, int, int, int],
    kernel_device: torch.device,
    kernel_dtype: torch.dtype,
) -> None:
    num_kv_heads, group, head_dim, page_size = dims
    shape = dataclasses.replace(
        LARGE[name],
        num_kv_heads=num_kv_heads,
        group=group,
        head_dim=head_dim,
        page_size=page_size,
    )
    inputs = build(shape, kernel_device, kernel_dtype)
    check(inputs)
    rows = shape.group * max(shape.queries)
    tuning = tuning_for(kernel_dtype, head_dim, rows, shape.block_length is not None)
    for num_splits in (1, 2, MAX_SPLITS):
        check(inputs, dataclasses.replace(tuning, num_splits=num_splits, peel=not tuning.peel))


@pytest.mark.parametrize("num_splits", [2, 3, 7])
@pytest.mark.parametrize("name", ["no queries or no keys", "page of five", "prefill over history"])
def test_splits_of_the_keys(
    name: str, num_splits: int, kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    """Also more splits than blocks of keys, and rows that see no key of a split."""
    inputs = build(SMALL[name], kernel_device, kernel_dtype)
    tuning = Tuning(
        block_m=16, block_n=16, num_warps=4, num_stages=2, peel=False, num_splits=num_splits
    )
    size = workspace_size(inputs.q, inputs.keys, inputs.layout, tuning)
    assert size == num_splits * inputs.q.shape[0] * inputs.q.shape[1] * (inputs.q.shape[2] + 1)
    workspace = torch.full((size + 5,), torch.nan, device=kernel_device)
    check(inputs, tuning, workspace)
    assert bool(workspace[size:].isnan().all())


@pytest.mark.parametrize("peel", [False, True])
@pytest.mark.parametrize("block_n", [16, 32])
@pytest.mark.parametrize("name", ["ragged", "whole pages", "prefill over history"])
def test_every_loop(
    name: str, block_n: int, peel: bool, kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    """Blocks as large as a page and larger, with and without a loop for unmasked keys."""
    tuning = Tuning(block_m=32, block_n=block_n, num_warps=4, num_stages=3, peel=peel)
    check(build(SMALL[name], kernel_device, kernel_dtype), tuning)


@pytest.mark.parametrize("name", ["ragged", "prefill over history"])
@pytest.mark.parametrize("num_splits", [1, 2])
def test_equal_bits(
    name: str,
    num_splits: int,
    num_repeats: int,
    kernel_device: torch.device,
    kernel_dtype: torch.dtype,
) -> None:
    shape = SMALL[name] if not ON_GPU else dataclasses.replace(SMALL[name], head_dim=128)
    inputs = build(shape, kernel_device, kernel_dtype)
    tuning = tuning_for(kernel_dtype, shape.head_dim, 64, shape.block_length is not None)
    tuning = dataclasses.replace(tuning, num_splits=num_splits)
    total = sum(shape.queries)
    first = check(inputs, tuning)[:total]
    for _ in range(num_repeats - 1):
        again = paged_attention(inputs.q, inputs.keys, inputs.values, inputs.layout, tuning=tuning)[
            :total
        ]
        assert torch.equal(first, again)


def test_nothing_to_do(kernel_device: torch.device) -> None:
    inputs = build(SMALL["ragged"], kernel_device, torch.float32)
    q, layout = inputs.q, inputs.layout
    no_rows = dataclasses.replace(
        layout, cu_queries=torch.zeros_like(layout.cu_queries), max_queries=0
    )
    out = paged_attention(q[:0], inputs.keys, inputs.values, no_rows)
    assert out.shape == (0, q.shape[1] * q.shape[2])
    no_sequences = dataclasses.replace(
        layout,
        cu_queries=layout.cu_queries[:1],
        num_keys=layout.num_keys[:0],
        page_table=layout.page_table[:0],
    )
    for empty in (no_rows, no_sequences):
        out = poisoned_output(inputs)
        paged_attention(q, inputs.keys, inputs.values, empty, out=out)
        assert bool(out[:-NUM_PADDING_ROWS].isnan().all())
        assert bool((out[-NUM_PADDING_ROWS:] == UNTOUCHED).all())


@gpu_only
@pytest.mark.parametrize("num_splits", [1, 4])
def test_graph_reads_lengths_on_the_device(
    num_splits: int, kernel_device: torch.device, kernel_dtype: torch.dtype
) -> None:
    """One captured launch, replayed with other queries and keys per sequence."""
    shape = Shape(
        queries=(9, 4, 3), keys=(300, 40, 500), num_kv_heads=4, head_dim=128, page_size=64, bound=23
    )
    inputs = build(shape, kernel_device, kernel_dtype)
    tuning = dataclasses.replace(tuning_for(kernel_dtype, 128, 64, False), num_splits=num_splits)
    q, keys, values, layout = inputs.q, inputs.keys, inputs.values, inputs.layout
    out = check(inputs, tuning)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        paged_attention(q, keys, values, layout, out=out, tuning=tuning)
    layout.cu_queries.copy_(torch.tensor([0, 0, 14, 16], dtype=torch.int32))
    layout.num_keys.copy_(torch.tensor([17, 33, 444], dtype=torch.int32))
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out[:16], paged_attention(q, keys, values, layout, tuning=tuning)[:16])
    expected = paged_attention_reference(q, keys, values, layout)[:16]
    assert float((out[:16].float() - expected).norm()) <= 1e-2 * float(expected.norm())


def test_choice_of_splits() -> None:
    """Few programs of many keys are split, as far as combining the parts pays; many never are."""
    assert choose_splits(2048, 11, 264) == 1
    assert choose_splits(256, 11, 264) == 1
    assert choose_splits(8, 0, 264) == 1
    assert choose_splits(8, 1, 264) == 1
    assert choose_splits(8, 11, 264) == 4
    assert choose_splits(8, 32, 264) == 8
    assert choose_splits(64, 64, 264) == 4
    assert choose_splits(1, 4096, 264) == MAX_SPLITS


def test_workspace_is_checked(kernel_device: torch.device) -> None:
    """Its size is that of the splits chosen by the host bounds."""
    inputs = build(SMALL["many keys"], kernel_device, torch.float32)
    inputs = dataclasses.replace(inputs, layout=dataclasses.replace(inputs.layout, max_keys=4096))
    size = workspace_size(inputs.q, inputs.keys, inputs.layout)
    assert size > 0
    check(inputs, workspace=torch.full((size,), torch.nan, device=kernel_device))
    with pytest.raises(ValueError, match=f"workspace: {size - 1} elements; {size} are needed"):
        paged_attention(
            inputs.q,
            inputs.keys,
            inputs.values,
            inputs.layout,
            workspace=torch.empty(size - 1, device=kernel_device),
        )


def test_misfits_are_named(kernel_device: torch.device) -> None:
    inputs = build(SMALL["ragged"], kernel_device, torch.float32)
    q, keys, values, layout = inputs.q, inputs.keys, inputs.values, inputs.layout
    with pytest.raises(ValueError, match="Hq a multiple of Hkv"):
        paged_attention(q[:, :3], keys, values, layout)
    with pytest.raises(ValueError, match=r"keys torch\.float16"):
        paged_attention(q, keys.half(), values, layout)
    with pytest.raises(ValueError, match="q: strides"):
        paged_attention(q.transpose(0, 1).contiguous().transpose(0, 1), keys, values, layout)
    with pytest.raises(ValueError, match="head_dim 257"):
        paged_attention(q.new_empty(1, 2, 257), *[q.new_empty(4, 2, 257)] * 2, layout)
    with pytest.raises(ValueError, match=r"out: torch\.float32"):
        paged_attention(q, keys, values, layout, out=q.new_empty(1, 4))
    changes: dict[str, dict[str, object]] = {
        "cu_queries: torch.int64": {"cu_queries": layout.cu_queries.long()},
        "num_keys: torch.int64": {"num_keys": layout.num_keys.long()},
        "page_table: torch.int32": {"page_table": layout.page_table[:2]},
        "page_size: 0": {"page_size": 0},
        "query_start and block_length": {"block_length": 4},
        "query_start: torch.int32": {"query_start": layout.cu_queries, "block_length": 4},
        "block_length: 0": {"query_start": layout.num_keys, "block_length": 0},
    }
    for message, change in changes.items():
        with pytest.raises(ValueError, match=message):
            paged_attention(q, keys, values, dataclasses.replace(layout, **change))


@gpu_only
@pytest.mark.parametrize("block_length", [16, 32, 64])
def test_chunks_find_their_kernels_compiled(
    block_length: int, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefill of one chunk or many, short or long, in any number of splits."""
    keys, values = torch.zeros((2, 4096, 2, 128), dtype=torch.bfloat16, device=kernel_device)
    compile_prefill(keys, values, num_q_heads=8, page_size=64, block_length=block_length)
    compiled: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_cache_hook", lambda **facts: compiled.append(facts["repr"])
    )
    zeros = torch.zeros(64, dtype=torch.int32, device=kernel_device)
    for count in (1, 3, 16, 64):
        for length in (block_length, 2 * block_length, 512, 2048):
            bounds = torch.arange(count + 1, dtype=torch.int32, device=kernel_device) * length
            q = torch.zeros((count * length, 8, 128), dtype=torch.bfloat16, device=kernel_device)
            layout = AttentionLayout(
                cu_queries=bounds,
                num_keys=zeros[:count] + length,
                page_table=zeros.expand(count, 64).contiguous(),
                page_size=64,
                max_queries=length,
                max_keys=length,
                query_start=zeros[:count],
                block_length=block_length,
            )
            paged_attention(q, keys, values, layout)
    assert compiled == []
