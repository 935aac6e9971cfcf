"""Launches the selection kernel: one launch for all rows of a step, nothing read on the host."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from focus_bench.engine.kernels.selection.kernel import select_kernel

MAX_BLOCK_LENGTH = 64
# Bits of a row's flags.
ACTIVE = 1  # the row evicts: it has more masked fed positions than its budget
FIXED = 2  # the budget holds exactly: outliers do not raise it
RIGHTMOST = 4  # layers >= 1 attend up to this step's rightmost kept position, not to the progress
SIGN_OF_MODE = {"top": 1, "bottom": -1, "given": 0}


@dataclass(frozen=True, kw_only=True)
class SelectionInputs:
    """What a step knows of its n rows before eviction; B <= 64 positions a row.

    `delta` float32 [n, B], read at masked positions; `fed` and `masked` uint8 [n, B], masked within
    fed; int32 [n]: `progress` before the step (-1 at a block's start), `budget` >= 1, `block_start`
    (absolute position of the block) and `flags` (ACTIVE, FIXED, RIGHTMOST). `scores` float64 [n, B]
    ranks the FIXED rows in mode "given".
    """

    delta: Tensor
    fed: Tensor
    masked: Tensor
    progress: Tensor
    budget: Tensor
    block_start: Tensor
    flags: Tensor
    scores: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class SelectionOutputs:
    """What eviction leaves of each row.

    `kept` uint8 [n, B]; int32 [n]: `num_kept`; `num_head`, the masked ones among them; `progress`
    after the step; `num_keys`, what layers >= 1 attend to: all positions up to the last attended.
    """

    kept: Tensor
    num_kept: Tensor
    num_head: Tensor
    progress: Tensor
    num_keys: Tensor

    @classmethod
    def empty(cls, num_rows: int, block_length: int, device: torch.device) -> "SelectionOutputs":
        """Uninitialised outputs for n rows."""

        def counts() -> Tensor:
            return torch.empty(num_rows, dtype=torch.int32, device=device)

        return cls(
            kept=torch.empty((num_rows, block_length), dtype=torch.uint8, device=device),
            num_kept=counts(),
            num_head=counts(),
            progress=counts(),
            num_keys=counts(),
        )


def select(inputs: SelectionInputs, outputs: SelectionOutputs, *, mode: str) -> None:
    """Choose the positions that go on past layer 1 and write them to `outputs`.

    The budget is the row's own, raised to the number of deltas >= mean + population std unless the
    row is FIXED; the largest deltas are kept, ties to the lower position, with the two constraints
    of the paper's section 4.2. Rows that are not ACTIVE, and rows with a non-finite delta at a
    masked position, keep all they feed. `mode` says what ranks FIXED rows: "top" the delta,
    "bottom" its negative, "given" `inputs.scores`. A row that feeds nothing (padding) keeps
    nothing and its progress. Raises ValueError for a mode, shape or dtype that does not exist.
    """
    if mode not in SIGN_OF_MODE:
        raise ValueError(f"mode: {mode!r}, needs one of {', '.join(SIGN_OF_MODE)}")
    if mode == "given" and inputs.scores is None:
        raise ValueError("scores: missing, mode 'given' needs them")
    _check(inputs, outputs)
    num_rows, block_length = inputs.fed.shape
    if num_rows == 0:
        return
    select_kernel[(num_rows,)](
        inputs.delta,
        inputs.delta if inputs.scores is None else inputs.scores,
        inputs.fed,
        inputs.masked,
        inputs.progress,
        inputs.budget,
        inputs.block_start,
        inputs.flags,
        outputs.kept,
        outputs.num_kept,
        outputs.num_head,
        outputs.progress,
        outputs.num_keys,
        block_length,
        SIGN=SIGN_OF_MODE[mode],
        ACTIVE=ACTIVE,
        FIXED=FIXED,
        RIGHTMOST=RIGHTMOST,
        BLOCK=triton.next_power_of_2(max(16, block_length)),
        # One position a thread: with more warps the compiler loads rows again for the matrices.
        num_warps=2 if block_length > 32 else 1,
    )


def _check(inputs: SelectionInputs, outputs: SelectionOutputs) -> None:
    shape = inputs.fed.shape
    if len(shape) != 2 or not 1 <= shape[1] <= MAX_BLOCK_LENGTH:
        raise ValueError(f"fed: {tuple(shape)}, needs [n, B] with B from 1 to {MAX_BLOCK_LENGTH}")
    tables = {
        "delta": (inputs.delta, torch.float32),
        "fed": (inputs.fed, torch.uint8),
        "masked": (inputs.masked, torch.uint8),
        "kept": (outputs.kept, torch.uint8),
    }
    if inputs.scores is not None:
        tables["scores"] = (inputs.scores, torch.float64)
    columns = {
        "progress": (inputs.progress, torch.int32),
        "budget": (inputs.budget, torch.int32),
        "block_start": (inputs.block_start, torch.int32),
        "flags": (inputs.flags, torch.int32),
        "num_kept": (outputs.num_kept, torch.int32),
        "num_head": (outputs.num_head, torch.int32),
        "outputs.progress": (outputs.progress, torch.int32),
        "num_keys": (outputs.num_keys, torch.int32),
    }
    for wanted, named in ((shape, tables), (shape[:1], columns)):
        for name, (tensor, dtype) in named.items():
            if tensor.shape != wanted or tensor.dtype is not dtype or not tensor.is_contiguous():
                raise ValueError(
                    f"{name}: {tensor.dtype} {tuple(tensor.shape)}, "
                    f"needs contiguous {dtype} {tuple(wanted)}"
                )
            if tensor.device != inputs.fed.device:
                raise ValueError(f"{name}: on {tensor.device}, needs {inputs.fed.device}")
