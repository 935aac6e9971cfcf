"""Noises a batch on its device: which reply tokens are masked, and what each one weighs.

Per noised block a level t in [min_noise, 1]; a reply token is masked with probability t and its
loss weighs 1 / t (the continuous-time bound of masked diffusion with a linear schedule, as block
diffusion and SDAR train). Prompt tokens are never masked, in the first decode block neither.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from focus_bench.core.rng import stream_key
from focus_bench.engine.training.documents import FILL, PROMPT, REPLY, DocumentBlocks
from focus_bench.engine.training.packing import NOISED, PackedRows
from focus_bench.engine.training.recipe import TrainingRecipe
from focus_bench.engine.training.transfer import to_device

# The fractional part of the golden ratio: its multiples modulo 1 cover [0, 1) evenly, and those of
# neighbouring blocks (or of a block's copies, a few slots on) lie far apart.
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, kw_only=True, eq=False)
class BlocksOnDevice:
    """All blocks' `token_ids` (int16 or int32) and `roles` (uint8), [blocks, B], on the device."""

    token_ids: Tensor
    roles: Tensor

    @classmethod
    def copy(cls, blocks: DocumentBlocks, device: torch.device) -> "BlocksOnDevice":
        """The whole data at once: 100 M tokens are 300 MB."""
        small = int(blocks.token_ids.max()) < 1 << 15
        ids = blocks.token_ids.astype(np.int16 if small else np.int32)
        return cls(
            token_ids=torch.from_numpy(ids).to(device),
            roles=torch.from_numpy(blocks.roles).to(device),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisedBatch:
    """One step's input and targets, T = R * S * B tokens, N noised blocks.

    `input_ids`, `positions`: int64 [T]. `noised_slots`: int64 [N], which of the R * S slots are
    noised. `targets`: int64 [N * B]; `weights`: float32 [N * B], 0 where nothing is to be learnt;
    `is_masked_reply`: bool [N * B], masked tokens of the reply itself. `normaliser`: what the
    weights sum to in the mean over the noise, float32 scalar.
    """

    input_ids: Tensor
    positions: Tensor
    noised_slots: Tensor
    targets: Tensor
    weights: Tensor
    is_masked_reply: Tensor
    normaliser: Tensor


def noise_generator(seed: int, stream: str, step: int, device: torch.device) -> torch.Generator:
    """Random numbers of one step: no state to save, since they depend on seed and step alone.

    (A CPU and a GPU draw different ones.)
    """
    key = stream_key(seed, f"noise/{stream}/{step}")
    return torch.Generator(device=device).manual_seed(key >> 1)


def noise_levels(num_slots: int, recipe: TrainingRecipe, random: torch.Generator) -> Tensor:
    """Level t of each slot, float32 [num_slots] in [min_noise, 1], evenly spread over the batch."""
    device = random.device
    draws = torch.rand(num_slots + 1, generator=random, device=device, dtype=torch.float64)
    slots = torch.arange(num_slots, device=device, dtype=torch.float64)
    spread = (draws[-1] + slots * _GOLDEN) % 1.0
    levels = recipe.min_noise + (1.0 - recipe.min_noise) * spread
    return torch.where(draws[:-1] < recipe.full_mask_fraction, 1.0, levels).float()


def noise_batch(
    rows: PackedRows,
    data: BlocksOnDevice,
    recipe: TrainingRecipe,
    *,
    mask_token_id: int,
    random: torch.Generator,
) -> NoisedBatch:
    """Gather the rows' tokens and mask them; everything lies on the generator's device."""
    device = random.device
    slots = to_device(np.stack([rows.block, rows.index]).reshape(2, -1), device)
    # The places are known on the host: no step waits for the device to count them.
    noised_slots = to_device(np.flatnonzero(rows.kind.reshape(-1) == NOISED), device)
    clean_ids = data.token_ids[slots[0]].long()
    targets = clean_ids[noised_slots]
    roles = data.roles[slots[0][noised_slots]]
    levels = noise_levels(len(clean_ids), recipe, random)[noised_slots][:, None]
    draws = torch.rand(targets.shape, generator=random, device=device)
    # With t = 1 every token is masked: draws lie below 1.
    is_masked = (draws < levels) & (roles != PROMPT)
    role_weights = torch.zeros(3, device=device)
    role_weights[REPLY], role_weights[FILL] = 1.0, recipe.fill_weight
    weights = role_weights[roles.long()]
    input_ids = clean_ids.index_copy(
        0, noised_slots, torch.where(is_masked, mask_token_id, targets)
    )
    offsets = torch.arange(clean_ids.shape[1], device=device)
    positions = slots[1].long()[:, None] * recipe.block_length + offsets
    return NoisedBatch(
        input_ids=input_ids.reshape(-1),
        positions=positions.reshape(-1),
        noised_slots=noised_slots,
        targets=targets.reshape(-1),
        weights=(weights * is_masked / levels).reshape(-1),
        is_masked_reply=(is_masked & (roles == REPLY)).reshape(-1),
        normaliser=weights.sum(),
    )
