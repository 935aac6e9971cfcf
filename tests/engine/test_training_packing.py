"""Packed rows against the definition of what training needs, and the stream of batches."""

import itertools
from collections import Counter

import numpy as np
import pytest
from training_cases import TINY, documents

from focus_bench.engine.training.documents import DocumentBlocks
from focus_bench.engine.training.packing import (
    CLEAN,
    NOISED,
    UNUSED,
    PackedRows,
    RowPlan,
    batches,
)
from focus_bench.engine.training.recipe import TrainingRecipe

MAX_BLOCKS = TINY.context_length // TINY.block_length


def blocks_of(count: int = 120, seed: int = 0) -> DocumentBlocks:
    return DocumentBlocks.cut(
        documents(count, seed), block_length=8, context_length=64, vocab_size=64
    )


def contexts(rows: PackedRows) -> list[tuple[list[tuple[int, int]], list[tuple[int, int]]]]:
    """(clean, noised) lists of (index, block) of every context of every row, in slot order."""
    found = []
    for row in range(rows.num_rows):
        for unit in range(1, int(rows.unit[row].max()) + 1):
            parts = []
            for kind in (CLEAN, NOISED):
                at = (rows.unit[row] == unit) & (rows.kind[row] == kind)
                parts.append(
                    list(
                        zip(rows.index[row, at].tolist(), rows.block[row, at].tolist(), strict=True)
                    )
                )
            found.append((parts[0], parts[1]))
    return found


def document_of_block(blocks: DocumentBlocks) -> np.ndarray:
    return np.repeat(np.arange(blocks.num_documents), blocks.num_blocks)


@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_each_context_has_the_clean_and_noised_blocks_that_training_needs(
    fraction: float, copies: int
) -> None:
    recipe = TINY.replace(multi_task_fraction=fraction, noised_copies=copies)
    blocks = blocks_of()
    order = np.random.default_rng(3).permutation(120)
    rows = RowPlan.of(blocks, recipe, order).expand(blocks)
    owner = document_of_block(blocks)
    seen: list[int] = []
    chain_lengths = []
    for clean, noised in contexts(rows):
        members = list(dict.fromkeys(owner[block] for _, block in [*clean, *noised]))
        expected_blocks = [
            int(blocks.first_block[d]) + i for d in members for i in range(blocks.num_blocks[d])
        ]
        assert len(expected_blocks) <= MAX_BLOCKS
        assert clean == list(enumerate(expected_blocks))[:-1]
        decoded = [
            (index, block)
            for index, block in enumerate(expected_blocks)
            if block - blocks.first_block[owner[block]] >= blocks.first_decode_block[owner[block]]
        ]
        counts = Counter(noised)
        assert set(counts) == set(decoded)
        (times,) = set(counts.values())
        assert times == 1 or (times <= copies and len(members) == 1)
        if len(members) == 1 and len(clean) + copies * len(decoded) <= recipe.slots_per_row:
            assert times == copies
        seen += members
        chain_lengths.append(len(members))
    assert sorted(seen) == list(range(120))
    assert (max(chain_lengths) > 1) == (fraction > 0)
    assert not rows.unit[rows.kind == UNUSED].any()


@pytest.mark.parametrize("fraction", [0.0, 0.4])
def test_no_context_would_have_fitted_into_an_earlier_row(fraction: float) -> None:
    rows = RowPlan.of(
        blocks_of(), TINY.replace(multi_task_fraction=fraction), np.arange(120)
    ).expand(blocks_of())
    room = (rows.kind == UNUSED).sum(axis=1)
    smallest = [min(np.bincount(units[units > 0])[1:]) for units in rows.unit]
    for row in range(rows.num_rows - 1):
        assert room[row] < min(smallest[row + 1 :])


def test_an_epoch_holds_every_document_once_and_the_next_one_in_another_order() -> None:
    blocks = blocks_of()
    recipe = TINY.replace(rows_per_step=1, noised_copies=1)
    plan_rows = len(RowPlan.of(blocks, recipe, np.arange(120)).rows)
    owner = document_of_block(blocks)
    stream = batches(blocks, recipe)
    batch_list = list(itertools.islice(stream, 2 * plan_rows + 10))
    firsts = [int(owner[b.block[0, 0]]) for b in batch_list]
    noised = Counter(int(i) for b in batch_list for i in b.block[b.kind == NOISED])
    assert set(np.unique(owner)) == {int(owner[i]) for i in noised}
    assert firsts[:plan_rows] != firsts[plan_rows : 2 * plan_rows]


def test_batches_depend_on_seed_stream_and_number_alone() -> None:
    blocks = blocks_of()
    whole = list(itertools.islice(batches(blocks, TINY), 30))
    for start in (0, 1, 7, 29):  # an epoch has some 8 batches
        resumed = next(batches(blocks, TINY, start_step=start))
        for field in ("block", "index", "unit", "kind"):
            assert np.array_equal(getattr(resumed, field), getattr(whole[start], field))
    other_seed = next(batches(blocks, TINY.replace(seed=1)))
    other_stream = next(batches(blocks, TINY, stream="held-out"))
    assert not np.array_equal(other_seed.block, whole[0].block)
    assert not np.array_equal(other_stream.block, whole[0].block)


def test_every_batch_has_the_same_shape_whatever_the_data() -> None:
    recipe: TrainingRecipe = TINY.replace(rows_per_step=5)
    for batch in itertools.islice(batches(blocks_of(3, seed=4), recipe), 4):
        assert batch.block.shape == (5, recipe.slots_per_row)
