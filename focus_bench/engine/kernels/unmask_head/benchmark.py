"""The unmasking head at SDAR-8B's vocabulary beside a head that materialises its logits."""

import torch

from focus_bench.engine.kernels.benchmarking import Case
from focus_bench.engine.kernels.unmask_head.launcher import unmask_head
from focus_bench.engine.kernels.unmask_head.workspace import HeadConfig, HeadWorkspace

WIDTH = 4096
VOCAB = 151936
NUM_ROWS = (2, 150, 1200, 4000)
MASK_ID, NUM_VALID = 151669, 151670
CHUNK_BYTES = (1 << 25, 1 << 28, 1 << 30)


def cases() -> list[Case]:
    """Masked rows that FOCUS keeps at batch 1, 32 and 256, and about half of 256 whole blocks."""
    weight = 0.02 * torch.randn(VOCAB, WIDTH, device="cuda", dtype=torch.bfloat16)
    return [
        case(num_rows, weight, temperature, chunk_bytes)
        for temperature in (0.0, 0.7)
        for num_rows in NUM_ROWS
        for chunk_bytes in CHUNK_BYTES
    ]


def case(num_rows: int, weight: torch.Tensor, temperature: float, chunk_bytes: int) -> Case:
    """One number of rows and one size of chunk; the alternative is greedy only."""
    hidden = torch.randn(num_rows, WIDTH, device="cuda", dtype=torch.bfloat16)
    uniforms = torch.rand(num_rows, device="cuda", dtype=torch.float64)
    config = HeadConfig(
        mask_token_id=MASK_ID,
        num_valid_ids=NUM_VALID,
        temperature=temperature,
        max_chunk_bytes=chunk_bytes,
    )
    workspace = HeadWorkspace.allocate(num_rows, weight, config)

    def materialised() -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.mm(hidden, weight.T).float()
        logits[:, MASK_ID] = -torch.inf
        logits[:, NUM_VALID:] = -torch.inf
        confidence, tokens = torch.softmax(logits, dim=-1).max(dim=-1)
        return tokens, confidence

    return Case(
        name=f"R {num_rows} T {temperature} chunk {chunk_bytes >> 20} MiB",
        ours=lambda: unmask_head(
            hidden, weight, config=config, uniforms=uniforms, workspace=workspace
        ),
        others={} if temperature else {"torch": materialised},
        num_bytes=weight.nbytes + hidden.nbytes,
        flops=2.0 * num_rows * VOCAB * WIDTH,
    )
