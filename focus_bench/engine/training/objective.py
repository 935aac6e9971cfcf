"""The training objective on logits: weighted cross-entropy of masked tokens, and its accuracy."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from focus_bench.engine.training.noise import NoisedBatch


def diffusion_loss(logits: Tensor, batch: NoisedBatch) -> Tensor:
    """Scalar: sum of weight * cross-entropy over the mean sum of weights, in nats per token.

    The divisor does not depend on what was masked, so the gradient is unbiased.
    """
    losses = cross_entropy(logits, batch.targets, reduction="none")
    return (losses * batch.weights).sum() / batch.normaliser


def masked_accuracy(logits: Tensor, batch: NoisedBatch) -> Tensor:
    """Scalar: share of masked reply tokens that the largest logit names."""
    hits = (logits.argmax(dim=-1) == batch.targets) & batch.is_masked_reply
    return hits.sum() / batch.is_masked_reply.sum().clamp(min=1).to(torch.float32)
