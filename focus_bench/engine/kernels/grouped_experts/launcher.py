"""Checks and launches the experts' feed-forward; knows no model and no router.

How many rows each expert has is read on the device: a launch can be captured in a CUDA graph and
replayed with other ids.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.expert_routing.launcher import (
    Routing,
    SortedPairs,
    check_tensor,
    sort_by_expert,
)
from focus_bench.engine.kernels.grouped_experts.kernel import (
    combine_kernel,
    down_kernel,
    gate_up_kernel,
)
from focus_bench.engine.kernels.grouped_experts.tuning import (
    MIN_BLOCK_M,
    ProductTuning,
    Tuning,
    tuning_for,
)
from focus_bench.engine.kernels.grouped_experts.workspace import ExpertWorkspace

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_COMBINE_BLOCK = 1024


@dataclass(frozen=True, kw_only=True)
class ExpertWeights:
    """Weights of E experts, contiguous: `gate_up` [E, 2 F, h], gate first, and `down` [E, h, F]."""

    gate_up: Tensor
    down: Tensor

    @property
    def num_experts(self) -> int:
        """Number of experts E."""
        return int(self.down.shape[0])

    @property
    def hidden_size(self) -> int:
        """Width h of a token's row."""
        return int(self.down.shape[1])

    @property
    def expert_width(self) -> int:
        """Width F within an expert."""
        return int(self.down.shape[2])

    def check(self, dtype: torch.dtype, device: torch.device) -> None:
        """ValueError unless both tensors fit together, in `dtype` on `device`."""
        if self.down.ndim != 3 or min(self.down.shape) < 1:
            raise ValueError(f"down must be [E, h, F], not {tuple(self.down.shape)}")
        experts, hidden_size, width = self.down.shape
        check_tensor("gate_up", self.gate_up, (experts, 2 * width, hidden_size), dtype, device)
        check_tensor("down", self.down, (experts, hidden_size, width), dtype, device)
        if 2 * width * hidden_size >= 2**31:
            raise ValueError(f"gate_up: {2 * width * hidden_size} weights of an expert; below 2^31")


def grouped_experts(
    x: Tensor,
    weights: ExpertWeights,
    routing: Routing,
    *,
    shared: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    workspace: ExpertWorkspace | None = None,
    tuning: Tuning | None = None,
) -> Tensor:
    """Return out [T, h]: each token's experts' weighted outputs plus `shared` plus `residual`.

    out[t] = sum over k of routing.weights[t, k] * expert(routing.ids[t, k])(x[t]), where
    expert(x) = (silu(x gate^T) * (x up^T)) down^T. Five launches. Sums are float32; rounded are
    silu * up, an expert's weighted output (not if `workspace.partials` is float32) and the total,
    once each. The order of every sum depends on shapes and tuning only: equal inputs give equal
    bits. Rows of x, shared, residual and out [T, h] may be strided; `out` may be `shared` or
    `residual`, else it must overlap no input. Without a `workspace` memory is allocated.
    ValueError if shapes, dtypes, devices or layouts do not fit.
    """
    num_tokens = _check(x, weights, routing)
    if out is None:
        out = torch.empty((num_tokens, weights.hidden_size), device=x.device, dtype=x.dtype)
    for name, tensor in (("shared", shared), ("residual", residual), ("out", out)):
        if tensor is not None:
            _check_rows(name, tensor, x)
    if num_tokens == 0:
        return out
    num_pairs, num_experts = routing.num_pairs, weights.num_experts
    if tuning is None:
        tuning = tuning_for(num_pairs, num_experts, x.dtype)
    if tuning.block_m < MIN_BLOCK_M:
        raise ValueError(f"tuning.block_m is {tuning.block_m}; at least {MIN_BLOCK_M} is allowed")
    if workspace is None:
        workspace = ExpertWorkspace.allocate(
            num_pairs=num_pairs,
            num_experts=num_experts,
            expert_width=weights.expert_width,
            hidden_size=weights.hidden_size,
            dtype=x.dtype,
            device=x.device,
        )
    workspace.check(
        num_pairs=num_pairs,
        num_experts=num_experts,
        expert_width=weights.expert_width,
        hidden_size=weights.hidden_size,
        dtype=x.dtype,
        device=x.device,
    )
    rows = sort_by_expert(
        routing.ids,
        num_experts,
        tuning.block_m,
        out=workspace.sort(num_pairs, num_experts, tuning.block_m),
    )
    gate_up(x, weights, rows, routing.top_k, workspace.activations, tuning)
    down(workspace.activations, weights, rows, routing.weights, workspace.partials, tuning)
    _combine(workspace.partials, weights, routing, shared, residual, out)
    return out


