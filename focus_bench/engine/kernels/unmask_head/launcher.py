"""Token and confidence of each row, the vocabulary taken in chunks; knows no block or sequence.

Each chunk of logits is a matrix product into a reused buffer and one kernel that reduces it; only
draws at a temperature need a second pass, over the one sub-chunk that holds each row's token.
"""

import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.unmask_head.kernel import (
    combine_kernel,
    draw_kernel,
    partials_kernel,
)
from focus_bench.engine.kernels.unmask_head.workspace import SUB_CHUNK, HeadConfig, HeadWorkspace

# 16 elements per thread.
_NUM_WARPS = 8
# One over a smaller temperature would overflow float32; there every draw is greedy but for ties.
_MIN_TEMPERATURE = 1e-30


def unmask_head(
    hidden: Tensor,
    weight: Tensor,
    *,
    config: HeadConfig,
    uniforms: Tensor | None = None,
    workspace: HeadWorkspace | None = None,
) -> tuple[Tensor, Tensor]:
    """Token int32 [R] and confidence float32 [R] of normed `hidden` [R, h], head `weight` [V, h].

    Logits are rounded to the dtype, then read as float32. Greedy: the largest logit, ties to the
    lower id; its probability at temperature 1. Else the inverse of the cumulative distribution in
    order of id at `uniforms`, float64 [R] in [0, 1), and the probability after temperature; never
    an id of probability 0. Rows without a finite distribution (NaN, +inf, all -inf among allowed
    ids) get token 0 and confidence NaN. ValueError if shapes, dtypes or layouts do not fit.
    """
    _check(hidden, weight, config, uniforms)
    num_rows = hidden.shape[0]
    tokens = torch.empty(num_rows, device=hidden.device, dtype=torch.int32)
    confidence = torch.empty(num_rows, device=hidden.device, dtype=torch.float32)
    if num_rows == 0:
        return tokens, confidence
    if workspace is None:
        workspace = HeadWorkspace.allocate(num_rows, weight, config)
    workspace.check(num_rows, weight, config)
    greedy = config.temperature == 0.0
    sharpness = 1.0 if greedy else 1.0 / max(config.temperature, _MIN_TEMPERATURE)
    chunk_subs = config.chunk_subs(num_rows, weight.element_size())
    chunks = range(0, config.num_subs, chunk_subs)

    for first_sub in chunks:
        logits = _logits(hidden, weight, first_sub, chunk_subs, workspace)
        partials_kernel[(num_rows, min(chunk_subs, config.num_subs - first_sub))](
            logits,
            workspace.maxima,
            workspace.ids,
            workspace.sums,
            logits.stride(0),
            config.num_subs,
            first_sub,
            config.mask_token_id,
            config.num_valid_ids,
            sharpness,
            SUB=SUB_CHUNK,
            num_warps=_NUM_WARPS,
        )
    combine_kernel[(num_rows,)](
        workspace.maxima,
        workspace.ids,
        workspace.sums,
        workspace.fraction if uniforms is None else uniforms,
        tokens,
        confidence,
        workspace.chosen,
        workspace.fraction,
        workspace.row_max,
        workspace.row_sum,
        config.num_subs,
        sharpness,
        GREEDY=greedy,
        BLOCK=triton.next_power_of_2(config.num_subs),
        num_warps=1,
    )
    if greedy:
        return tokens, confidence
    for first_sub in reversed(chunks):
        if first_sub != chunks[-1]:  # the buffer still holds the last chunk
            logits = _logits(hidden, weight, first_sub, chunk_subs, workspace)
        draw_kernel[(num_rows,)](
            logits,
            workspace.chosen,
            workspace.fraction,
            workspace.row_max,
            workspace.row_sum,
            tokens,
            confidence,
            logits.stride(0),
            first_sub,
            chunk_subs,
            config.mask_token_id,
            config.num_valid_ids,
            sharpness,
            SUB=SUB_CHUNK,
            num_warps=_NUM_WARPS,
        )
    return tokens, confidence


def _logits(
    hidden: Tensor, weight: Tensor, first_sub: int, chunk_subs: int, workspace: HeadWorkspace
) -> Tensor:
    """One chunk of logits [R, columns], in the workspace; rows lie a whole chunk apart."""
    num_rows = hidden.shape[0]
    width = chunk_subs * SUB_CHUNK
    # Also columns of ids that are not valid, up to the sub-chunk's end: a product of odd width
    # would take a slower kernel.
    rows = weight[first_sub * SUB_CHUNK : first_sub * SUB_CHUNK + width]
    buffer = workspace.logits[: num_rows * width].view(num_rows, width)
    logits = buffer[:, : rows.shape[0]]
    torch.mm(hidden, rows.T, out=logits)
    return logits


def _check(hidden: Tensor, weight: Tensor, config: HeadConfig, uniforms: Tensor | None) -> None:
    num_rows, width = hidden.shape
    vocab_size = weight.shape[0]
    if weight.shape[1] != width or weight.dtype != hidden.dtype:
        raise ValueError(f"weight must be [V, {width}] of {hidden.dtype}")
    if not 1 <= config.num_valid_ids <= vocab_size:
        raise ValueError(f"num_valid_ids {config.num_valid_ids}: allowed are 1 to {vocab_size}")
    if not 0 <= config.mask_token_id < vocab_size:
        raise ValueError(f"mask_token_id {config.mask_token_id}: must be below {vocab_size}")
    if config.temperature == 0.0:
        return
    if not 0.0 < config.temperature < float("inf"):
        raise ValueError(f"temperature {config.temperature}: must be 0 or more, and finite")
    if uniforms is None:
        raise ValueError("a draw at a temperature needs uniforms")
    if (
        uniforms.shape != (num_rows,)
        or uniforms.dtype != torch.float64
        or not uniforms.is_contiguous()
    ):
        raise ValueError(f"uniforms must be contiguous float64 [{num_rows}]")
