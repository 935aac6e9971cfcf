"""The trained weights, and the training forward pass built from the engine's own layer functions.

The weights are float32 tensors under their checkpoint names; each step casts them to the compute
dtype and assembles engine.models.sdar's model from them, so that training and decoding run the
same arithmetic. Only attention differs: whole rows here, a paged cache there.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from focus_bench.core.errors import check_choice
from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.device import torch_dtype
from focus_bench.engine.dummy_weights import dummy_tensors
from focus_bench.engine.models import sdar
from focus_bench.engine.training.attention import (
    DenseRowAttention,
    FlexRowAttention,
    RowAttention,
    check_heads,
)
from focus_bench.engine.training.noise import NoisedBatch
from focus_bench.engine.training.recipe import TrainingRecipe
from focus_bench.engine.weights import save_sdar_checkpoint

NamedTensors = Mapping[str, Tensor]

ProjectFunction = Callable[
    [sdar.SdarModel, int, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]
]
FinishFunction = Callable[[sdar.SdarModel, int, Tensor, Tensor], Tensor]

# GPT-2's initialisation: what a layer adds to the residual shrinks with the number of additions.
_RESIDUAL_OUTPUTS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
# Of a shard in a checkpoint; small enough for any way of carrying files about.
MAX_SHARD_BYTES = 12 << 20


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a step is computed; changes its speed, and its results by rounding only.

    `attention`: "flex" or "sdpa"; `is_compiled`: the layer functions (and FlexAttention) go through
    torch.compile; `dtype`: of the forward pass.
    """

    attention: str
    is_compiled: bool
    dtype: str

    def __post_init__(self) -> None:
        check_choice("execution attention", self.attention, ("flex", "sdpa"))

    @property
    def label(self) -> str:
        """How logs name it."""
        return f"{self.attention}, {'compiled' if self.is_compiled else 'eager'}, {self.dtype}"


CPU_EXECUTION = Execution(attention="sdpa", is_compiled=False, dtype="float32")


class Forward:
    """The forward pass over rows for one recipe and execution; holds no weights.

    Layers are compiled one by one: they share one graph, as all of them see the same shapes.
    """

    def __init__(
        self,
        recipe: TrainingRecipe,
        spec: ModelSpec,
        execution: Execution,
        device: torch.device,
    ) -> None:
        self.device = device
        self.execution = execution
        self._spec = spec
        self.dtype = torch_dtype(execution.dtype)
        self.attention: RowAttention
        if execution.attention == "flex":
            check_heads(spec)
            self.attention = FlexRowAttention(recipe, device, is_compiled=execution.is_compiled)
        else:
            self.attention = DenseRowAttention(recipe, device, self.dtype)
        self._project: ProjectFunction = sdar.SdarModel.project
        self._finish: FinishFunction = sdar.SdarModel.finish
        if execution.is_compiled:
            self._project = torch.compile(self._project, dynamic=False, fullgraph=True)
            self._finish = torch.compile(self._finish, dynamic=False, fullgraph=True)

    def noised_logits(self, weights: NamedTensors, batch: NoisedBatch) -> Tensor:
        """Float32 logits [N * B, vocab_size] of the noised blocks; `attention` has the rows."""
        model = build_model(self._spec, weights, self.dtype)
        hidden = model.embed(batch.input_ids)
        cos, sin = model.rope(batch.positions)
        for layer in model.layers:
            # A model of this one layer: the layer's number would make each a graph of its own.
            only = dataclasses.replace(model, layers=(layer,))
            q, k, v = self._project(only, 0, hidden, cos, sin)
            hidden = self._finish(only, 0, hidden, self.attention(q, k, v))
        block_length = len(batch.targets) // max(1, len(batch.noised_slots))
        slots = hidden.view(-1, block_length, hidden.shape[-1])
        # index_select, not []: the backward pass of [] sorts its indices.
        return model.logits(slots.index_select(0, batch.noised_slots).flatten(0, 1))


def build_model(spec: ModelSpec, weights: NamedTensors, dtype: torch.dtype) -> sdar.SdarModel:
    """The engine's model of the weights cast to `dtype`; gradients flow back to them."""
    name = str(dtype).removeprefix("torch.")
    return sdar.build(spec.replace(dtype=name), lambda tensor: weights[tensor].to(dtype))


def initial_weights(spec: ModelSpec, *, seed: int, device: torch.device) -> dict[str, Tensor]:
    """Float32 weights by name: norms 1, matrices normal(0, 0.02), less for residual outputs."""
    shapes = sdar.tensor_shapes(spec)
    tensor = dummy_tensors(spec, shapes, seed=seed, device=device, dtype=torch.float32)
    weights = {name: tensor(name) for name in shapes}
    for name, value in weights.items():
        if name.endswith(_RESIDUAL_OUTPUTS):
            value.mul_((2 * spec.num_layers) ** -0.5)
    return weights


def export_checkpoint(spec: ModelSpec, weights: NamedTensors, folder: Path) -> None:
    """Write `weights` as a sharded checkpoint in ``spec.dtype`` that the engine's loader reads."""
    model = build_model(spec, {n: w.detach() for n, w in weights.items()}, torch_dtype(spec.dtype))
    save_sdar_checkpoint(model, folder, max_shard_bytes=MAX_SHARD_BYTES)
