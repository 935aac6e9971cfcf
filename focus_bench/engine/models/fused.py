"""Which fused layer stack serves which model family on a GPU."""

from focus_bench.core.errors import UsageError
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.layer_stack import LayerStack
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.models.sdar import SdarModel
from focus_bench.engine.models.sdar_fused import FusedSdarLayers


def fused_layers(model: BlockDiffusionModel, cache: PagedKVCache) -> LayerStack:
    """The model's layers over kernels. Raises UsageError for a family that has none."""
    if isinstance(model, SdarModel):
        return FusedSdarLayers(model, cache)
    raise UsageError("model", type(model).__name__, "SdarModel on a GPU")
