"""What one call of a layer's second half is: output projection and feed-forward, on random states.

Dense layers, and layers with experts. Knows names of curves and rows; not how calls are timed.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch

from focus_bench.core.errors import UsageError
from focus_bench.core.expert_load import UNIFORM_LOAD, MeasuredLoad
from focus_bench.core.op_curves import MeasuredExperts
from focus_bench.engine.kernels.expert_routing.launcher import Routing
from focus_bench.engine.kernels.silu_mul.launcher import silu_mul
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.layer_stack import LayerStack
from focus_bench.engine.measured_states import MeasuredStates
from focus_bench.engine.models.experts import ExpertWeights, SwiGLUWeights
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.models.moe_fused import FusedExpertLayers, mix
from focus_bench.engine.models.sdar import LayerWeights, SdarModel
from focus_bench.engine.models.sdar_fused import FusedDenseLayers
from focus_bench.engine.op_timer import Call

RowCalls = Mapping[str, Callable[[int], list[Call]]]


def _finish(stack: LayerStack, states: MeasuredStates, layers: range, rows: int) -> list[Call]:
    hidden, attention = states.rows(rows), states.attention(rows)
    return [partial(stack.finish, i, hidden, attention) for i in layers]


class DenseFinish:
    """A dense feed-forward's curves by name: `calls` at a number of rows, to be done in turn."""

    def __init__(self, model: SdarModel, stack: FusedDenseLayers) -> None:
        self._model = model
        self._stack = stack
        self._states = MeasuredStates(model)
        self.calls: RowCalls = {
            "gate_up": self._gate_up,
            "down": self._down,
            "silu_mul": self._silu_mul,
            "finish": self._finish,
        }

    def _gate_up(self, rows: int) -> list[Call]:
        stack, normed = self._stack, self._states.rows(rows)
        layers = self._states.in_turn([self._model.layers[0].gate_up])
        return [partial(stack.gate_up_product, i, normed) for i in layers]

    def _down(self, rows: int) -> list[Call]:
        stack, hidden = self._stack, self._states.rows(rows)
        gated = self._states.rows(rows, self._model.spec.intermediate_size)
        layers = self._states.in_turn([self._model.layers[0].down])
        return [partial(stack.down_product, i, hidden, gated) for i in layers]

    def _silu_mul(self, rows: int) -> list[Call]:
        gate_up = self._states.rows(rows, 2 * self._model.spec.intermediate_size)
        return [lambda: silu_mul(gate_up)]

    def _finish(self, rows: int) -> list[Call]:
        weights = self._model.layers[0]
        layers = self._states.in_turn([weights.out, weights.gate_up, weights.down])
        return _finish(self._stack, self._states, layers, rows)


class ExpertFinish:
    """The curves of a model with experts, those of its dense layers included, as DenseFinish has
    them. Raises UsageError for a model of which all layers are dense.
    """

    def __init__(self, model: MoeModel, stack: FusedExpertLayers, cache: PagedKVCache) -> None:
        spec = model.spec
        if spec.experts is None or not spec.num_expert_layers:
            raise UsageError("--model", spec.name, "a model in which some layers have experts")
        self._model = model
        self._stack = stack
        self._experts = spec.experts
        self._states = MeasuredStates(model)
        self._loads: dict[int, list[tuple[float, float]]] = {}
        self.calls: RowCalls = {
            "route": self._route,
            "experts": self._mix,
            "finish": self._finish,
        }
        if spec.num_dense_layers:
            like = _dense_copies(model, self._states)
            dense = DenseFinish(like, FusedDenseLayers(like, cache)).calls
            parts = ("gate_up", "down", "silu_mul")
            own = {"dense_finish": dense["finish"], **{name: dense[name] for name in parts}}
            self.calls = {**self.calls, **own}

    @property
    def measured(self) -> MeasuredExperts | None:
        """The experts, and how the tokens of `experts` spread over them; None before any did."""
        if not self._loads:
            return None
        rows = sorted(self._loads)
        touched, largest = np.array([np.mean(self._loads[r], axis=0) for r in rows]).T
        load = MeasuredLoad(
            rows=tuple(rows), touched=tuple(touched.tolist()), largest_share=tuple(largest.tolist())
        )
        width = self._model.spec.intermediate_size
        return MeasuredExperts(spec=self._experts, dense_width=width, load=load)

    def _weights(self, layer: int) -> ExpertWeights:
        weights = self._model.layers[layer].feed_forward
        assert isinstance(weights, ExpertWeights)
        return weights

    def _layers(self, read_bytes: float) -> range:
        """Layers with experts, as many as outgrow the L2 cache if each reads so much."""
        spec = self._model.spec
        count = self._states.num_in_turn(read_bytes)
        return range(spec.num_dense_layers, spec.num_layers)[:count]

    def _read_bytes(self, rows: int) -> float:
        """What the experts of one layer read, where tokens spread evenly."""
        weights = self._weights(self._model.spec.num_dense_layers)
        one = (weights.gate_up.nbytes + weights.down.nbytes) / self._experts.num_experts
        return one * UNIFORM_LOAD.expected_touched(self._experts, rows)

    def _route(self, rows: int) -> list[Call]:
        normed = self._states.rows(rows)
        of = [self._weights(i) for i in self._layers(self._weights(-1).router.nbytes)]
        return [partial(self._stack.routing, normed, weights, None) for weights in of]

    def _mix(self, rows: int) -> list[Call]:
        hidden, normed = self._states.rows(rows), self._states.rows(rows)
        calls: list[Call] = []
        loads = self._loads.setdefault(rows, [])
        for layer in self._layers(self._read_bytes(rows)):
            weights = self._weights(layer)
            routing = self._stack.routing(normed, weights, None)
            loads.append(_load(routing, self._experts.num_experts))
            calls.append(partial(mix, hidden, normed, weights, routing))
        return calls

    def _finish(self, rows: int) -> list[Call]:
        out = self._model.layers[self._model.spec.num_dense_layers].out
        layers = self._layers(out.nbytes + self._read_bytes(rows))
        return _finish(self._stack, self._states, layers, rows)


def _load(routing: Routing, num_experts: int) -> tuple[float, float]:
    """Different experts of a layer that tokens go to, and the largest share of all choices."""
    counts = torch.bincount(routing.ids.flatten().long(), minlength=num_experts)
    return float((counts > 0).sum()), float(counts.max()) / routing.num_pairs


def _dense_copies(model: MoeModel, states: MeasuredStates) -> SdarModel:
    """A dense model of copies of the first layer, as many as outgrow the L2 cache: there are too
    few dense layers to take them in turn.
    """
    first = model.layers[0]
    assert isinstance(first.feed_forward, SwiGLUWeights)
    gate_up, down = first.feed_forward.gate_up, first.feed_forward.down

    layers = tuple(
        LayerWeights(
            input_norm=first.input_norm,
            qkv=first.qkv,
            qk_norm=first.qk_norm,
            out=first.out.clone(),
            post_norm=first.post_norm,
            gate_up=gate_up.clone(),
            down=down.clone(),
        )
        for _ in range(states.num_in_turn(down.nbytes))
    )
    return SdarModel(
        spec=model.spec.replace(num_layers=len(layers), experts=None),
        layers=layers,
        embedding=model.embedding,
        final_norm=model.final_norm,
        head=model.head,
        rope_frequencies=model.rope_frequencies,
    )
