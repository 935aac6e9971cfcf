"""Layers with experts for GPUs: routing and experts in Triton kernels, the rest as in dense layers.

The references are moe.py and experts.py. Nothing here waits for the device, so that all of it can
be captured in CUDA graphs; knows no rows, no eviction and no attention.
"""

from torch import Tensor
from torch.nn import functional

from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.engine.kernels.expert_routing.launcher import RouterConfig, Routing, route
from focus_bench.engine.kernels.grouped_experts import launcher as grouped
from focus_bench.engine.kernels.silu_mul.launcher import silu_mul
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.experts import ExpertWeights, SwiGLUWeights
from focus_bench.engine.models.fused_base import FusedLayers, add_product, product
from focus_bench.engine.models.moe import MoeModel


class FusedExpertLayers(FusedLayers[MoeModel]):
    """A model with experts over one cache; implements LayerStack. Raises ValueError if the kernels
    do not have the model's router.

    Memory between launches is PyTorch's, not the stack's: what a graph captures stays with it.
    """

    def __init__(self, model: MoeModel, cache: PagedKVCache) -> None:
        super().__init__(model, cache)
        assert model.spec.experts is not None
        self._router = router_config(model.spec.experts)
        self._router.check(model.spec.experts.num_experts)

    def finish(
        self, layer: int, hidden: Tensor, attention: Tensor, slots: Tensor | None = None
    ) -> Tensor:
        """The layer's output, in place of its input."""
        hidden, normed = self.after_attention(layer, hidden, attention)
        weights = self._model.layers[layer].feed_forward
        if isinstance(weights, SwiGLUWeights):
            return add_product(hidden, _gated(normed, weights), weights.down)
        return mix(hidden, normed, weights, self.routing(normed, weights, slots))

    def routing(self, normed: Tensor, weights: ExpertWeights, slots: Tensor | None) -> Routing:
        """Experts of normed states [T, h], by float32 logits; none for rows of slot -1."""
        logits = functional.linear(normed.float(), weights.router)
        return route(logits, self._router, bias=weights.router_bias, slots=slots)


def mix(hidden: Tensor, normed: Tensor, weights: ExpertWeights, routing: Routing) -> Tensor:
    """`hidden` [T, h], to which the experts' outputs for normed states [T, h] are added."""
    shared = None
    if weights.shared is not None:
        shared = product(_gated(normed, weights.shared), weights.shared.down)
    return grouped.grouped_experts(
        normed,
        grouped.ExpertWeights(gate_up=weights.gate_up, down=weights.down),
        routing,
        shared=shared,
        residual=hidden,
        out=hidden,
    )


def router_config(spec: ExpertSpec) -> RouterConfig:
    """The kernels' name of a model's router."""
    return RouterConfig(
        scoring="softmax" if spec.router == "softmax" else "sigmoid",
        top_k=spec.experts_per_token,
        n_group=spec.num_groups,
        topk_group=spec.num_kept_groups,
        norm_topk_prob=spec.normalise,
        routed_scaling_factor=spec.routed_scale,
    )


def has_kernels_for(spec: ExpertSpec) -> bool:
    """Whether the kernels choose experts as the model's router does."""
    try:
        router_config(spec).check(spec.num_experts)
    except ValueError:  # groups that are no powers of two
        return False
    return True


def _gated(normed: Tensor, weights: SwiGLUWeights) -> Tensor:
    return silu_mul(product(normed, weights.gate_up))
