"""The unmasking head in plain torch, with all logits at once."""

import torch
from torch import Tensor

from focus_bench.engine.kernels.unmask_head.workspace import HeadConfig


def unmask_head(
    hidden: Tensor, weight: Tensor, *, config: HeadConfig, uniforms: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Token int32 [R] and confidence float32 [R]; the launcher's docstring says of what."""
    logits = torch.mm(hidden, weight.T).float()
    logits[:, config.mask_token_id] = -torch.inf
    logits[:, config.num_valid_ids :] = -torch.inf
    if uniforms is None:
        probabilities = torch.softmax(logits, dim=-1)
        tokens = logits.argmax(dim=-1)
    else:
        probabilities = torch.softmax(logits / config.temperature, dim=-1)
        cumulative = probabilities.double().cumsum(dim=-1)
        target = uniforms[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, target, right=True).squeeze(1)
        tokens = tokens.clamp(max=logits.shape[1] - 1)
    confidence = probabilities.gather(1, tokens[:, None]).squeeze(1)
    return torch.where(confidence.isnan(), 0, tokens).int(), confidence
