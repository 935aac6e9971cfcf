"""The state of a training run, and its two kinds of files: full, and compact for another machine.

A full checkpoint (float32 weights, average and both moments) resumes exactly. A compact one takes a
third of that: weights and average in float16, the second moment in bfloat16, and no first moment.
It restarts at zero while the step count goes on, so the first updates after such a resume are
small and grow as the moment fills (within 1 / (1 - beta_1) steps or so): a warm-up by itself.
Batches and noise depend on seed and step alone, so no generator state is saved.
"""

import dataclasses
import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from focus_bench.core.errors import UsageError, reason_of
from focus_bench.core.model_spec import ModelSpec
from focus_bench.engine.training.model import initial_weights
from focus_bench.engine.training.optimizer import build_optimizer
from focus_bench.engine.training.recipe import TrainingRecipe

FULL_FILE = "training-state.pt"
COMPACT_GLOB = "compact-*.safetensors"
MAX_COMPACT_SHARD_BYTES = 15 << 20

# What torch.load and load_state_dict raise for a file that is cut or something else.
_DAMAGED = (OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError)

_COMPACT_DTYPES = {
    "weights": torch.float16,
    "average": torch.float16,
    "exp_avg_sq": torch.bfloat16,
}


@dataclass(kw_only=True, eq=False)
class TrainingState:
    """What a training step changes. `weights` and `average`: float32 by checkpoint name.

    `step`: optimiser steps done; `trained_s`: wall time that they took.
    """

    spec: ModelSpec
    step: int
    trained_s: float
    weights: dict[str, Tensor]
    average: dict[str, Tensor]
    optimizer: torch.optim.AdamW


def new_state(recipe: TrainingRecipe, spec: ModelSpec, device: torch.device) -> TrainingState:
    """The state before the first step."""
    return _state(
        recipe, spec, initial_weights(spec, seed=recipe.seed, device=device), None, 0, 0.0
    )


def save_full(state: TrainingState, folder: Path) -> None:
    """Write FULL_FILE into `folder`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FULL_FILE
    temporary = path.with_suffix(".tmp")
    torch.save(
        {
            "spec": dataclasses.asdict(state.spec),
            "step": state.step,
            "trained_s": state.trained_s,
            "weights": _detached(state.weights),
            "average": state.average,
            "optimizer": state.optimizer.state_dict(),
        },
        temporary,
    )
    os.replace(temporary, path)


def save_compact(state: TrainingState, folder: Path) -> None:
    """Write the compact shards into `folder`, each of at most MAX_COMPACT_SHARD_BYTES."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, weight in state.weights.items():
        moments = state.optimizer.state.get(weight, {})
        parts = {
            "weights": weight.detach(),
            "average": state.average[name],
            "exp_avg_sq": moments.get("exp_avg_sq", torch.zeros_like(weight)),
        }
        for part, value in parts.items():
            tensors[f"{part}/{name}"] = value.to(_COMPACT_DTYPES[part]).cpu().contiguous()
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, value in tensors.items():
        if shards[-1] and size + value.nbytes > MAX_COMPACT_SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = value
        size += value.nbytes
    header = {
        "spec": json.dumps(dataclasses.asdict(state.spec)),
        "step": str(state.step),
        "trained_s": str(state.trained_s),
        "shards": str(len(shards)),
    }
    for number, shard in enumerate(shards, start=1):
        path = folder / f"compact-{number}-of-{len(shards)}.safetensors"
        temporary = path.with_suffix(".tmp")
        save_file(shard, temporary, metadata=header)
        os.replace(temporary, path)


def load_state(
    folder: Path, recipe: TrainingRecipe, spec: ModelSpec, device: torch.device
) -> TrainingState:
    """Resume from `folder`: its full checkpoint if there is one, else its compact one.

    Raises UsageError naming a folder without any, a damaged or incomplete set of files, or a
    checkpoint of a model of another shape.
    """
    full = folder / FULL_FILE
    if full.exists():
        return _load_full(full, recipe, spec, device)
    shards = sorted(folder.glob(COMPACT_GLOB))
    if not shards:
        raise UsageError("--resume", str(folder), f"a folder with {FULL_FILE} or {COMPACT_GLOB}")
    return _load_compact(shards, recipe, spec, device)


def _load_full(
    path: Path, recipe: TrainingRecipe, spec: ModelSpec, device: torch.device
) -> TrainingState:
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
        _check_spec(path, saved["spec"], spec)
        state = _state(
            recipe, spec, saved["weights"], saved["average"], saved["step"], saved["trained_s"]
        )
        state.optimizer.load_state_dict(saved["optimizer"])
    except UsageError:
        raise
    except _DAMAGED as error:
        raise UsageError(
            "--resume", str(path), f"a whole training checkpoint ({reason_of(error)})"
        ) from None
    return state


def _load_compact(
    shards: list[Path], recipe: TrainingRecipe, spec: ModelSpec, device: torch.device
) -> TrainingState:
    tensors: dict[str, Tensor] = {}
    headers: list[Mapping[str, str]] = []
    for path in shards:
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                headers.append(file.metadata() or {})
                tensors.update((name, file.get_tensor(name)) for name in list(file.keys()))
        except (SafetensorError, OSError) as error:
            raise UsageError(
                "--resume", str(path), f"a safetensors file ({reason_of(error)})"
            ) from None
    header = headers[0]
    if any(h != header for h in headers) or header.get("shards") != str(len(shards)):
        steps = sorted({h.get("step", "none") for h in headers})
        raise UsageError(
            "--resume",
            f"{len(shards)} shards of steps {', '.join(steps)} in {shards[0].parent}",
            f"all {header.get('shards')} shards of one step",
        )
    _check_spec(shards[0], json.loads(header["spec"]), spec)
    parts = {
        part: {
            name.removeprefix(f"{part}/"): value.float()
            for name, value in tensors.items()
            if name.startswith(f"{part}/")
        }
        for part in _COMPACT_DTYPES
    }
    step = int(header["step"])
    weights = {name: parts["weights"][name] for name in sorted(parts["weights"])}
    state = _state(recipe, spec, weights, parts["average"], step, float(header["trained_s"]))
    for name, weight in state.weights.items():
        state.optimizer.state[weight] = {
            # The fused optimiser counts on the device, the plain one on the host.
            "step": torch.tensor(float(step), device=device if weight.is_cuda else None),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": parts["exp_avg_sq"][name],
        }
    return state


def _state(
    recipe: TrainingRecipe,
    spec: ModelSpec,
    weights: dict[str, Tensor],
    average: dict[str, Tensor] | None,
    step: int,
    trained_s: float,
) -> TrainingState:
    if average is None:
        average = {name: weight.clone() for name, weight in weights.items()}
    return TrainingState(
        spec=spec,
        step=step,
        trained_s=trained_s,
        weights=weights,
        average=average,
        optimizer=build_optimizer(weights, recipe),
    )


def _detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in tensors.items()}


def _check_spec(path: Path, saved: Mapping[str, object], spec: ModelSpec) -> None:
    ours = json.loads(json.dumps(dataclasses.asdict(spec)))
    theirs = json.loads(json.dumps(saved))
    for field in ours:
        if field not in ("name", "dtype") and theirs.get(field) != ours[field]:
            raise UsageError(f"{path} {field}", theirs.get(field), f"{ours[field]} (the recipe)")
