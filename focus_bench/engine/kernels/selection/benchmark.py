"""Selection at a step's sizes; nothing else does the same in one launch.

The alternative is the dynamic policy in torch operations that read nothing on the host.
"""

import torch
from torch import Tensor

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.selection.launcher import (
    ACTIVE,
    SelectionInputs,
    SelectionOutputs,
    select,
)


def cases() -> list[Case]:
    """Rows of a running batch, all of them evicting."""
    return [
        *(_case(batch, block_length=32) for batch in (1, 32, 256)),
        _case(256, block_length=64),
        _case(4096, block_length=32),
    ]


def _case(batch: int, *, block_length: int) -> Case:
    device = torch.device("cuda")
    shape = (batch, block_length)
    fed = torch.rand(shape, device=device) < 0.6
    fed[:, -1] = True
    masked = fed & (torch.rand(shape, device=device) < 0.8)
    masked[:, -1] = True

    def filled(value: int) -> Tensor:
        return torch.full((batch,), value, dtype=torch.int32, device=device)

    inputs = SelectionInputs(
        delta=torch.randn(shape, device=device),
        fed=fed.to(torch.uint8),
        masked=masked.to(torch.uint8),
        progress=filled(block_length // 2),
        budget=filled(3),
        block_start=filled(512),
        flags=filled(ACTIVE),
    )
    outputs = SelectionOutputs.empty(batch, block_length, device)
    return Case(
        name=f"{batch} rows of B {block_length}",
        ours=lambda: select(inputs, outputs, mode="top"),
        others={"torch": lambda: _with_torch(inputs)},
        num_bytes=batch * (block_length * (4 + 1 + 1 + 1) + 8 * 4),
    )


def _with_torch(inputs: SelectionInputs) -> tuple[Tensor, ...]:
    masked, fed = inputs.masked.bool(), inputs.fed.bool()
    position = torch.arange(masked.shape[1], device=masked.device)
    delta = torch.where(masked, inputs.delta, 0.0).double()
    count = masked.sum(dim=1, keepdim=True).clamp(min=1)
    mean = delta.sum(dim=1, keepdim=True) / count
    variance = torch.where(masked, delta - mean, 0.0).square().sum(dim=1, keepdim=True) / count
    outliers = (masked & (delta >= mean + variance.sqrt())).sum(dim=1)
    budget = torch.maximum(inputs.budget, torch.where(variance[:, 0] > 0, outliers, 0))
    order = torch.where(masked, delta, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, position.expand_as(order))
    selected = masked & (rank < budget[:, None])
    kept = selected.clone()
    kept[:, :-1] |= masked[:, :-1] & selected[:, 1:]
    rightmost = torch.where(kept, position, -1).amax(dim=1, keepdim=True)
    kept |= masked & (position > inputs.progress[:, None]) & (position < rightmost)
    kept |= fed & ~masked
    progress = torch.maximum(inputs.progress, torch.where(kept, position, -1).amax(dim=1))
    return kept, kept.sum(dim=1), (kept & masked).sum(dim=1), progress + inputs.block_start + 1
