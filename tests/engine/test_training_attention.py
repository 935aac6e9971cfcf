"""The two attentions over packed rows against the definition, pair by pair."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from training_cases import TINY, documents

from focus_bench.core.errors import UsageError
from focus_bench.engine.training.attention import DenseRowAttention, FlexRowAttention
from focus_bench.engine.training.documents import DocumentBlocks
from focus_bench.engine.training.packing import CLEAN, PackedRows, batches

CPU = torch.device("cpu")
RECIPE = TINY.replace(row_length=256, rows_per_step=3)
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16


def packed() -> PackedRows:
    blocks = DocumentBlocks.cut(documents(), block_length=8, context_length=64, vocab_size=64)
    return next(batches(blocks, RECIPE))


def visible(rows: PackedRows) -> np.ndarray:
    """Bool [R, L, L] by the definition: same context, clean blocks before; and the own slot."""
    num_rows, slots = rows.kind.shape
    seen = np.zeros((num_rows, slots, slots), dtype=np.bool_)
    for row in range(num_rows):
        for q in range(slots):
            for k in range(slots):
                before = (
                    rows.unit[row, q] == rows.unit[row, k]
                    and rows.kind[row, k] == CLEAN
                    and rows.index[row, k] < rows.index[row, q]
                )
                seen[row, q, k] = before or q == k
    return seen.repeat(8, axis=1).repeat(8, axis=2)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    tokens = RECIPE.tokens_per_step
    return (
        torch.randn(tokens, HEADS, HEAD_DIM, generator=random),
        torch.randn(tokens, KV_HEADS, HEAD_DIM, generator=random),
        torch.randn(tokens, KV_HEADS, HEAD_DIM, generator=random),
    )


def by_definition(rows: PackedRows) -> torch.Tensor:
    q, k, v = (x.double() for x in inputs())
    mask = torch.from_numpy(visible(rows))
    out = torch.empty(3, 256, HEADS, HEAD_DIM, dtype=torch.float64)
    for head in range(HEADS):
        kv = head // (HEADS // KV_HEADS)
        qs, ks, vs = (
            q[:, head].view(3, 256, -1),
            k[:, kv].view(3, 256, -1),
            v[:, kv].view(3, 256, -1),
        )
        scores = (qs @ ks.transpose(1, 2) * HEAD_DIM**-0.5).masked_fill(~mask, -torch.inf)
        out[:, :, head] = scores.softmax(-1) @ vs
    return out.view(RECIPE.tokens_per_step, -1).float()


def test_dense_attention_sees_what_the_definition_says() -> None:
    rows = packed()
    attention = DenseRowAttention(RECIPE, CPU, torch.float32)
    attention.set_rows(rows)
    torch.testing.assert_close(attention(*inputs()), by_definition(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_sees_the_same_and_skips_only_invisible_tiles() -> None:
    rows = packed()
    attention = FlexRowAttention(RECIPE, CPU, is_compiled=False)
    attention.set_rows(rows)
    with torch.no_grad():  # FlexAttention has no backward pass on a CPU
        output = attention(*inputs())
    torch.testing.assert_close(output, by_definition(rows), rtol=1e-5, atol=1e-5)
    mask = torch.from_numpy(visible(rows))
    ours = attention.block_mask
    torchs = create_block_mask(
        lambda row, head, q, k: mask[row, q, k], 3, None, 256, 256, device="cpu"
    )
    for field in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, field), getattr(torchs, field)), field
    assert torch.equal(ours.to_dense(), torchs.to_dense())


def test_flex_attention_lists_full_tiles_too() -> None:
    # One context of 16 clean blocks of 16 tokens: tile (1, 0) is visible as a whole.
    recipe = RECIPE.replace(block_length=16, context_length=128, rows_per_step=1)
    shape = (1, 16)
    rows = PackedRows(
        block=np.zeros(shape, dtype=np.int32),
        index=np.arange(16, dtype=np.int32)[None],
        unit=np.ones(shape, dtype=np.int32),
        kind=np.full(shape, CLEAN, dtype=np.int32),
    )
    attention = FlexRowAttention(recipe, CPU, is_compiled=False)
    attention.set_rows(rows)
    mask = attention.block_mask
    assert mask.kv_num_blocks.flatten().tolist() == [1, 1]
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_num_blocks.flatten().tolist() == [0, 1]
    assert mask.kv_indices[0, 0, :, 0].tolist() == [0, 1]


def test_rows_that_are_no_whole_tiles_are_refused_by_flex_attention() -> None:
    with pytest.raises(UsageError, match=r"row_length: 192 .* multiples of 128"):
        FlexRowAttention(RECIPE.replace(row_length=192), CPU, is_compiled=False)
