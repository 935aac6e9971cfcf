"""What one call of a layer's measured operations is: the engine's own layers, on random states.

Knows names of curves and points; not how calls are timed.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from focus_bench.core.config import SamplingConfig
from focus_bench.core.curve_samples import Point
from focus_bench.core.errors import UsageError
from focus_bench.engine.device_head import DeviceHead
from focus_bench.engine.kernels.rms_norm.launcher import rms_norm
from focus_bench.engine.kernels.silu_mul.launcher import silu_mul
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.models.fused import fused_layers
from focus_bench.engine.models.sdar import SdarModel
from focus_bench.engine.models.sdar_fused import FusedDenseLayers
from focus_bench.engine.op_timer import Call

# Layers are taken in turn until their weights are this many times the L2 cache.
_L2_TIMES = 4


class MeasuredLayers:
    """Products, what lies between them, embedding and head of one model.

    `cache` has all of the model's layers, and slots for the most rows of a call. Raises UsageError
    for a model whose products cannot be called one by one.
    """

    def __init__(self, model: BlockDiffusionModel, cache: PagedKVCache, *, max_rows: int) -> None:
        stack = fused_layers(model, cache)
        if not isinstance(model, SdarModel) or not isinstance(stack, FusedDenseLayers):
            raise UsageError("--model", model.spec.name, "an SDAR model (to calibrate a GPU)")
        self._model = model
        self._stack = stack
        self._head = DeviceHead(model, stack, SamplingConfig(), max_rows=max_rows)
        self._l2_bytes = _l2_bytes(model.device)
        self._calls: dict[str, Callable[[int], list[Call]]] = {
            "qkv": self._qkv,
            "o": self._o,
            "gate_up": self._gate_up,
            "down": self._down,
            "rms_norm": self._rms_norm,
            "qk_norm_rope": self._qk_norm_rope,
            "silu_mul": self._silu_mul,
            "project": self._project,
            "finish": self._finish,
            "layer_sustained": self._layer,
            "embed_rope": self._embed_rope,
            "head": self._head_calls,
        }

    def __contains__(self, curve: str) -> bool:
        return curve in self._calls

    def calls(self, curve: str, point: Point) -> Sequence[Call]:
        """Calls of a curve at a point (rows), to be done in turn."""
        return self._calls[curve](*point)

    def _states(self, rows: int, width: int | None = None) -> Tensor:
        size = (rows, width or self._model.spec.hidden_size)
        return torch.randn(size, device=self._model.device, dtype=self._model.dtype)

    def _rotated(self, weights: Callable[[int], Sequence[Tensor]]) -> range:
        """Layers whose weights together do not fit into the L2 cache."""
        num_bytes = sum(weight.nbytes for weight in weights(0))
        needed = math.ceil(_L2_TIMES * self._l2_bytes / num_bytes)
        return range(min(self._model.spec.num_layers, max(2, needed)))

    def _qkv(self, rows: int) -> list[Call]:
        stack, normed = self._stack, self._states(rows)
        layers = self._rotated(lambda i: [self._model.layers[i].qkv])
        return [partial(stack.qkv_product, i, normed) for i in layers]

    def _o(self, rows: int) -> list[Call]:
        stack, hidden = self._stack, self._states(rows)
        attention = self._states(rows, self._model.spec.q_size)
        layers = self._rotated(lambda i: [self._model.layers[i].out])
        return [partial(stack.out_product, i, hidden, attention) for i in layers]

    def _gate_up(self, rows: int) -> list[Call]:
        stack, normed = self._stack, self._states(rows)
        layers = self._rotated(lambda i: [self._model.layers[i].gate_up])
        return [partial(stack.gate_up_product, i, normed) for i in layers]

    def _down(self, rows: int) -> list[Call]:
        stack, hidden = self._stack, self._states(rows)
        gated = self._states(rows, self._model.spec.intermediate_size)
        layers = self._rotated(lambda i: [self._model.layers[i].down])
        return [partial(stack.down_product, i, hidden, gated) for i in layers]

    def _rms_norm(self, rows: int) -> list[Call]:
        hidden, weight = self._states(rows), self._model.layers[0].input_norm
        return [lambda: rms_norm(hidden, weight, self._model.spec.rms_eps)]

    def _qk_norm_rope(self, rows: int) -> list[Call]:
        spec, stack = self._model.spec, self._stack
        qkv = self._states(rows, spec.q_size + 2 * spec.kv_size)
        cos, sin, slots = self._tables(rows)
        return [partial(stack.rotated, i, qkv, cos, sin, slots) for i in range(spec.num_layers)]

    def _silu_mul(self, rows: int) -> list[Call]:
        gate_up = self._states(rows, 2 * self._model.spec.intermediate_size)
        return [lambda: silu_mul(gate_up)]

    def _project(self, rows: int) -> list[Call]:
        stack, hidden = self._stack, self._states(rows)
        cos, sin, slots = self._tables(rows)
        layers = self._rotated(lambda i: [self._model.layers[i].qkv])
        return [partial(stack.project, i, hidden, cos, sin, slots) for i in layers]

    def _finish(self, rows: int) -> list[Call]:
        stack, hidden = self._stack, self._states(rows)
        attention = self._states(rows, self._model.spec.q_size)
        layers = self._rotated(self._finish_weights)
        return [partial(stack.finish, i, hidden, attention) for i in layers]

    def _layer(self, rows: int) -> list[Call]:
        projects, finishes = self._project(rows), self._finish(rows)
        layers = range(max(len(projects), len(finishes)))

        def layer(i: int) -> None:
            projects[i % len(projects)]()
            finishes[i % len(finishes)]()

        return [partial(layer, i) for i in layers]

    def _finish_weights(self, layer: int) -> Sequence[Tensor]:
        weights = self._model.layers[layer]
        return weights.out, weights.gate_up, weights.down

    def _embed_rope(self, rows: int) -> list[Call]:
        ids = torch.arange(rows, device=self._model.device, dtype=torch.int32)
        ids = ids * 7919 % self._model.spec.vocab_size
        positions = torch.arange(rows, device=self._model.device, dtype=torch.int32)

        def call() -> None:
            self._stack.rope(positions)
            self._stack.embed(ids)

        return [call]

    def _head_calls(self, rows: int) -> list[Call]:
        hidden = self._states(rows)
        needed = torch.arange(rows, device=self._model.device, dtype=torch.int32)
        return [lambda: self._head.compute(hidden, needed, None)]

    def _tables(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rotary cos and sin of `rows` positions, and as many cache slots."""
        positions = torch.arange(rows, device=self._model.device, dtype=torch.int32)
        return *self._stack.rope(positions), positions


def _l2_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
