"""Eviction on a GPU: importance, selection and compaction between the first layers and the others.

The rule is decoding/eviction.py, which the selection kernel equals. Holds the buffers that the
kernels write and that the later layers read; knows no layer and no graph.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from focus_bench.core.token_buckets import token_bucket
from focus_bench.decoding.block_state import BoolArray
from focus_bench.decoding.rules import StepRules
from focus_bench.decoding.selection import selection_of
from focus_bench.engine.forward import FirstLayers
from focus_bench.engine.kernels.compaction.launcher import (
    CompactionOutputs,
    CompactionStates,
    compact,
)
from focus_bench.engine.kernels.importance.launcher import MaskedTokens, importance_delta
from focus_bench.engine.kernels.selection.launcher import (
    SelectionInputs,
    SelectionOutputs,
    select,
)
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.step_inputs import StepInputs, StepSize
from focus_bench.scheduling.plan import Plan


class DeviceEviction:
    """Eviction of the steps that `inputs` describes, over one cache."""

    def __init__(
        self,
        model: BlockDiffusionModel,
        cache: PagedKVCache,
        rules: StepRules,
        inputs: StepInputs,
    ) -> None:
        spec, device = model.spec, model.device
        rows, block_length = inputs.max_rows, inputs.block_length
        num_tokens = token_bucket(rows * block_length)
        self._cache = cache
        self._rules = rules
        self._inputs = inputs
        self._delta = torch.zeros((rows, block_length), dtype=torch.float32, device=device)
        self._selected = SelectionOutputs.empty(rows, block_length, device)

        def token_rows(*shape: int, dtype: torch.dtype = model.dtype) -> Tensor:
            return torch.zeros((num_tokens, *shape), dtype=dtype, device=device)

        self._compacted = CompactionOutputs(
            hidden=token_rows(spec.hidden_size),
            q=token_rows(spec.num_q_heads, spec.head_dim),
            cos=token_rows(spec.rotary_dim),
            sin=token_rows(spec.rotary_dim),
            slots=token_rows(dtype=torch.int32).fill_(-1),
            positions=token_rows(dtype=torch.int32),
            cu_kept=torch.zeros(rows + 1, dtype=torch.int32, device=device),
            head_rows=token_rows(dtype=torch.int32),
            totals=torch.zeros(2, dtype=torch.int32, device=device),
        )
        pinned = device.type == "cuda"
        self._totals = torch.zeros(2, dtype=torch.int32, pin_memory=pinned)
        self._kept = torch.zeros((rows, block_length), dtype=torch.uint8, pin_memory=pinned)
        self._is_read = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    # -- what the later layers read ----------------------------------------------------------------

    @property
    def num_keys(self) -> Tensor:
        """Keys [rows] that the kept tokens attend to."""
        return self._selected.num_keys

    @property
    def cu_kept(self) -> Tensor:
        """Bounds [rows + 1] of the kept tokens."""
        return self._compacted.cu_kept

    @property
    def head_rows(self) -> Tensor:
        """The kept masked tokens' rows among the kept, first ones [totals[1]]."""
        return self._compacted.head_rows

    def kept_tokens(self, num_tokens: int) -> FirstLayers:
        """The first `num_tokens` rows of the compacted states."""
        states = self._compacted
        return FirstLayers(
            hidden=states.hidden[:num_tokens],
            q0=states.q[:num_tokens],
            q1=states.q[:num_tokens],
            cos=states.cos[:num_tokens],
            sin=states.sin[:num_tokens],
            slots=states.slots[:num_tokens],
        )

    # -- what a step does --------------------------------------------------------------------------

    def fill(self, plan: Plan, evicting: BoolArray) -> Tensor | None:
        """Describe the selection of a step; returns float64 scores [rows, B] on the device where
        given ones rank the rows, else None.
        """
        block, inputs = plan.block, self._inputs
        selection = selection_of(block, plan.feed, self._rules)
        inputs.fill_budget(
            evicting, selection.budget, fixed=selection.fixed, rightmost=selection.rightmost
        )
        if selection.delta is not None:
            inputs.fill_delta(selection.delta)
        if selection.scores is None:
            return None
        scores = np.zeros((inputs.max_rows, inputs.block_length))
        scores[: block.num_rows] = selection.scores
        return torch.from_numpy(scores).to(self._delta.device)

    def stage(self, first: FirstLayers, scores: Tensor | None) -> Callable[[], None]:
        """Importance, selection and compaction of the first layers' tokens, to be launched."""
        inputs = self._inputs.device
        mode = self._rules.decode.select if scores is None else "given"
        is_synthetic = self._rules.importance.kind == "synthetic"
        selection = SelectionInputs(
            delta=inputs.delta if is_synthetic else self._delta,
            fed=inputs.fed,
            masked=inputs.decodable,
            progress=inputs.progress,
            budget=inputs.budget,
            block_start=inputs.block_start,
            flags=inputs.flags,
            scores=scores,
        )

        def run() -> None:
            self.rank(first)
            select(selection, self._selected, mode="top" if mode == "random" else mode)
            self._compact(first)

        return run

    def rank(self, first: FirstLayers) -> None:
        """Importance deltas of the masked tokens that the inputs name."""
        inputs, cache = self._inputs.device, self._cache
        assert first.q1 is not None
        importance_delta(
            first.q0,
            first.q1,
            cache.layer(0)[0],
            cache.layer(1)[0],
            MaskedTokens(
                cu_masked=inputs.cu_masked,
                token=inputs.masked_token,
                slot=inputs.masked_slot,
                column=inputs.masked_column,
                block_length=self._inputs.block_length,
            ),
            out=self._delta,
        )

    def compact_given(self, first: FirstLayers) -> None:
        """Compaction by what the host decided, through the buffers that selection writes."""
        inputs, selected = self._inputs.device, self._selected
        selected.kept.copy_(inputs.given_kept)
        selected.num_kept.copy_(inputs.given_num_kept)
        selected.num_head.copy_(inputs.given_num_head)
        selected.num_keys.copy_(inputs.later_keys)
        self._compact(first)

    def read(self, size: StepSize) -> tuple[StepSize, BoolArray]:
        """The one readback within a step: kept counts, and kept positions [n, B]."""
        self._totals.copy_(self._compacted.totals, non_blocking=True)
        self._kept.copy_(self._selected.kept, non_blocking=True)
        if self._is_read is not None:
            self._is_read.record()
            self._is_read.synchronize()
        num_kept, num_head = self._totals.tolist()
        kept = self._kept.numpy()[: size.num_rows].astype(np.bool_)
        return StepSize(num_rows=size.num_rows, num_fed=num_kept, num_head=num_head), kept

    def _compact(self, first: FirstLayers) -> None:
        inputs, selected = self._inputs.device, self._selected
        assert first.q1 is not None
        compact(
            selected.kept,
            inputs.fed,
            inputs.decodable,
            selected.num_kept,
            selected.num_head,
            inputs.cu_fed,
            CompactionStates(
                hidden=first.hidden,
                q=first.q1,
                cos=first.cos,
                sin=first.sin,
                slots=first.slots,
                positions=inputs.positions[: len(first.slots)],
            ),
            self._compacted,
        )
