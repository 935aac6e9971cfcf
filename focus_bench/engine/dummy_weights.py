"""Random weights for ``--load-format dummy``; knows names and shapes of tensors, no model.

Matrices are normal(0, 0.02), vectors 1, biases 0. Each tensor is seeded by its name, so its values
depend on neither device nor load order: with one exception, large models on CUDA, see
`generated_on_device`.

In models with experts the query and key norms of rotated channels are 6: attention is sharp and
depends on position, so that masked tokens, whose embedding is the same, differ. A block of 32 then
touches 0.90 to 0.93 of the experts that independent tokens would, with norms of 1 only 0.26 to 0.32
(LLaDA2.0-mini with thin layers, docs/adr/0015).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.rng import generator, stream_key

MATRIX_STD = 0.02
# 4 spreads less where prompts are short (0.84 where 6 gives 0.90), 8 no more.
ROTATED_QK_NORM = 6.0
QK_NORM_SUFFIXES = tuple(
    f".{norm}.weight" for norm in ("q_norm", "k_norm", "query_layernorm", "key_layernorm")
)
# numpy draws some 1e8 normals/s on one core: 2 s for this many, over a minute for 8B parameters.
MAX_HOST_GENERATED_PARAMS = 200_000_000


def generated_on_device(spec: ModelSpec, device: torch.device) -> bool:
    """Whether the weights come from the GPU's own generator, so that a CPU run has other values."""
    return device.type == "cuda" and spec.num_params >= MAX_HOST_GENERATED_PARAMS


def dummy_tensors(
    spec: ModelSpec,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Callable[[str], Tensor]:
    """A function that makes each tensor of `shapes` by name, on `device` in `dtype`."""
    on_device = generated_on_device(spec, device)

    def tensor(name: str) -> Tensor:
        shape, stream = shapes[name], f"weights/{name}"
        if name.endswith(".bias"):
            return torch.zeros(shape, device=device, dtype=dtype)
        if len(shape) == 1:
            vector = torch.ones(shape, device=device, dtype=dtype)
            if spec.experts is not None and name.endswith(QK_NORM_SUFFIXES):
                vector[: spec.rotary_dim] = ROTATED_QK_NORM
            return vector
        if on_device:
            random = torch.Generator(device=device).manual_seed(stream_key(seed, stream) >> 1)
            # Drawn in the weights' own dtype: float32 would need twice a large tensor's memory.
            empty = torch.empty(shape, device=device, dtype=dtype)
            return empty.normal_(0.0, MATRIX_STD, generator=random)
        values = generator(seed, stream).standard_normal(shape, dtype="float32")
        values *= MATRIX_STD
        return torch.from_numpy(values).to(device=device, dtype=dtype)

    return tensor
