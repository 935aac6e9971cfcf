"""One training run in memory: data, state and forward pass; takes steps and evaluates.

Knows no files and no clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from focus_bench.engine.training.checkpoint import TrainingState
from focus_bench.engine.training.documents import DocumentBlocks, TokenDocuments
from focus_bench.engine.training.model import Forward
from focus_bench.engine.training.noise import (
    BlocksOnDevice,
    NoisedBatch,
    noise_batch,
    noise_generator,
)
from focus_bench.engine.training.objective import diffusion_loss, masked_accuracy
from focus_bench.engine.training.optimizer import learning_rate, update_average
from focus_bench.engine.training.packing import PackedRows, batches
from focus_bench.engine.training.recipe import TrainingRecipe

HELD_OUT = "held-out"
TRAIN = "train"


@dataclass(frozen=True, kw_only=True, eq=False)
class StepResult:
    """What a step leaves on the device, unread: scalar `loss` (nats per token) and `grad_norm`."""

    loss: Tensor
    grad_norm: Tensor


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Held-out `loss` (nats per token) and `accuracy` (masked reply tokens) of the average."""

    loss: float
    accuracy: float


class BatchSource:
    """Noised batches of one set of documents, in their fixed order, on one device."""

    def __init__(
        self,
        recipe: TrainingRecipe,
        documents: TokenDocuments,
        device: torch.device,
        stream: str,
        *,
        start_step: int = 0,
    ) -> None:
        blocks = DocumentBlocks.cut(
            documents,
            block_length=recipe.block_length,
            context_length=recipe.context_length,
            vocab_size=recipe.vocab_size,
        )
        self._recipe = recipe
        self._mask_token_id = documents.mask_token_id
        self._data = BlocksOnDevice.copy(blocks, device)
        self._device = device
        self._stream = stream
        self._rows: Iterator[PackedRows] = batches(
            blocks, recipe, start_step=start_step, stream=stream
        )
        self._step = start_step

    def next(self) -> tuple[PackedRows, NoisedBatch]:
        """The next batch."""
        rows = next(self._rows)
        random = noise_generator(self._recipe.seed, self._stream, self._step, self._device)
        self._step += 1
        noised = noise_batch(
            rows, self._data, self._recipe, mask_token_id=self._mask_token_id, random=random
        )
        return rows, noised


class Trainer:
    """Takes training steps on `state`; `held_out` may be None if nothing is evaluated."""

    def __init__(
        self,
        recipe: TrainingRecipe,
        state: TrainingState,
        train: TokenDocuments,
        held_out: TokenDocuments | None,
        *,
        forward: Forward,
    ) -> None:
        self.recipe = recipe
        self.state = state
        self.forward = forward
        device = forward.device
        self._source = BatchSource(recipe, train, device, TRAIN, start_step=state.step)
        self._held_out: list[tuple[PackedRows, NoisedBatch]] = []
        if held_out is not None:
            source = BatchSource(recipe, held_out, device, HELD_OUT)
            self._held_out = [source.next() for _ in range(recipe.evaluation_batches)]

    def step(self) -> StepResult:
        """One optimiser step; reads nothing back, so the host can run ahead of the device."""
        recipe, state = self.recipe, self.state
        rows, batch = self._source.next()
        self.forward.attention.set_rows(rows)
        loss = diffusion_loss(self.forward.noised_logits(state.weights, batch), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = torch.nn.utils.clip_grad_norm_(state.weights.values(), recipe.clip_norm)
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate(recipe, state.step)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        update_average(state.average, state.weights, decay=recipe.ema_decay, step=state.step)
        state.step += 1
        return StepResult(loss=loss.detach(), grad_norm=grad_norm)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """The averaged weights on the held-out batches, always the same ones, equally noised."""
        losses, accuracies = [], []
        for rows, batch in self._held_out:
            self.forward.attention.set_rows(rows)
            logits = self.forward.noised_logits(self.state.average, batch)
            losses.append(diffusion_loss(logits, batch))
            accuracies.append(masked_accuracy(logits, batch))
        count = len(self._held_out)
        return Evaluation(
            loss=float(torch.stack(losses).sum()) / count,
            accuracy=float(torch.stack(accuracies).sum()) / count,
        )
