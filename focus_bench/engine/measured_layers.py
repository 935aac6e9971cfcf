"""What one call of a layer's measured operations is: the engine's own layers, on random states.

Knows names of curves and points, the feed-forward's from measured_finish; not how calls are timed.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from focus_bench.core.config import SamplingConfig
from focus_bench.core.curve_samples import Point
from focus_bench.core.errors import UsageError
from focus_bench.core.op_curves import MeasuredExperts
from focus_bench.engine.device_head import DeviceHead
from focus_bench.engine.kernels.rms_norm.launcher import rms_norm
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.measured_finish import DenseFinish, ExpertFinish
from focus_bench.engine.measured_states import MeasuredStates
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.models.fused import fused_layers
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.models.moe_fused import FusedExpertLayers
from focus_bench.engine.models.sdar import SdarModel
from focus_bench.engine.models.sdar_fused import FusedDenseLayers
from focus_bench.engine.op_timer import Call


class MeasuredLayers:
    """Products, what lies between them, embedding and head of one model.

    `cache` has all of the model's layers, and slots for the most rows of a call. Raises UsageError
    for a model whose products cannot be called one by one.
    """

    def __init__(self, model: BlockDiffusionModel, cache: PagedKVCache, *, max_rows: int) -> None:
        stack = fused_layers(model, cache)
        finish: DenseFinish | ExpertFinish
        if isinstance(model, SdarModel) and isinstance(stack, FusedDenseLayers):
            finish = DenseFinish(model, stack)
        elif isinstance(model, MoeModel) and isinstance(stack, FusedExpertLayers):
            finish = ExpertFinish(model, stack, cache)
        else:
            allowed = "an SDAR model or one with experts (to calibrate a GPU)"
            raise UsageError("--model", model.spec.name, allowed)
        self._model: SdarModel | MoeModel = model
        self._stack: FusedDenseLayers | FusedExpertLayers = stack
        self._finish = finish
        self._head = DeviceHead(model, stack, SamplingConfig(), max_rows=max_rows)
        self._states = MeasuredStates(model)
        self._calls: dict[str, Callable[[int], list[Call]]] = {
            **finish.calls,
            "qkv": self._qkv,
            "o": self._o,
            "rms_norm": self._rms_norm,
            "qk_norm_rope": self._qk_norm_rope,
            "project": self._project,
            "layer_sustained": self._layer,
            "embed_rope": self._embed_rope,
            "head": self._head_calls,
        }

    def __contains__(self, curve: str) -> bool:
        return curve in self._calls

    def calls(self, curve: str, point: Point) -> Sequence[Call]:
        """Calls of a curve at a point (rows), to be done in turn."""
        return self._calls[curve](*point)

    @property
    def experts(self) -> MeasuredExperts | None:
        """The model's experts and what the calls so far made of them; None of a dense model."""
        return self._finish.measured if isinstance(self._finish, ExpertFinish) else None

    def _qkv(self, rows: int) -> list[Call]:
        stack, normed = self._stack, self._states.rows(rows)
        layers = self._states.in_turn([self._model.layers[0].qkv])
        return [partial(stack.qkv_product, i, normed) for i in layers]

    def _o(self, rows: int) -> list[Call]:
        stack, hidden = self._stack, self._states.rows(rows)
        attention = self._states.attention(rows)
        layers = self._states.in_turn([self._model.layers[0].out])
        return [partial(stack.out_product, i, hidden, attention) for i in layers]

    def _rms_norm(self, rows: int) -> list[Call]:
        hidden, weight = self._states.rows(rows), self._model.layers[0].input_norm
        return [lambda: rms_norm(hidden, weight, self._model.spec.rms_eps)]

    def _qk_norm_rope(self, rows: int) -> list[Call]:
        spec, stack = self._model.spec, self._stack
        qkv = self._states.rows(rows, spec.q_size + 2 * spec.kv_size)
        cos, sin, slots = self._tables(rows)
        return [partial(stack.rotated, i, qkv, cos, sin, slots) for i in range(spec.num_layers)]

    def _project(self, rows: int) -> list[Call]:
        stack, hidden = self._stack, self._states.rows(rows)
        cos, sin, slots = self._tables(rows)
        layers = self._states.in_turn([self._model.layers[0].qkv])
        return [partial(stack.project, i, hidden, cos, sin, slots) for i in layers]

    def _layer(self, rows: int) -> list[Call]:
        projects, finishes = self._project(rows), self._calls["finish"](rows)
        layers = range(max(len(projects), len(finishes)))

        def layer(i: int) -> None:
            projects[i % len(projects)]()
            finishes[i % len(finishes)]()

        return [partial(layer, i) for i in layers]

    def _embed_rope(self, rows: int) -> list[Call]:
        ids = torch.arange(rows, device=self._model.device, dtype=torch.int32)
        ids = ids * 7919 % self._model.spec.vocab_size
        positions = torch.arange(rows, device=self._model.device, dtype=torch.int32)

        def call() -> None:
            self._stack.rope(positions)
            self._stack.embed(ids)

        return [call]

    def _head_calls(self, rows: int) -> list[Call]:
        hidden = self._states.rows(rows)
        needed = torch.arange(rows, device=self._model.device, dtype=torch.int32)
        return [lambda: self._head.compute(hidden, needed, None)]

    def _tables(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rotary cos and sin of `rows` positions, and as many cache slots."""
        positions = torch.arange(rows, device=self._model.device, dtype=torch.int32)
        return *self._stack.rope(positions), positions
