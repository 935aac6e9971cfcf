"""Which module of models/ builds which family of ModelSpec."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models import llada2, qwen2, sdar, sdar_moe
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.models.moe import is_router_tensor


@dataclass(frozen=True, kw_only=True)
class Family:
    """`tensor_shapes(spec)` of a checkpoint by name, and `build(spec, tensor)` from them.

    `keeps_float32(name)`: whether a tensor stays in float32 in a model of another dtype.
    """

    tensor_shapes: Callable[[ModelSpec], dict[str, tuple[int, ...]]]
    build: Callable[[ModelSpec, Callable[[str], Tensor]], BlockDiffusionModel]
    keeps_float32: Callable[[str], bool] = lambda name: False


DENSE_FAMILIES = {
    "sdar": Family(tensor_shapes=sdar.tensor_shapes, build=sdar.build),
    "fast-dllm-v2": Family(tensor_shapes=qwen2.tensor_shapes, build=qwen2.build),
}
FAMILIES_WITH_EXPERTS = {
    "sdar": Family(
        tensor_shapes=sdar_moe.tensor_shapes, build=sdar_moe.build, keeps_float32=is_router_tensor
    ),
    "llada2": Family(
        tensor_shapes=llada2.tensor_shapes, build=llada2.build, keeps_float32=is_router_tensor
    ),
}


def family_of(spec: ModelSpec) -> Family:
    """The spec's family; raises UsageError naming those that exist."""
    families = DENSE_FAMILIES if spec.experts is None else FAMILIES_WITH_EXPERTS
    if spec.family not in families:
        raise UsageError(f"family of {spec.name}", spec.family, ", ".join(families))
    return families[spec.family]
