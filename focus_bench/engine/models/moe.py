"""Models with experts: attention with QK norm, and a feed-forward that is dense or of experts.

Which layers are which is said by ModelSpec. Knows no tensors' names, no files and no caches.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models.decoder import QkNormModel, QkNormWeights
from focus_bench.engine.models.experts import ExpertWeights, SwiGLUWeights


@dataclass(frozen=True, kw_only=True)
class MoeLayer(QkNormWeights):
    """One layer's weights."""

    feed_forward: SwiGLUWeights | ExpertWeights


@dataclass(frozen=True, kw_only=True)
class MoeModel(QkNormModel[MoeLayer]):
    """The weights of a model with experts; implements BlockDiffusionModel."""

    def finish(self, layer: int, hidden: Tensor, attention: Tensor) -> Tensor:
        """Output projection and feed-forward, each with its residual: [T, h]."""
        hidden, normed = self.after_attention(layer, hidden, attention)
        return hidden + self.layers[layer].feed_forward(normed)


def feed_forward_shapes(spec: ModelSpec, layer: int, prefix: str) -> dict[str, tuple[int, ...]]:
    """Name and shape of the tensors of a layer's feed-forward, whose names begin with `prefix`.

    SDAR-30B-A3B (as Qwen3-MoE) and LLaDA2.0 call them the same; the one has nothing shared and no
    bias.
    """
    h, experts = spec.hidden_size, spec.experts
    if experts is None or layer < spec.num_dense_layers:
        return _swiglu_shapes(prefix, h, spec.intermediate_size)
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}gate.weight": (experts.num_experts, h)}
    if experts.has_router_bias:
        shapes[f"{prefix}gate.expert_bias"] = (experts.num_experts,)
    for expert in range(experts.num_experts):
        shapes |= _swiglu_shapes(f"{prefix}experts.{expert}.", h, experts.expert_size)
    if experts.shared_size:
        shapes |= _swiglu_shapes(f"{prefix}shared_experts.", h, experts.shared_size)
    return shapes


def build_feed_forward(
    spec: ModelSpec, layer: int, prefix: str, tensor: Callable[[str], Tensor]
) -> SwiGLUWeights | ExpertWeights:
    """A layer's feed-forward from the tensors of `feed_forward_shapes`."""
    experts = spec.experts
    if experts is None or layer < spec.num_dense_layers:
        return _swiglu(prefix, tensor)
    router = tensor(f"{prefix}gate.weight")
    bias = tensor(f"{prefix}gate.expert_bias") if experts.has_router_bias else None
    # Filled one by one: stacking them all at once would need the layer's memory twice.
    one = _swiglu(f"{prefix}experts.0.", tensor)
    gate_up = one.gate_up.new_empty((experts.num_experts, *one.gate_up.shape))
    down = one.down.new_empty((experts.num_experts, *one.down.shape))
    gate_up[0], down[0] = one.gate_up, one.down
    for expert in range(1, experts.num_experts):
        one = _swiglu(f"{prefix}experts.{expert}.", tensor)
        gate_up[expert], down[expert] = one.gate_up, one.down
    shared = _swiglu(f"{prefix}shared_experts.", tensor) if experts.shared_size else None
    return ExpertWeights(
        spec=experts,
        router=router.float(),
        router_bias=None if bias is None else bias.float(),
        gate_up=gate_up,
        down=down,
        shared=shared,
    )


def is_router_tensor(name: str) -> bool:
    """Whether a tensor belongs to a router, which stays in float32 whatever the model's dtype."""
    return name.endswith((".mlp.gate.weight", ".mlp.gate.expert_bias"))


def _swiglu_shapes(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}gate_proj.weight": (width, hidden),
        f"{prefix}up_proj.weight": (width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }


def _swiglu(prefix: str, tensor: Callable[[str], Tensor]) -> SwiGLUWeights:
    gate_up = torch.cat([tensor(f"{prefix}{name}_proj.weight") for name in ("gate", "up")])
    return SwiGLUWeights(gate_up=gate_up, down=tensor(f"{prefix}down_proj.weight"))
