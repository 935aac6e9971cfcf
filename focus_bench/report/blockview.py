"""A block while it fills in: one cell a position, as a pure renderable.

Knows texts and flags of positions, no model and no tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

BoolArray = npt.NDArray[np.bool_]

_CELL = 8  # terminal cells of one position
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class CellState(Enum):
    """What became of a position in a step."""

    MASKED = "masked"  # a mask that was processed by all layers
    EVICTED = "evicted"  # a mask that left after layer 1
    NEW = "new"  # decoded in this step
    DECODED = "decoded"  # decoded before, and fed again
    FROZEN = "frozen"  # decoded before, no longer fed


# Glyph in a Unicode terminal, in an ASCII one, and style; no glyph: the position's text is shown.
_LOOK = {
    CellState.MASKED: ("\u2591\u2591", "##", "dim"),
    CellState.EVICTED: ("\u00b7", ".", "dim red"),
    CellState.NEW: ("", "", "bold green"),
    CellState.DECODED: ("", "", ""),
    CellState.FROZEN: ("", "", "cyan"),
}


@dataclass(frozen=True, kw_only=True)
class BlockView:
    """One block after one step.

    `texts[i]` and `states[i]` belong to position i of the block; `start` is the absolute place of
    position 0; `step` counts the block's decode steps from 1; `status` is shown behind it.
    New tokens are marked with +, so that a plain frame shows them too.
    """

    start: int
    step: int
    texts: tuple[str, ...]
    states: tuple[CellState, ...]
    status: str = ""

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.states):
            raise ValueError(f"{len(self.texts)} texts for {len(self.states)} positions")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        end = self.start + len(self.texts)
        label = len(str(end)) + 1
        per_line = max(1, (options.max_width - label) // (_CELL + 1))
        # Powers of two keep positions of different blocks below each other.
        per_line = 1 << (per_line.bit_length() - 1)
        counts = f"{self._count(CellState.NEW)} new, {self._masks()} masked"
        title = f"block {self.start}-{end - 1}, step {self.step}: {counts}"
        yield Text(f"{title}, {self.status}" if self.status else title)
        for first in range(0, len(self.texts), per_line):
            line = Text(f"{self.start + first:>{label - 1}}", style="dim")
            for i in range(first, min(first + per_line, len(self.texts))):
                line.append(" ")
                line.append(self._cell(i, options.ascii_only), style=_LOOK[self.states[i]][2])
            line.rstrip()
            yield line

    def _cell(self, i: int, ascii_only: bool) -> str:
        state = self.states[i]
        glyph, ascii_glyph, _ = _LOOK[state]
        text = (ascii_glyph if ascii_only else glyph) or visible_text(self.texts[i])
        lead = "+" if state is CellState.NEW else " "
        if cell_len(text) > _CELL - 1:
            text = set_cell_size(text, _CELL - 2) + "~"
        return set_cell_size(lead + text, _CELL)

    def _count(self, state: CellState) -> int:
        return sum(s is state for s in self.states)

    def _masks(self) -> int:
        evicted = self._count(CellState.EVICTED)
        return self._count(CellState.MASKED) + evicted


def block_view(
    texts: Sequence[str],
    *,
    start: int,
    step: int,
    decoded_before: BoolArray,
    fed: BoolArray,
    kept: BoolArray,
    decoded_now: BoolArray,
    status: str = "",
) -> BlockView:
    """The view after a step, from the step's arrays of shape [B] (texts of masks are ignored)."""
    states = []
    for i in range(len(texts)):
        if decoded_now[i]:
            states.append(CellState.NEW)
        elif decoded_before[i]:
            states.append(CellState.DECODED if fed[i] else CellState.FROZEN)
        else:
            states.append(CellState.MASKED if kept[i] else CellState.EVICTED)
    return BlockView(
        start=start, step=step, texts=tuple(texts), states=tuple(states), status=status
    )


def visible_text(text: str) -> str:
    """A token's text on one line, without control characters; blanks at its ends stay visible."""
    shown = "".join(_ESCAPES.get(char) or (char if char.isprintable() else "?") for char in text)
    if shown != shown.strip(" ") or not shown:
        return f"'{shown}'"
    return shown
