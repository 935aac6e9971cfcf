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

    Every epoch shuffles anew. Batch i is the same whatever `start_step` is.
    """
    size = recipe.rows_per_step
    skipped = start_step * size
    pending: PackedRows | None = None
    for plan, order in _plans(blocks, recipe, stream):
        if skipped >= len(order):
            skipped -= len(order)
            continue
        rows = plan.expand(blocks).rows(order[skipped:])
        skipped = 0
        pending = rows if pending is None else _concatenate(pending, rows)
        num_whole = pending.num_rows // size
        for batch in range(num_whole):
            yield pending.rows(slice(batch * size, (batch + 1) * size))
        pending = pending.rows(slice(num_whole * size, None))


def _plans(
    blocks: DocumentBlocks, recipe: TrainingRecipe, stream: str
) -> Iterator[tuple["RowPlan", IntArray]]:
    """Plans of some thousand documents each, and the order that their rows come in."""
    epoch = 0
    while True:
        random = generator(recipe.seed, f"packing/{stream}/{epoch}")
        order = random.permutation(blocks.num_documents)
        for start in range(0, len(order), CHUNK_DOCUMENTS):
            plan = RowPlan.of(blocks, recipe, order[start : start + CHUNK_DOCUMENTS])
            yield plan, random.permutation(len(plan.rows))
        epoch += 1


@dataclass(frozen=True, kw_only=True, eq=False)
class RowPlan:
    """Which contexts share a row: `rows` lists, per row, indices into `units`.

    `units` hold document numbers; `copies`: noised copies of each.
    """

    units: Sequence[Unit]
    copies: Sequence[int]
    rows: Sequence[Sequence[int]]
    slots_per_row: int

    @classmethod
    def of(cls, blocks: DocumentBlocks, recipe: TrainingRecipe, documents: IntArray) -> "RowPlan":
        """Plan all `documents`, the first ``multi_task_fraction`` of them in chains.

        A row takes the largest context that still fits, so that few slots stay unused.
        """
        numbers = documents.tolist()
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
            # A chain has one copy: a recipe's rows always have room for one, seldom for two.
            most = 1 if len(unit) > 1 else recipe.noised_copies
            copies.append(min(most, (slots - clean) // noised))
            costs.append(clean + copies[-1] * noised)
        return cls(
            units=[tuple(numbers[i] for i in unit) for unit in units],
            copies=copies,
            rows=_fill_rows(costs, slots),
            slots_per_row=slots,
        )

    def expand(self, blocks: DocumentBlocks) -> PackedRows:
        """The slots of all rows."""
        segments = _Segments()
        for row, members in enumerate(self.rows):
            place = row * self.slots_per_row
            for number, unit in enumerate(members, start=1):
                place = segments.add(blocks, self.units[unit], number, self.copies[unit], place)
        return segments.expand(len(self.rows), self.slots_per_row)


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

    def add(self, blocks: DocumentBlocks, unit: Unit, number: int, copies: int, place: int) -> int:
        """Append one context, the row's `number`-th, at slot `place`; returns the slot after it."""
        documents = list(unit)
        sizes = blocks.num_blocks[documents].tolist()
        firsts = blocks.first_block[documents].tolist()
        decodes = blocks.first_decode_block[documents].tolist()
        index = 0
        runs = []
        for first, size, decode in zip(firsts, sizes, decodes, strict=True):
            runs.append((first, index, size, decode))
            index += size
        last = len(runs) - 1
        for run, (first, index, size, _) in enumerate(runs):
            place = self._append(first, index, size - (run == last), number, CLEAN, place)
        for _ in range(copies):
            for first, index, size, decode in runs:
                start, length = first + decode, size - decode
                place = self._append(start, index + decode, length, number, NOISED, place)
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
