"""What one call of a measured part of eviction is: the engine's kernels on random states.

Knows names of curves and points; not how calls are timed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from focus_bench.core.curve_samples import Point
from focus_bench.core.op_curves import BLOCK_LENGTH
from focus_bench.engine.kernels.compaction.launcher import (
    CompactionOutputs,
    CompactionStates,
    compact,
)
from focus_bench.engine.kernels.importance.launcher import MaskedTokens, importance_delta
from focus_bench.engine.kernels.selection.launcher import (
    ACTIVE,
    SelectionInputs,
    SelectionOutputs,
    select,
)
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.op_timer import Call

_BUDGET = 3


class MeasuredEviction:
    """Importance, selection and compaction of one model's states, blocks of BLOCK_LENGTH."""

    def __init__(self, model: BlockDiffusionModel) -> None:
        self._model = model
        self._calls: dict[str, Callable[..., Call]] = {
            "importance": self._importance,
            "selection": self._selection,
            "compaction": self._compaction,
        }

    def __contains__(self, curve: str) -> bool:
        return curve in self._calls

    def calls(self, curve: str, point: Point) -> Sequence[Call]:
        """The call of a curve at a point; a step reads states that it has just written."""
        return [self._calls[curve](*point)]

    def whole(self, sequences: int) -> Call:
        """All three, as a step launches them."""
        parts = (
            self._importance(sequences, BLOCK_LENGTH),
            self._selection(sequences),
            self._compaction(sequences, BLOCK_LENGTH, BLOCK_LENGTH),
        )

        def call() -> None:
            for part in parts:
                part()

        return call

    def _importance(self, sequences: int, masked: int) -> Call:
        spec, tokens = self._model.spec, sequences * masked
        q0, q1 = (self._random(tokens, spec.num_q_heads, spec.head_dim) for _ in range(2))
        k0, k1 = (self._random(tokens, spec.num_kv_heads, spec.head_dim) for _ in range(2))
        numbers = self._numbers(tokens)
        ranked = MaskedTokens(
            cu_masked=self._numbers(sequences + 1) * masked,
            token=numbers,
            slot=numbers,
            column=numbers % masked,
            block_length=BLOCK_LENGTH,
        )
        out = torch.empty((sequences, BLOCK_LENGTH), device=self._model.device)
        return lambda: importance_delta(q0, q1, k0, k1, ranked, out=out)

    def _selection(self, sequences: int) -> Call:
        device = self._model.device
        everything = torch.ones((sequences, BLOCK_LENGTH), dtype=torch.uint8, device=device)
        inputs = SelectionInputs(
            delta=torch.randn((sequences, BLOCK_LENGTH), device=device),
            fed=everything,
            masked=everything,
            progress=self._filled(sequences, BLOCK_LENGTH // 2),
            budget=self._filled(sequences, _BUDGET),
            block_start=self._filled(sequences, BLOCK_LENGTH),
            flags=self._filled(sequences, ACTIVE),
        )
        outputs = SelectionOutputs.empty(sequences, BLOCK_LENGTH, device)
        return lambda: select(inputs, outputs, mode="top")

    def _compaction(self, sequences: int, fed: int, kept: int) -> Call:
        spec, tokens = self._model.spec, sequences * fed
        numbers = self._numbers(tokens)
        states = CompactionStates(
            hidden=self._random(tokens, spec.hidden_size),
            q=self._random(tokens, spec.num_q_heads, spec.head_dim),
            cos=self._random(tokens, spec.rotary_dim),
            sin=self._random(tokens, spec.rotary_dim),
            slots=numbers,
            positions=numbers,
        )
        outputs = CompactionOutputs.empty(states, sequences, tokens)
        is_kept, is_fed = (self._first(sequences, count) for count in (kept, fed))
        counts = self._filled(sequences, kept)
        cu_fed = self._numbers(sequences + 1) * fed
        return lambda: compact(is_kept, is_fed, is_kept, counts, counts, cu_fed, states, outputs)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._model.device, dtype=self._model.dtype)

    def _numbers(self, count: int) -> Tensor:
        return torch.arange(count, dtype=torch.int32, device=self._model.device)

    def _filled(self, count: int, value: int) -> Tensor:
        return torch.full((count,), value, dtype=torch.int32, device=self._model.device)

    def _first(self, sequences: int, count: int) -> Tensor:
        """Masks uint8 [sequences, B], true at the first `count` positions."""
        mask = torch.zeros((sequences, BLOCK_LENGTH), dtype=torch.uint8, device=self._model.device)
        mask[:, :count] = 1
        return mask
