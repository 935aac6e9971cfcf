"""Which module of models/ builds which family of ModelSpec."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.models import qwen2, sdar
from focus_bench.engine.models.base import BlockDiffusionModel


@dataclass(frozen=True, kw_only=True)
class Family:
    """`tensor_shapes(spec)` of a checkpoint by name, and `build(spec, tensor)` from them."""

    tensor_shapes: Callable[[ModelSpec], dict[str, tuple[int, ...]]]
    build: Callable[[ModelSpec, Callable[[str], Tensor]], BlockDiffusionModel]


FAMILIES = {
    "sdar": Family(tensor_shapes=sdar.tensor_shapes, build=sdar.build),
    "fast-dllm-v2": Family(tensor_shapes=qwen2.tensor_shapes, build=qwen2.build),
}


def family_of(spec: ModelSpec) -> Family:
    """The spec's family; raises UsageError naming those that exist."""
    if spec.family not in FAMILIES:
        raise UsageError(f"family of {spec.name}", spec.family, ", ".join(FAMILIES))
    return FAMILIES[spec.family]
