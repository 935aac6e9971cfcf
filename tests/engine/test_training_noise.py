"""Noise and loss weights: what is masked, how much, and that the loss is unbiased."""

import itertools

import numpy as np
import pytest
import torch
from training_cases import EOS, MASK, TINY, documents

from focus_bench.engine.training.documents import FILL, PROMPT, REPLY, DocumentBlocks
from focus_bench.engine.training.noise import (
    BlocksOnDevice,
    NoisedBatch,
    noise_batch,
    noise_generator,
    noise_levels,
)
from focus_bench.engine.training.objective import diffusion_loss, masked_accuracy
from focus_bench.engine.training.packing import NOISED, PackedRows, batches
from focus_bench.engine.training.recipe import TrainingRecipe

CPU = torch.device("cpu")
BLOCKS = DocumentBlocks.cut(documents(), block_length=8, context_length=64, vocab_size=64)
DATA = BlocksOnDevice.copy(BLOCKS, CPU)


def noised(step: int, recipe: TrainingRecipe = TINY) -> tuple[PackedRows, NoisedBatch]:
    rows = next(batches(BLOCKS, recipe))
    random = noise_generator(recipe.seed, "train", step, CPU)
    return rows, noise_batch(rows, DATA, recipe, mask_token_id=MASK, random=random)


def test_only_reply_and_fill_tokens_of_noised_blocks_are_masked() -> None:
    rows, batch = noised(0)
    clean = BLOCKS.token_ids[rows.block].reshape(-1)
    roles = BLOCKS.roles[rows.block]
    may_be_masked = ((rows.kind == NOISED)[:, :, None] & (roles != PROMPT)).reshape(-1)
    is_masked = batch.input_ids.numpy() == MASK
    assert not (is_masked & ~may_be_masked).any()
    assert np.array_equal(batch.input_ids.numpy()[~is_masked], clean[~is_masked])
    share = is_masked.sum() / may_be_masked.sum()
    assert 0.4 < share < 0.75  # the mean level is 0.595
    positions = batch.positions.numpy().reshape((*rows.block.shape, 8))
    assert np.array_equal(positions, rows.index[:, :, None] * 8 + np.arange(8))


def test_weights_are_the_inverse_level_times_the_roles_weight() -> None:
    recipe = TINY.replace(min_noise=1.0)  # every level is 1: all is masked, all weights are plain
    rows, batch = noised(0, recipe)
    slots = np.flatnonzero(rows.kind.reshape(-1) == NOISED)
    block = rows.block.reshape(-1)[slots]
    role_weights = {PROMPT: 0.0, REPLY: 1.0, FILL: np.float32(0.1)}
    expected = np.vectorize(role_weights.__getitem__, otypes=[np.float32])(BLOCKS.roles[block])
    assert batch.noised_slots.tolist() == slots.tolist()
    assert np.array_equal(batch.weights.numpy(), expected.reshape(-1))
    assert np.array_equal(batch.targets.numpy(), BLOCKS.token_ids[block].reshape(-1))
    assert float(batch.normaliser) == pytest.approx(expected.sum(), rel=1e-5)
    is_reply = (BLOCKS.roles[block] == REPLY).reshape(-1)
    assert np.array_equal(batch.is_masked_reply.numpy(), is_reply)


def test_the_loss_of_a_constant_prediction_is_the_same_in_the_mean_over_the_noise() -> None:
    logits_row = torch.randn(64, generator=torch.Generator().manual_seed(0))
    values = []
    for step in range(200):
        _, batch = noised(step)
        logits = logits_row.expand(len(batch.targets), 64)
        values.append(float(diffusion_loss(logits, batch)))
    # Everything masked, every weight 1: the mean over the noise must be this.
    _, plain = noised(0, TINY.replace(min_noise=1.0))
    expected = float(diffusion_loss(logits_row.expand(len(plain.targets), 64), plain))
    error = np.std(values) / len(values) ** 0.5
    assert abs(np.mean(values) - expected) < 4 * error
    assert error < 0.02 * expected


def test_levels_cover_their_range_evenly_and_neighbours_differ() -> None:
    recipe = TINY.replace(full_mask_fraction=0.0)
    random = noise_generator(0, "train", 3, CPU)
    levels = noise_levels(500, recipe, random)
    ordered = levels.sort().values
    assert float(ordered[0]) >= 0.1
    assert float(ordered[-1]) <= 1.0
    # Independent draws would leave gaps of 0.9 * ln(500) / 500 or so.
    assert float(ordered.diff().max()) < 0.9 * 3 / 500
    assert float(levels.diff().abs().min()) > 0.3
    all_full = noise_levels(50, TINY.replace(full_mask_fraction=1.0), random)
    assert bool((all_full == 1.0).all())


def test_noise_depends_on_seed_stream_and_step_alone() -> None:
    first, again, other = (noised(s)[1].input_ids for s in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    levels = [
        noise_levels(9, TINY, noise_generator(seed, stream, 0, CPU))
        for seed, stream in itertools.product((0, 1), ("train", "held-out"))
    ]
    for a, b in itertools.combinations(levels, 2):
        assert not torch.equal(a, b)


def test_accuracy_counts_masked_reply_tokens_only() -> None:
    _, batch = noised(1)
    right = torch.nn.functional.one_hot(batch.targets, 64).float()
    assert float(masked_accuracy(right, batch)) == 1.0
    wrong_elsewhere = torch.where(batch.is_masked_reply[:, None], right, -right)
    assert float(masked_accuracy(wrong_elsewhere, batch)) == 1.0
    always_stop = torch.nn.functional.one_hot(torch.tensor(EOS), 64).float()
    share = ((batch.targets == EOS) & batch.is_masked_reply).sum() / batch.is_masked_reply.sum()
    accuracy = masked_accuracy(always_stop.expand(len(batch.targets), 64), batch)
    assert float(accuracy) == pytest.approx(float(share))
