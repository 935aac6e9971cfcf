"""Draws one token per row of logits, with the confidence that unmasking decides on.

Random numbers are passed in, keyed by request and position, so no draw depends on the batch.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from focus_bench.core.config import SamplingConfig
from focus_bench.core.rng import stream_key, uniform
from focus_bench.decoding.block_state import BlockState


def position_uniforms(block: BlockState, seed: int) -> npt.NDArray[np.float64]:
    """One uniform [n, B] a position, keyed by (seed, request, block, decode step, position)."""
    return uniform(
        stream_key(seed, "sampling"),
        block.request_key[:, None],
        block.block_index[:, None],
        block.block_steps[:, None],
        np.arange(block.block_length)[None, :],
    )


def next_block_uniforms(block: BlockState, seed: int) -> npt.NDArray[np.float64]:
    """One uniform [n] for the first position of each next block, which a commit pass decodes."""
    return uniform(
        stream_key(seed, "sampling"),
        block.request_key,
        block.block_index + 1,
        np.zeros_like(block.block_index),
        np.zeros_like(block.block_index),
    )


def sample(
    logits: Tensor,
    config: SamplingConfig,
    *,
    mask_token_id: int,
    num_valid_ids: int,
    uniforms: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Token int64 [R] and confidence float32 [R] of float32 logits [R, V], which are overwritten.

    The mask token and ids from `num_valid_ids` on (vocabulary padding) get -inf first. The
    confidence is the drawn token's probability after temperature, before top-k and top-p. Greedy
    (temperature 0): the largest logit, ties to the lower id, probabilities at temperature 1.
    Otherwise temperature, top-k, top-p (of what top-k left), renormalised, and the inverse of the
    cumulative distribution at `uniforms`, float64 [R] in [0, 1): in order of falling probability
    (ties: lower id first) if anything is filtered, else in order of id.
    Rows without a finite distribution (NaN, +inf, all -inf) get confidence NaN: never to be
    accepted, their token means nothing.
    """
    logits[:, mask_token_id] = -torch.inf
    logits[:, num_valid_ids:] = -torch.inf
    if config.temperature == 0.0:
        tokens = logits.argmax(dim=-1)
        probabilities = torch.softmax(logits, dim=-1)
    else:
        if uniforms is None:
            raise ValueError("sampling at a temperature needs one uniform per row")
        # The largest becomes 0 before the division: a tiny temperature must not overflow.
        logits.sub_(logits.amax(dim=-1, keepdim=True)).div_(config.temperature)
        probabilities = torch.softmax(logits, dim=-1)
        tokens = _draw(probabilities, config, uniforms)
    return tokens, probabilities.gather(1, tokens[:, None]).squeeze(1)


def _draw(probabilities: Tensor, config: SamplingConfig, uniforms: Tensor) -> Tensor:
    filtered = config.top_k > 0 or config.top_p < 1.0
    kept = probabilities
    if filtered:
        kept, ids = probabilities.sort(dim=-1, descending=True, stable=True)
        if config.top_k > 0:
            kept, ids = kept[:, : config.top_k], ids[:, : config.top_k]
    # Float64: a float32 sum over 150,000 ids is off by more than the smallest of them.
    cumulative = kept.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    if config.top_p < 1.0:
        before = cumulative - kept
        kept = torch.where(before < config.top_p * total, kept, 0.0)
        cumulative = kept.double().cumsum(dim=-1)
        total = cumulative[:, -1:]
    # Below the total even after rounding, so that the id found always has a probability above 0.
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, total.new_zeros(())))
    places = torch.searchsorted(cumulative, target, right=True)
    places = places.clamp_(max=kept.shape[1] - 1)  # rows of NaN have no place
    return (ids.gather(1, places) if filtered else places).squeeze(1)
