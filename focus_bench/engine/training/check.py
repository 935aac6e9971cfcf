"""Compares the training forward pass with the engine's own prefill and decode steps.

The gate before device time is spent on training: what is trained must be what decoding computes.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.rng import stream_key
from focus_bench.engine.host_step import DecodeForward, SequenceTokens, prefill
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models import sdar
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.training.model import Forward
from focus_bench.engine.training.noise import NoisedBatch
from focus_bench.engine.training.packing import CLEAN, NOISED, PackedRows


def check_weights(spec: ModelSpec, *, seed: int, device: torch.device) -> dict[str, Tensor]:
    """Random float32 weights large enough that attention decides the logits, norms included.

    (At the start of training it adds next to nothing, and a wrong mask would pass unseen.)
    """
    weights = {}
    for name, shape in sdar.tensor_shapes(spec).items():
        random = torch.Generator().manual_seed(stream_key(seed, f"check/{name}") >> 1)
        if len(shape) == 1:
            value = torch.rand(shape, generator=random) + 0.5
        else:
            value = torch.randn(shape, generator=random) * shape[1] ** -0.5
        weights[name] = value.to(device)
    return weights


@torch.no_grad()
def engine_difference(
    forward: Forward,
    weights: Mapping[str, Tensor],
    engine_model: BlockDiffusionModel,
    rows: PackedRows,
    batch: NoisedBatch,
    *,
    max_contexts: int,
) -> float:
    """||training - engine|| / ||engine|| over the logits of the noised blocks of some contexts.

    `engine_model` holds the same weights; in float32 the difference is rounding (below 1e-5), with
    a bfloat16 forward pass it is 1e-2 or so. The first context of up to `max_contexts` rows counts.
    """
    forward.attention.set_rows(rows)
    block_length = len(batch.targets) // len(batch.noised_slots)
    logits = forward.noised_logits(weights, batch).view(len(batch.noised_slots), block_length, -1)
    tokens = batch.input_ids.view(-1, block_length).cpu().numpy().astype(np.int32)
    place_of = {slot: place for place, slot in enumerate(batch.noised_slots.tolist())}
    slots_per_row = rows.kind.shape[1]
    ours, theirs = [], []
    for row in range(min(max_contexts, rows.num_rows)):
        slots = row * slots_per_row + np.flatnonzero(rows.unit[row] == 1)
        kinds, indices = rows.kind.reshape(-1)[slots], rows.index.reshape(-1)[slots]
        clean, noised = slots[kinds == CLEAN], slots[kinds == NOISED]
        noised_indices = indices[kinds == NOISED]
        engine = _EngineBlocks(engine_model, tokens[clean])
        # From the right, as a decode step overwrites the cache of its block.
        for order in np.argsort(-noised_indices, kind="stable").tolist():
            slot = int(noised[order])
            ours.append(logits[place_of[slot]])
            theirs.append(engine.logits(tokens[slot], int(noised_indices[order])))
    reference = torch.cat(theirs)
    difference = torch.linalg.vector_norm(torch.cat(ours) - reference)
    return float(difference / torch.linalg.vector_norm(reference))


class _EngineBlocks:
    """One sequence in the engine: its clean blocks [n, B] prefilled, then one block decoded."""

    def __init__(self, model: BlockDiffusionModel, clean: np.ndarray) -> None:
        num_clean, self._block_length = clean.shape
        self._model = model
        self._pages = np.arange(num_clean + 1, dtype=np.int32)
        self._cache = PagedKVCache(
            model.spec,
            num_pages=num_clean + 1,
            page_size=self._block_length,
            device=model.device,
            dtype=model.dtype,
        )
        if num_clean:
            history = self._tokens(clean.reshape(-1), 0)
            prefill(model, self._cache, [history], block_length=self._block_length)

    def logits(self, block: np.ndarray, index: int) -> Tensor:
        """Logits [B, vocab_size] of a noised block at `index`, after all clean ones before it."""
        start = index * self._block_length
        forward = DecodeForward(
            self._model,
            self._cache,
            [self._tokens(block, start)],
            block_start=np.array([start], dtype=np.int64),
            block_length=self._block_length,
        )
        forward.prefix()
        everything = np.ones(self._block_length, dtype=np.bool_)
        hidden = forward.suffix(everything, np.array([self._block_length - 1], dtype=np.int64))
        return self._model.logits(hidden)

    def _tokens(self, token_ids: np.ndarray, start: int) -> SequenceTokens:
        positions = np.arange(start, start + len(token_ids), dtype=np.int64)
        return SequenceTokens(
            token_ids=token_ids.astype(np.int32), positions=positions, page_table=self._pages
        )
