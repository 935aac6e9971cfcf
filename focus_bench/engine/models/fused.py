"""Which fused layer stack serves which model family on a GPU."""

from focus_bench.core.errors import UsageError
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.layer_stack import LayerStack
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.models.qwen2 import Qwen2Model
from focus_bench.engine.models.sdar import SdarModel
from focus_bench.engine.models.sdar_fused import FusedDenseLayers


def has_fused_layers(model: BlockDiffusionModel) -> bool:
    """Whether `fused_layers` has a stack for the model; without one it runs in plain PyTorch."""
    return isinstance(model, SdarModel | Qwen2Model)


def fused_layers(model: BlockDiffusionModel, cache: PagedKVCache) -> LayerStack:
    """The model's layers over kernels. Raises UsageError for a family that has none."""
    if isinstance(model, SdarModel | Qwen2Model):  # has_fused_layers, for the type checker
        return FusedDenseLayers(model, cache)
    raise UsageError("model", type(model).__name__, "Qwen2Model or SdarModel on a GPU")
