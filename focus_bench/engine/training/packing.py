"""Packs documents' clean and noised blocks into rows, and streams batches; knows no tensors.

Training needs every clean block that a later block attends to, and every noised block that has
reply tokens; nothing else. A document of n blocks whose reply starts in block p takes n - 1 clean
blocks and n - p noised ones for each noised copy (at random noise levels, so several copies share
one clean copy). A full clean and noised copy of padded documents would take twice as many blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.core.rng import generator
from focus_bench.engine.training.documents import DocumentBlocks, IntArray
from focus_bench.engine.training.recipe import TrainingRecipe

SlotArray = npt.NDArray[np.int32]

# What a slot of a row holds.
UNUSED, CLEAN, NOISED = 0, 1, 2

# Documents that are shuffled into rows together: many steps' worth, and planned in 10 ms or so.
CHUNK_DOCUMENTS = 4096

Unit = tuple[int, ...]  # documents of one attention context: one task, or a chain of tasks


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedRows:
    """What the slots of R rows hold, each array [R, S].

    `block`: index into the blocks of all documents; `index`: the block's place in its context, so
    that a token's position is ``index * B + offset``; `unit`: which context of the row it belongs
    to, from 1; `kind`: UNUSED, CLEAN or NOISED.
    """

    block: SlotArray
    index: SlotArray
    unit: SlotArray
    kind: SlotArray

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.block)

    def rows(self, selection: slice | IntArray) -> "PackedRows":
        """Some of the rows."""
        return PackedRows(
            block=self.block[selection],
            index=self.index[selection],
            unit=self.unit[selection],
            kind=self.kind[selection],
        )


def batches(
    blocks: DocumentBlocks, recipe: TrainingRecipe, *, start_step: int = 0, stream: str = "train"
) -> Iterator[PackedRows]:
    """Endless batches of ``recipe.rows_per_step`` rows, in an order that seed and stream fix.

    Every epoch shuffles anew. Batch i is the same whatever `start_step` is; the skipped ones are
    planned and dropped.
    """
    size = recipe.rows_per_step
    pending: PackedRows | None = None
    step = 0
    for rows in _row_chunks(blocks, recipe, stream):
        pending = rows if pending is None else _concatenate(pending, rows)
        num_whole = pending.num_rows // size
        for batch in range(num_whole):
            if step >= start_step:
                yield pending.rows(slice(batch * size, (batch + 1) * size))
            step += 1
        pending = pending.rows(slice(num_whole * size, None))


def _row_chunks(
    blocks: DocumentBlocks, recipe: TrainingRecipe, stream: str
) -> Iterator[PackedRows]:
    epoch = 0
    while True:
        random = generator(recipe.seed, f"packing/{stream}/{epoch}")
        order = random.permutation(blocks.num_documents)
        for start in range(0, len(order), CHUNK_DOCUMENTS):
            rows = pack(blocks, recipe, order[start : start + CHUNK_DOCUMENTS])
            yield rows.rows(random.permutation(rows.num_rows))
        epoch += 1


def pack(blocks: DocumentBlocks, recipe: TrainingRecipe, documents: IntArray) -> PackedRows:
    """Rows that hold `documents`, the first ``multi_task_fraction`` of them in chains.

    Rows are filled by the largest context that still fits, so that few slots stay unused.
    """
    num_blocks = blocks.num_blocks[documents].tolist()
    num_decoded = (blocks.num_blocks - blocks.first_decode_block)[documents].tolist()
    num_chained = round(recipe.multi_task_fraction * len(documents))
    units = _chains(num_blocks[:num_chained], recipe.context_length // recipe.block_length)
    units += [(i,) for i in range(num_chained, len(documents))]
    slots = recipe.slots_per_row
    costs, copies = [], []
    for unit in units:
        clean = sum(num_blocks[i] for i in unit) - 1
        noised = sum(num_decoded[i] for i in unit)
        # Two or more copies of a chain do not fit; a recipe's rows always have room for one.
        copies.append(1 if len(unit) > 1 else min(recipe.noised_copies, (slots - clean) // noised))
        costs.append(clean + copies[-1] * noised)
    rows = _fill_rows(costs, slots)
    segments = _Segments()
    for row, members in enumerate(rows):
        place = row * slots
        for number, unit_index in enumerate(members, start=1):
            unit = units[unit_index]
            place = segments.add(blocks, documents[list(unit)], number, copies[unit_index], place)
    return segments.expand(len(rows), slots)


def _chains(num_blocks: Sequence[int], max_blocks: int) -> list[Unit]:
    """Consecutive documents joined as long as they fit into `max_blocks` blocks."""
    chains: list[Unit] = []
    chain: list[int] = []
    room = max_blocks
    for document, size in enumerate(num_blocks):
        if size > room:
            chains.append(tuple(chain))
            chain, room = [], max_blocks
        chain.append(document)
        room -= size
    if chain:
        chains.append(tuple(chain))
    return chains


def _fill_rows(costs: Sequence[int], slots: int) -> list[list[int]]:
    """Units of each row: always the largest one left that fits (its size found in a bit set)."""
    by_cost: list[list[int]] = [[] for _ in range(slots + 1)]
    left = 0
    for unit in range(len(costs) - 1, -1, -1):
        by_cost[costs[unit]].append(unit)
        left |= 1 << costs[unit]
    rows: list[list[int]] = []
    while left:
        row: list[int] = []
        room = slots
        while fitting := left & ((1 << (room + 1)) - 1):
            cost = fitting.bit_length() - 1
            row.append(by_cost[cost].pop())
            if not by_cost[cost]:
                left ^= 1 << cost
            room -= cost
        rows.append(row)
    return rows


class _Segments:
    """Runs of consecutive blocks in consecutive slots, collected and then expanded at once."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int, int]] = []

    def add(
        self, blocks: DocumentBlocks, documents: IntArray, unit: int, copies: int, place: int
    ) -> int:
        """Append one context at slot `place`; returns the slot after it."""
        sizes = blocks.num_blocks[documents].tolist()
        firsts = blocks.first_block[documents].tolist()
        decodes = blocks.first_decode_block[documents].tolist()
        index = 0
        runs = []
        for first, size, decode in zip(firsts, sizes, decodes, strict=True):
            runs.append((first, index, size, decode))
            index += size
        last = len(runs) - 1
        for number, (first, index, size, _) in enumerate(runs):
            place = self._append(first, index, size - (number == last), unit, CLEAN, place)
        for _ in range(copies):
            for first, index, size, decode in runs:
                start, length = first + decode, size - decode
                place = self._append(start, index + decode, length, unit, NOISED, place)
        return place

    def _append(self, block: int, index: int, length: int, unit: int, kind: int, place: int) -> int:
        self._rows.append((block, index, length, unit, kind, place))
        return place + length

    def expand(self, num_rows: int, slots: int) -> PackedRows:
        block, index, length, unit, kind, place = np.array(self._rows, dtype=np.int64).T
        step = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        where = np.repeat(place, length) + step
        arrays = []
        for start, grows in ((block, True), (index, True), (unit, False), (kind, False)):
            values = np.zeros(num_rows * slots, dtype=np.int32)
            values[where] = np.repeat(start, length) + (step if grows else 0)
            arrays.append(values.reshape(num_rows, slots))
        return PackedRows(block=arrays[0], index=arrays[1], unit=arrays[2], kind=arrays[3])


def _concatenate(first: PackedRows, second: PackedRows) -> PackedRows:
    return PackedRows(
        block=np.concatenate([first.block, second.block]),
        index=np.concatenate([first.index, second.index]),
        unit=np.concatenate([first.unit, second.unit]),
        kind=np.concatenate([first.kind, second.kind]),
    )
