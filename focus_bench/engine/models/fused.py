"""Which fused layer stack serves which model family on a GPU."""

from focus_bench.core.errors import UsageError
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.layer_stack import LayerStack
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.models.moe_fused import FusedExpertLayers, has_kernels_for
from focus_bench.engine.models.qwen2 import Qwen2Model
from focus_bench.engine.models.sdar import SdarModel
from focus_bench.engine.models.sdar_fused import FusedDenseLayers


def has_fused_layers(model: BlockDiffusionModel) -> bool:
    """Whether `fused_layers` has a stack for the model; without one it runs in plain PyTorch."""
    if isinstance(model, MoeModel):
        return model.spec.experts is not None and has_kernels_for(model.spec.experts)
    return isinstance(model, SdarModel | Qwen2Model)


def fused_layers(model: BlockDiffusionModel, cache: PagedKVCache) -> LayerStack:
    """The model's layers over kernels. Raises UsageError for a model that has none."""
    if isinstance(model, SdarModel | Qwen2Model):
        return FusedDenseLayers(model, cache)
    if isinstance(model, MoeModel) and has_fused_layers(model):
        return FusedExpertLayers(model, cache)
    raise UsageError(
        f"model {model.spec.name}",
        type(model).__name__,
        "Qwen2Model, SdarModel or MoeModel (experts in a power of two of groups) on a GPU",
    )
