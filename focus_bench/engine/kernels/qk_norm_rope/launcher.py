"""Checks and launches the fused step between QKV projection and attention; knows no model."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.qk_norm_rope.kernel import qk_norm_rope_kernel

# Heads of one program, and elements per warp: 8 per thread of either half are one load of 16 bytes
# in 16-bit types. On an H200 within 13 % of the bytes' floor from 2,458 tokens on.
_HEADS = 16
_ELEMENTS_PER_WARP = 512


@dataclass(frozen=True)
class KVStore:
    """Where a layer's keys and values go: views [slots, Hkv, D] and int32 `slots` [T].

    Both views have the same strides and contiguous heads. Slots are distinct; -1 stores nothing.
    """

    keys: Tensor
    values: Tensor
    slots: Tensor


def qk_norm_rope(
    qkv: Tensor,
    qk_norm: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    store: KVStore,
    *,
    num_q_heads: int,
    out: Tensor | None = None,
) -> Tensor:
    """Query [T, Hq, D] of qkv [T, (Hq + 2 Hkv) D]; keys and values go straight to the cache.

    Query and key heads get their RMS norm, weights `qk_norm` [Hq + Hkv, D] (None: no norm, as in
    Qwen2.5, and `eps` is not read), and the rotary of `cos` and `sin` [T, R], whose halves are
    equal, on their first R dimensions (i pairs with i + R / 2; R is D, or less: partial rotary);
    values are copied. Float32 inside, one rounding at the end. Tokens of slot -1 get their query
    all the same. Rows of qkv, cos and sin may be strided.
    ValueError if shapes, dtypes or layouts do not fit.
    """
    num_tokens = qkv.shape[0]
    _, num_kv_heads, head_dim = store.keys.shape
    num_heads = num_q_heads + 2 * num_kv_heads
    if num_q_heads < 1 or head_dim % 2 or not 2 <= head_dim <= 1024:
        raise ValueError(f"{num_q_heads} query heads of {head_dim} dimensions: need 1, and even")
    if out is None:
        shape = (num_tokens, num_q_heads, head_dim)
        out = torch.empty(shape, device=qkv.device, dtype=qkv.dtype)
    _check_shapes(qkv, qk_norm, cos, sin, store, out, num_q_heads)
    if num_tokens == 0:
        return out
    heads = min(_HEADS, triton.next_power_of_2(num_heads))
    half = cos.shape[1] // 2
    rest = head_dim - 2 * half
    block = triton.next_power_of_2(half)
    block_rest = triton.next_power_of_2(rest) if rest else 0
    width = triton.next_power_of_2(2 * block + block_rest)
    qk_norm_rope_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
        qkv,
        qkv if qk_norm is None else qk_norm,
        cos,
        sin,
        store.slots,
        out,
        store.keys,
        store.values,
        qkv.stride(0),
        cos.stride(0),
        sin.stride(0),
        store.keys.stride(0),
        store.keys.stride(1),
        eps,
        NUM_Q=num_q_heads,
        NUM_KV=num_kv_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        REST=rest,
        HEADS=heads,
        BLOCK=block,
        BLOCK_REST=block_rest,
        HAS_NORM=qk_norm is not None,
        num_warps=max(1, heads * width // _ELEMENTS_PER_WARP),
    )
    return out


def _check_shapes(
    qkv: Tensor,
    qk_norm: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    store: KVStore,
    out: Tensor,
    num_q_heads: int,
) -> None:
    num_tokens = qkv.shape[0]
    num_slots, num_kv_heads, head_dim = store.keys.shape
    rotary_dim = cos.shape[-1]
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ValueError(f"cos has rows of {rotary_dim}; allowed are 2 to {head_dim}, and even")
    expected = {
        "qkv": (qkv, (num_tokens, (num_q_heads + 2 * num_kv_heads) * head_dim)),
        "cos": (cos, (num_tokens, rotary_dim)),
        "sin": (sin, (num_tokens, rotary_dim)),
        "values": (store.values, (num_slots, num_kv_heads, head_dim)),
        "keys": (store.keys, (num_slots, num_kv_heads, head_dim)),
        "out": (out, (num_tokens, num_q_heads, head_dim)),
    }
    if qk_norm is not None:
        expected["qk_norm"] = (qk_norm, (num_q_heads + num_kv_heads, head_dim))
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape or tensor.dtype != qkv.dtype:
            raise ValueError(
                f"{name} is {tuple(tensor.shape)} of {tensor.dtype}, not {shape} of {qkv.dtype}"
            )
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous in its last dimension")
    if not out.is_contiguous() or not (qk_norm is None or qk_norm.is_contiguous()):
        raise ValueError("out and qk_norm must be contiguous")
    if store.keys.stride() != store.values.stride():
        raise ValueError("keys and values must have the same strides")
    slots = store.slots
    if slots.shape != (num_tokens,) or slots.dtype != torch.int32 or not slots.is_contiguous():
        raise ValueError(f"slots must be contiguous int32 [{num_tokens}]")
