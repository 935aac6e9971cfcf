"""Compaction by boolean indexing in plain torch; reads the counts on the host."""

import torch
from torch import Tensor
from torch.nn import functional

from focus_bench.engine.kernels.compaction.launcher import CompactionOutputs, CompactionStates


def compact(
    kept: Tensor, fed: Tensor, masked: Tensor, states: CompactionStates, capacity: int
) -> CompactionOutputs:
    """What the launcher's function of this name leaves in its outputs; states' rows behind the
    kept ones are 0.
    """
    is_kept = kept.bool()
    rows_kept = is_kept[fed.bool()]  # [T]: row-major order is sequence, then position
    is_head = (is_kept & masked.bool())[is_kept]
    total, total_head = int(is_kept.sum()), int(is_head.sum())
    head_rows = torch.zeros(capacity, dtype=torch.int32, device=kept.device)
    head_rows[:total_head] = torch.nonzero(is_head).flatten().to(torch.int32)
    num_kept = is_kept.sum(dim=1)

    def gather(state: Tensor, fill: int = 0) -> Tensor:
        rows = torch.full(
            (capacity, *state.shape[1:]), fill, dtype=state.dtype, device=state.device
        )
        rows[:total] = state[rows_kept]
        return rows

    return CompactionOutputs(
        hidden=gather(states.hidden),
        q=gather(states.q),
        cos=gather(states.cos),
        sin=gather(states.sin),
        slots=gather(states.slots, fill=-1),
        positions=gather(states.positions),
        cu_kept=functional.pad(num_kept.cumsum(dim=0), (1, 0)).to(torch.int32),
        head_rows=head_rows,
        totals=torch.tensor([total, total_head], dtype=torch.int32, device=kept.device),
    )
