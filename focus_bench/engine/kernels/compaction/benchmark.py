"""Compaction of SDAR-8B's states beside one index_select an array with the rows known already.

Finding the rows in torch (nonzero) would wait for the device, so the alternative leaves it out.
"""

import torch
from torch import Tensor

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.compaction.launcher import (
    CompactionOutputs,
    CompactionStates,
    compact,
)

HIDDEN, NUM_Q_HEADS, HEAD_DIM = 4096, 32, 128
SHARE_FED, SHARE_KEPT = 19.5 / 32, 9.6 / 19.5  # of a block, and of what it feeds


def cases() -> list[Case]:
    """FOCUS steps of 1, 32 and 256 sequences, and one that keeps everything."""
    return [
        *(_case(batch, SHARE_FED, SHARE_KEPT) for batch in (1, 32, 256)),
        _case(256, 1.0, 1.0),
    ]


def _case(batch: int, share_fed: float, share_kept: float) -> Case:
    device, bf16, block_length = torch.device("cuda"), torch.bfloat16, 32
    shape = (batch, block_length)
    fed = torch.rand(shape, device=device) < share_fed
    fed[:, -1] = True
    kept = fed & (torch.rand(shape, device=device) < share_kept)
    kept[:, -1] = True
    num_fed, num_kept = int(fed.sum()), int(kept.sum())

    def rows(*widths: int) -> Tensor:
        return torch.randn(num_fed, *widths, device=device, dtype=bf16)

    def numbers() -> Tensor:
        return torch.arange(num_fed, dtype=torch.int32, device=device)

    states = CompactionStates(
        hidden=rows(HIDDEN),
        q=rows(NUM_Q_HEADS, HEAD_DIM),
        cos=rows(HEAD_DIM),
        sin=rows(HEAD_DIM),
        slots=numbers(),
        positions=numbers(),
    )
    outputs = CompactionOutputs.empty(states, batch, num_fed)
    counts = kept.sum(dim=1).int()
    cu_fed = torch.zeros(batch + 1, dtype=torch.int32, device=device)
    cu_fed[1:] = fed.sum(dim=1).cumsum(dim=0)
    fed_bytes, kept_bytes = fed.to(torch.uint8), kept.to(torch.uint8)
    rows_kept = torch.nonzero(kept[fed]).flatten()
    pairs = [(getattr(states, name), getattr(outputs, name)[:num_kept]) for name in vars(states)]

    def with_torch() -> None:
        for state, output in pairs:
            torch.index_select(state, 0, rows_kept, out=output)

    return Case(
        name=f"batch {batch}, {num_kept} of {num_fed} rows",
        ours=lambda: compact(
            kept_bytes, fed_bytes, kept_bytes, counts, counts, cu_fed, states, outputs
        ),
        others={"index_select": with_torch},
        num_bytes=2.0 * num_kept * sum(s[:1].numel() * s.element_size() for s, _ in pairs),
    )
