"""Times paged attention at SDAR-8B's shapes beside SDPA and FlexAttention on contiguous keys."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.paged_attention.launcher import (
    AttentionLayout,
    paged_attention,
    workspace_size,
)

NUM_Q_HEADS = 32
NUM_KV_HEADS = 8
HEAD_DIM = 128
PAGE_SIZE = 64
BLOCK_LENGTH = 32
BATCHES = (1, 32, 256)
QUERIES = (10, 32)
CONTEXTS = (650, 2048)
PROMPTS = ((16, 512), (1, 8192))
# After eviction: 2 to 18 queries a sequence, 10 on average, where a graph allows for a whole block.
RAGGED_QUERIES = tuple(2 + 7 * i % 17 for i in range(256))


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Sequences with `num_keys` keys each, in shuffled pages."""

    q: Tensor
    cache_keys: Tensor
    cache_values: Tensor
    slots: Tensor  # [count * num_keys], int64
    layout: AttentionLayout

    @classmethod
    def build(
        cls, queries: Sequence[int], num_keys: int, *, bound: int = 0, prefill: bool = False
    ) -> "_Batch":
        count = len(queries)
        generator = torch.Generator(device="cuda").manual_seed(0)
        random = functools.partial(
            torch.randn, generator=generator, device="cuda", dtype=torch.bfloat16
        )
        pages = -(-num_keys // PAGE_SIZE)
        table = torch.randperm(count * pages, generator=generator, device="cuda")
        table = table.view(count, pages)
        positions = torch.arange(num_keys, device="cuda")
        slots = table[:, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        shape = (count * pages * PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM)
        per_sequence = torch.tensor(queries, device="cuda", dtype=torch.int32)
        counts = torch.full_like(per_sequence, num_keys)
        return cls(
            q=random((sum(queries), NUM_Q_HEADS, HEAD_DIM)),
            cache_keys=random(shape),
            cache_values=random(shape),
            slots=slots.flatten(),
            layout=AttentionLayout(
                cu_queries=F.pad(per_sequence.cumsum(0, dtype=torch.int32), (1, 0)),
                num_keys=counts,
                page_table=table.int(),
                page_size=PAGE_SIZE,
                max_queries=max([bound, *queries]),
                max_keys=num_keys,
                query_start=counts - per_sequence if prefill else None,
                block_length=BLOCK_LENGTH if prefill else None,
            ),
        )

    @property
    def count(self) -> int:
        return self.layout.num_keys.shape[0]

    @property
    def num_bytes(self) -> int:
        """q, the output, and every key and value once, in bf16."""
        return 2 * (2 * self.q.numel() + 2 * self.slots.numel() * NUM_KV_HEADS * HEAD_DIM)

    def ours(self) -> Callable[[], object]:
        out = self.q.new_empty((self.q.shape[0], NUM_Q_HEADS * HEAD_DIM))
        size = workspace_size(self.q, self.cache_keys, self.layout)
        workspace = torch.empty(size, dtype=torch.float32, device="cuda")
        return functools.partial(
            paged_attention,
            self.q,
            self.cache_keys,
            self.cache_values,
            self.layout,
            out=out,
            workspace=workspace,
        )

    def queries(self) -> Tensor:
        """View [count, Hq, queries, D] of q, where all have as many."""
        return self.q.view(self.count, -1, NUM_Q_HEADS, HEAD_DIM).transpose(1, 2)

    def gather(self) -> tuple[Tensor, Tensor]:
        """Contiguous copies of keys and values, viewed as [count, Hkv, num_keys, D]."""
        k, v = (
            cache[self.slots].view(self.count, -1, NUM_KV_HEADS, HEAD_DIM).transpose(1, 2)
            for cache in (self.cache_keys, self.cache_values)
        )
        return k, v


def _sdpa(batch: _Batch, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(batch.queries(), k, v, attn_mask=mask, enable_gqa=True)


def _sdpa_packed(batch: _Batch, k: Tensor, v: Tensor) -> Tensor:
    """The heads of a group as further rows of their KV head, so that keys are read once."""
    q = batch.queries().reshape(batch.count, NUM_KV_HEADS, -1, HEAD_DIM)
    return F.scaled_dot_product_attention(q, k, v)


def _decode(count: int, queries: int, num_keys: int) -> Case:
    batch = _Batch.build([queries] * count, num_keys)
    k, v = batch.gather()
    others: dict[str, Callable[[], object]] = {
        "sdpa, gathered before": lambda: _sdpa(batch, k, v),
        "sdpa packed, gathered before": lambda: _sdpa_packed(batch, k, v),
        "sdpa packed with gather": lambda: _sdpa_packed(batch, *batch.gather()),
    }
    if count > 1 and num_keys == CONTEXTS[0]:  # each shape is compiled, and few are allowed
        flex = torch.compile(flex_attention, dynamic=False)
        others["flex, gathered before"] = lambda: flex(batch.queries(), k, v, enable_gqa=True)
    return Case(
        name=f"decode, {count} sequences x {queries} queries x {num_keys} keys",
        ours=batch.ours(),
        others=others,
        num_bytes=batch.num_bytes,
        flops=4 * count * queries * num_keys * NUM_Q_HEADS * HEAD_DIM,
    )


def _ragged(num_keys: int) -> Case:
    batch = _Batch.build(RAGGED_QUERIES, num_keys, bound=BLOCK_LENGTH)
    return Case(
        name=f"decode, {batch.count} sequences x 2-18 queries x {num_keys} keys",
        ours=batch.ours(),
        num_bytes=batch.num_bytes,
        flops=4 * sum(RAGGED_QUERIES) * num_keys * NUM_Q_HEADS * HEAD_DIM,
    )


def _prefill(count: int, length: int) -> Case:
    batch = _Batch.build([length] * count, length, prefill=True)
    k, v = batch.gather()
    flex = torch.compile(flex_attention, dynamic=False)

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key // BLOCK_LENGTH <= query // BLOCK_LENGTH

    block_mask = create_block_mask(visible, None, None, length, length, device="cuda")
    blocks = torch.arange(length, device="cuda") // BLOCK_LENGTH
    mask = blocks[None, :] <= blocks[:, None]
    num_blocks = math.ceil(length / BLOCK_LENGTH)
    pairs = num_blocks * (num_blocks + 1) // 2 * BLOCK_LENGTH**2
    return Case(
        name=f"prefill, {count} prompts x {length} tokens",
        ours=batch.ours(),
        others={
            "sdpa with a mask, gathered before": lambda: _sdpa(batch, k, v, mask),
            "flex, gathered before": lambda: flex(
                batch.queries(), k, v, block_mask=block_mask, enable_gqa=True
            ),
            "sdpa causal, gathered before (less work)": lambda: F.scaled_dot_product_attention(
                batch.queries(), k, v, is_causal=True, enable_gqa=True
            ),
        },
        num_bytes=batch.num_bytes,
        flops=4 * count * pairs * NUM_Q_HEADS * HEAD_DIM,
    )


def cases() -> list[Case]:
    """Decode steps before and after eviction, and prompts, of SDAR-8B in bf16."""
    decode = [
        _decode(count, queries, num_keys)
        for num_keys in CONTEXTS
        for queries in QUERIES
        for count in BATCHES
    ]
    prefill = [_prefill(count, length) for count, length in PROMPTS]
    return [*decode, _ragged(CONTEXTS[0]), *prefill]
