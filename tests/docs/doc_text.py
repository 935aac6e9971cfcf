"""Reads the documentation as data: its commands, its tables and its patches. Checks nothing."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
PROGRAM = "focus-bench"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One call of the program as a page prints it: `arguments` are those behind its name."""

    page: str
    line: int
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {PROGRAM} {shlex.join(self.arguments)}"


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A change of one file, as a diff block shows it: `old` becomes `new`, once."""

    file: str
    old: str
    new: str


def commands(page: Path) -> list[Command]:
    """Every call of the program in the page's code blocks; "..." at its end stands for more."""
    found = []
    for number, line in _shell_lines(page):
        for call in re.split(r"&&|\|", line):
            words = shlex.split(call, comments=True)
            names = [place for place, word in enumerate(words) if Path(word).name == PROGRAM]
            if not names:
                continue
            arguments = words[names[0] + 1 :]
            while arguments and arguments[-1] in ("&", "..."):
                arguments.pop()
            found.append(Command(page=page.name, line=number, arguments=tuple(arguments)))
    return found


def inline_commands(page: Path) -> list[Command]:
    """Every `focus-bench COMMAND --flag ...` within a sentence or a table."""
    found = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("    "):
            continue
        for text in re.findall(rf"`{PROGRAM} ([^`]*)`", line):
            found.append(Command(page=page.name, line=number, arguments=tuple(shlex.split(text))))
    return found


def blocks(page: Path, language: str) -> list[str]:
    """The texts of the page's fenced blocks of a language, in order."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def patches(page: Path) -> list[Patch]:
    """The changes that the page's diff blocks show, in order."""
    found = []
    for block in blocks(page, "diff"):
        head, *lines = block.splitlines()
        for hunk in "\n".join(lines).split("\n@@\n"):
            kept = hunk.splitlines()
            found.append(
                Patch(
                    file=head.removeprefix("+++ "),
                    old="\n".join(line[1:] for line in kept if not line.startswith("+")),
                    new="\n".join(line[1:] for line in kept if not line.startswith("-")),
                )
            )
    return found


def table(page: Path, heading: str) -> list[list[str]]:
    """The rows of all tables under a heading (up to the next one), cells without backticks' text
    changed; table heads are left out.
    """
    text = page.read_text(encoding="utf-8")
    match = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, flags=re.MULTILINE | re.DOTALL
    )
    assert match, f"{page.name} has no heading {heading!r}"
    rows = []
    lines = match[1].splitlines()
    for place, line in enumerate(lines):
        is_head = place + 1 < len(lines) and lines[place + 1].startswith("| ---")
        if line.startswith("| ") and not line.startswith("| ---") and not is_head:
            rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    assert rows, f"{page.name} has no table under {heading!r}"
    return rows


def names_in(cell: str) -> list[str]:
    """The names in a cell's backticks; `{a,b}` within one stands for each of them."""
    return [name for text in re.findall(r"`([^`]+)`", cell) for name in expanded(text)]


def expanded(text: str) -> list[str]:
    """A text with every {a,b} written out, the first brace slowest."""
    parts = re.split(r"\{([^{}]*)\}", text)
    choices = [part.split(",") if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def _shell_lines(page: Path) -> Iterator[tuple[int, str]]:
    """Lines of indented and fenced shell blocks, continued ones joined, with their numbers."""
    language: str | None = None
    held, began = "", 0
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if line.startswith("```"):
            language = line[3:] if language is None else None
            continue
        is_shell = line.startswith("    ") if language is None else language in ("sh", "")
        if not is_shell:
            continue
        began = began if held else number
        held += line.strip()
        if held.endswith("\\"):
            held = held[:-1]
            continue
        yield began, held
        held = ""
