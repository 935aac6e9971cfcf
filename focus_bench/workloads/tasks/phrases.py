"""Text from a small context-free grammar: rules with alternatives, nested symbols and slots.

Knows no task. One alternative of a rule is drawn as often as any other; to weight one, repeat it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from focus_bench.workloads.tasks.draws import Draws

_PART = re.compile(r"\[(?P<symbol>\w+)\]|\{(?P<slot>\w+)\}")


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str


@dataclass(frozen=True, slots=True)
class _Slot:
    name: str


_Parts = tuple[str | _Symbol | _Slot, ...]


def _parse(text: str) -> _Parts:
    parts: list[str | _Symbol | _Slot] = []
    place = 0
    for match in _PART.finditer(text):
        if match.start() > place:
            parts.append(text[place : match.start()])
        symbol = match["symbol"]
        parts.append(_Symbol(symbol) if symbol else _Slot(match["slot"]))
        place = match.end()
    if place < len(text):
        parts.append(text[place:])
    return tuple(parts)


def sentence(text: str) -> str:
    """`text` with capitals where sentences begin, and a full stop unless it ends in punctuation."""
    parts = [part[0].upper() + part[1:] for part in text.split(". ")]
    return ". ".join(parts) + ("" if text[-1] in '.?!:"' else ".")


class Phrases:
    """A grammar read from text.

    Parameters
    ----------
    rules: lines ``NAME: first | second [OTHER] | third {slot}``; lines that begin with a blank go
        on with the rule before them; the alternative ``~`` is empty.

    Raises ValueError where a rule is named twice or a symbol has no rule.
    """

    def __init__(self, rules: str) -> None:
        texts: dict[str, str] = {}
        name = ""
        for line in rules.splitlines():
            if not line.strip():
                continue
            if not line.startswith(" "):
                name, _, line = line.partition(":")
                if name in texts:
                    raise ValueError(f"rule {name} is there twice")
                texts[name] = ""
            texts[name] = f"{texts[name]} {line.strip()}"
        self._rules = {
            name: tuple(
                _parse("" if alt == "~" else alt) for alt in map(str.strip, text.split("|"))
            )
            for name, text in texts.items()
        }
        for name, alternatives in self._rules.items():
            for parts in alternatives:
                for part in parts:
                    if isinstance(part, _Symbol) and part.name not in self._rules:
                        raise ValueError(f"rule {name} uses {part.name}, which has no rule")

    def expand(self, symbol: str, draws: Draws, slots: Mapping[str, str]) -> str:
        """Text of `symbol` on one line; blanks around empty parts are closed up."""
        pieces: list[str] = []
        self._write(symbol, draws, slots, pieces)
        return " ".join("".join(pieces).split())

    def _write(
        self, symbol: str, draws: Draws, slots: Mapping[str, str], pieces: list[str]
    ) -> None:
        for part in draws.pick(self._rules[symbol]):
            if isinstance(part, str):
                pieces.append(part)
            elif isinstance(part, _Symbol):
                self._write(part.name, draws, slots, pieces)
            else:
                pieces.append(slots[part.name])