def gate_up(
    x: Tensor,
    weights: ExpertWeights,
    rows: SortedPairs,
    top_k: int,
    activations: Tensor,
    tuning: Tuning,
) -> Any:
    """The first product alone, unchecked: `activations` of the sorted rows; the kernel launched."""
    chosen = tuning.gate_up
    return gate_up_kernel[_grid(rows, weights.expert_width, chosen)](
        x,
        weights.gate_up,
        activations,
        rows.pairs,
        rows.tiles,
        rows.num_tiles,
        rows.tiles.shape[1],
        x.stride(0),
        TOP_K=top_k,
        WIDTH=weights.expert_width,
        DEPTH=weights.hidden_size,
        BLOCK_M=rows.block_m,
        BLOCK_N=chosen.block_n,
        BLOCK_K=chosen.block_k,
        GROUP_TILES=tuning.group_tiles,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
    )


def down(
    activations: Tensor,
    weights: ExpertWeights,
    rows: SortedPairs,
    expert_weights: Tensor,
    partials: Tensor,
    tuning: Tuning,
) -> Any:
    """The second product alone, unchecked: `partials` of the pairs; returns the kernel launched."""
    chosen = tuning.down
    return down_kernel[_grid(rows, weights.hidden_size, chosen)](
        activations,
        weights.down,
        expert_weights,
        partials,
        rows.pairs,
        rows.tiles,
        rows.num_tiles,
        rows.tiles.shape[1],
        WIDTH=weights.hidden_size,
        DEPTH=weights.expert_width,
        BLOCK_M=rows.block_m,
        BLOCK_N=chosen.block_n,
        BLOCK_K=chosen.block_k,
        GROUP_TILES=tuning.group_tiles,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
    )


def _combine(
    partials: Tensor,
    weights: ExpertWeights,
    routing: Routing,
    shared: Tensor | None,
    residual: Tensor | None,
    out: Tensor,
) -> None:
    width = weights.hidden_size
    block = min(_COMBINE_BLOCK, int(triton.next_power_of_2(width)))
    combine_kernel[(out.shape[0], triton.cdiv(width, block))](
        partials,
        routing.ids,
        shared,
        residual,
        out,
        0 if shared is None else shared.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        NUM_EXPERTS=weights.num_experts,
        TOP_K=routing.top_k,
        WIDTH=width,
        HAS_SHARED=shared is not None,
        HAS_RESIDUAL=residual is not None,
        BLOCK=block,
        num_warps=4,
    )


def _grid(rows: SortedPairs, width: int, tuning: ProductTuning) -> tuple[int]:
    """As many programs as run at once, or as there can be pieces of work if those are fewer."""
    pieces = rows.tiles.shape[1] * triton.cdiv(width, tuning.block_n)
    return (min(pieces, tuning.programs_per_sm * num_sms(rows.tiles.device)),)


@functools.cache
def num_sms(device: torch.device) -> int:
    """Multiprocessors of `device`; the interpreter counts as an H200 does."""
    if device.type != "cuda":
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _check(x: Tensor, weights: ExpertWeights, routing: Routing) -> int:
    """The number of tokens."""
    if x.ndim != 2 or x.dtype not in DTYPES:
        raise ValueError(f"x: {x.dtype} {tuple(x.shape)}; [T, h] of one of {DTYPES} is needed")
    weights.check(x.dtype, x.device)
    routing.check(x.device)
    if x.shape != (routing.ids.shape[0], weights.hidden_size):
        raise ValueError(
            f"x must be {(routing.ids.shape[0], weights.hidden_size)}, not {tuple(x.shape)}"
        )
    _check_rows("x", x, x)
    return int(x.shape[0])


def _check_rows(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.shape != x.shape or tensor.dtype != x.dtype:
        raise ValueError(f"{name} must be {tuple(x.shape)} of {x.dtype}")
    if tensor.device != x.device:
        raise ValueError(f"{name} is on {tensor.device}; x is on {x.device}")
    if tensor.stride(1) != 1 and tensor.shape[1] > 1:
        raise ValueError(f"{name} must have contiguous rows, not strides {tensor.stride()}")
