"""QK norm, rotary and KV write at SDAR-8B's shapes beside the chain of torch's operations."""

import torch

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.qk_norm_rope import reference
from focus_bench.engine.kernels.qk_norm_rope.launcher import KVStore, qk_norm_rope

NUM_Q, NUM_KV, HEAD_DIM = 32, 8, 128
EPS = 1e-6
NUM_TOKENS = (20, 320, 624, 2458, 4992, 8192)


def cases() -> list[Case]:
    """Tokens that FOCUS feeds and keeps at batches 1, 32 and 256, and whole blocks at 256."""
    return [case(num_tokens) for num_tokens in NUM_TOKENS]


def case(num_tokens: int) -> Case:
    """One shape, stored at random slots of a cache of four times as many."""
    width = (NUM_Q + 2 * NUM_KV) * HEAD_DIM
    qkv = torch.randn(num_tokens, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(NUM_Q + NUM_KV, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    angles = torch.randn(num_tokens, HEAD_DIM // 2, device="cuda").repeat(1, 2)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    keys, values = qkv.new_zeros(2, 4 * num_tokens, NUM_KV, HEAD_DIM)
    long_slots = torch.randperm(4 * num_tokens, device="cuda")[:num_tokens]
    store = KVStore(keys=keys, values=values, slots=long_slots.int())
    out = qkv.new_empty(num_tokens, NUM_Q, HEAD_DIM)

    def theirs() -> torch.Tensor:
        q, k, v = reference.qk_norm_rope(qkv, weight, cos, sin, EPS, NUM_Q)
        keys.index_copy_(0, long_slots, k)
        values.index_copy_(0, long_slots, v)
        return q

    return Case(
        name=f"T {num_tokens}",
        ours=lambda: qk_norm_rope(qkv, weight, cos, sin, EPS, store, num_q_heads=NUM_Q, out=out),
        others={"torch": theirs},
        num_bytes=2 * qkv.nbytes + 2 * cos.nbytes,
    )
