"""The view of a block at fixed widths."""

import io

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from focus_bench.report.blockview import BlockView, CellState, block_view, visible_text


def render(view: BlockView, width: int = 80, *, encoding: str = "utf-8") -> list[str]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=file, width=width, markup=False, highlight=False).print(view)
    file.flush()
    return raw.getvalue().decode(encoding).splitlines()


def flags(*places: int, length: int = 8) -> np.ndarray:
    array = np.zeros(length, dtype=bool)
    array[list(places)] = True
    return array


VIEW = block_view(
    ["The", " cat", "sat\n", "onthematbyme", "", "", "", ""],
    start=24,
    step=3,
    decoded_before=flags(0, 1),
    fed=flags(1, 2, 3, 4, 5, 6, 7),
    kept=flags(1, 2, 3, 4),
    decoded_now=flags(2, 3),
    status="2.0 tok/step",
)


def test_states_follow_the_arrays_of_the_step():
    frozen, decoded, new, masked, evicted = (
        CellState.FROZEN,
        CellState.DECODED,
        CellState.NEW,
        CellState.MASKED,
        CellState.EVICTED,
    )
    assert VIEW.states == (frozen, decoded, new, new, masked, evicted, evicted, evicted)


def test_a_frame_at_80_columns():
    assert render(VIEW) == [
        "block 24-31, step 3: 2 new, 4 masked, 2.0 tok/step",
        "24  The      ' cat'  +sat\\n   +onthem~  \u2591\u2591       "
        + "        ".join("\u00b7" * 3),
    ]


def test_an_ascii_terminal_gets_ascii():
    lines = render(VIEW, encoding="ascii")
    assert lines[1].endswith("+onthem~  ##       .        .        .")


@pytest.mark.parametrize("width", [12, 40, 80, 120])
@pytest.mark.parametrize("length", [1, 7, 32, 64])
def test_every_position_is_shown_and_nothing_is_too_wide(width, length):
    view = block_view(
        ["字" * (i % 7) + "x" for i in range(length)],
        start=1000,
        step=1,
        decoded_before=np.zeros(length, dtype=bool),
        fed=np.ones(length, dtype=bool),
        kept=np.ones(length, dtype=bool),
        decoded_now=np.ones(length, dtype=bool),
    )
    lines = render(view, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "\n".join(lines).count("+") == length


def test_lines_start_at_the_same_places_for_every_block():
    view = BlockView(start=64, step=1, texts=("a",) * 32, states=(CellState.DECODED,) * 32)
    starts = [int(line.split()[0]) for line in render(view)[1:]]
    assert starts == [64, 72, 80, 88]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cat", "cat"),
        (" cat", "' cat'"),
        ("", "''"),
        ("\n", "\\n"),
        ("a\tb", "a\\tb"),
        ("\x1b[2J", "?[2J"),
        ("[bold]", "[bold]"),
    ],
)
def test_tokens_cannot_spoil_the_terminal(text, shown):
    assert visible_text(text) == shown


def test_texts_and_states_must_agree():
    with pytest.raises(ValueError, match="2 texts for 1"):
        BlockView(start=0, step=1, texts=("a", "b"), states=(CellState.NEW,))
