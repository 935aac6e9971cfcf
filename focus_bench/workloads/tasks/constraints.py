"""Constraints that a text can be checked against, one a line: a name and its arguments.

Knows no instruction; instructions.py chooses constraints and words them.
"""

import re
from collections.abc import Callable

from focus_bench.core.errors import UsageError
from focus_bench.workloads.tasks.lexicon import TOPICS

_WORD = re.compile(r"[A-Za-z']+")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_ITEM = re.compile(r"\w+")
_BULLET = re.compile(r"^(?:[-*]|\d+\.) (.+)$", re.MULTILINE)


def words_of(text: str) -> list[str]:
    """The words of a text in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def _bullets(text: str) -> list[str]:
    return [item.strip() for item in _BULLET.findall(text)]


def _lines(text: str, count: str, words: str) -> bool:
    """So many lines with something in them, of so many words each."""
    lengths = [len(words_of(line)) for line in text.splitlines() if line.strip()]
    return lengths == [int(words)] * int(count)


def _sentences(text: str, count: str) -> bool:
    return len(_SENTENCE_END.findall(text)) == int(count)


def _count(text: str, word: str, count: str) -> bool:
    return words_of(text).count(word) == int(count)


def _first(text: str, *words: str) -> bool:
    return words_of(text)[: len(words)] == list(words)


def _last(text: str, *words: str) -> bool:
    return words_of(text)[-len(words) :] == list(words)


def _case(text: str, case: str) -> bool:
    letters = "".join(_WORD.findall(text))
    return bool(letters) and letters == (letters.lower() if case == "lower" else letters.upper())


def _with(text: str, word: str) -> bool:
    return word in words_of(text)


def _without(text: str, word: str) -> bool:
    return word not in words_of(text)


def _topic(text: str, *topic: str) -> bool:
    """Every word of the text, or of its bullets where it has some, belongs to the topic."""
    bullets = _bullets(text)
    words = [word for item in bullets for word in words_of(item)] if bullets else words_of(text)
    return bool(words) and set(words) <= set(TOPICS[" ".join(topic)])


def _different(text: str) -> bool:
    """No bullet, or no word of a text without bullets, is there twice."""
    items = _bullets(text) or words_of(text)
    return len(items) == len({item.lower() for item in items})


def _bullet_count(text: str, marker: str, count: str) -> bool:
    lines = [line for line in text.splitlines() if _BULLET.match(line)]
    if len(lines) != int(count):
        return False
    if marker == "1.":
        return all(line.startswith(f"{i}. ") for i, line in enumerate(lines, start=1))
    return all(line.startswith(f"{marker} ") for line in lines)


def _result(text: str, *items: str) -> bool:
    """The last line that begins with "Result:" holds exactly this."""
    lines = [line for line in text.splitlines() if line.startswith("Result:")]
    return bool(lines) and _ITEM.findall(lines[-1].removeprefix("Result:")) == list(items)


_CHECKS: dict[str, Callable[..., bool]] = {
    "lines": _lines,
    "sentences": _sentences,
    "count": _count,
    "first": _first,
    "last": _last,
    "case": _case,
    "with": _with,
    "without": _without,
    "topic": _topic,
    "different": _different,
    "bullets": _bullet_count,
    "result": _result,
}


def satisfies(text: str, constraints: str) -> bool:
    """Whether `text` meets all constraints, each a line such as ``count river 2``.

    Raises UsageError for a constraint that does not exist.
    """
    for line in constraints.splitlines():
        name, *arguments = line.split()
        if name not in _CHECKS:
            raise UsageError("constraint", name, ", ".join(_CHECKS))
        if not _CHECKS[name](text.strip(), *arguments):
            return False
    return True
