"""AdamW, its learning-rate schedule and the moving average of the weights."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from focus_bench.engine.training.recipe import TrainingRecipe


def learning_rate(recipe: TrainingRecipe, step: int) -> float:
    """Rate of step `step` (from 0): linear warm-up, then a half cosine down to its fraction."""
    if step < recipe.warmup_steps:
        return recipe.peak_lr * (step + 1) / recipe.warmup_steps
    length = max(1, recipe.total_steps - recipe.warmup_steps)
    progress = min(1.0, (step - recipe.warmup_steps) / length)
    floor = recipe.final_lr_fraction
    return recipe.peak_lr * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress)))


def build_optimizer(weights: Mapping[str, Tensor], recipe: TrainingRecipe) -> torch.optim.AdamW:
    """AdamW over all weights, which become leaves that take gradients.

    Matrices decay; norms and the embedding, whose rare rows would only shrink, do not.
    """
    decayed: list[Tensor] = []
    plain: list[Tensor] = []
    for name, weight in weights.items():
        weight.requires_grad_(True)
        is_matrix = weight.ndim == 2 and name != "model.embed_tokens.weight"
        (decayed if is_matrix else plain).append(weight)
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    on_gpu = next(iter(weights.values())).is_cuda
    return torch.optim.AdamW(
        groups, lr=recipe.peak_lr, betas=(recipe.beta_1, recipe.beta_2), fused=on_gpu
    )


def update_average(
    average: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, decay: float, step: int
) -> None:
    """In place, average = decay * average + (1 - decay) * weights.

    The decay grows from 0.1 at step 0, so that the random start is soon forgotten.
    """
    now = min(decay, (1.0 + step) / (10.0 + step))
    targets = [average[name] for name in weights]
    with torch.no_grad():
        torch._foreach_lerp_(targets, [w.detach() for w in weights.values()], 1.0 - now)
