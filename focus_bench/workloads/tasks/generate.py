"""Tasks by number: each is a pure function of (split, seed, index) and of the mix of families.

Knows the families by their table only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from focus_bench.core.errors import UsageError, check_choice, check_range
from focus_bench.core.rng import hash_u64, stream_key
from focus_bench.workloads.tasks import grammar, instructions, programs, word_problems
from focus_bench.workloads.tasks.draws import Draws
from focus_bench.workloads.tasks.splits import split_of
from focus_bench.workloads.tasks.task import SPLITS, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class _Family:
    """How to draw a task, what decides its split, and whether an output answers it."""

    draw: Callable[[Draws], Task]
    key: Callable[[Task], str]
    check: Callable[[Task, str], bool]


_FAMILIES = {
    family.FAMILY: _Family(draw=family.draw, key=family.key, check=family.check)
    for family in (word_problems, programs, instructions, grammar)
}
FAMILIES = tuple(_FAMILIES)
SCORED_FAMILIES = tuple(name for name in FAMILIES if name != grammar.FAMILY)
MIX: Mapping[str, float] = {
    word_problems.FAMILY: 0.4,
    programs.FAMILY: 0.25,
    instructions.FAMILY: 0.2,
    grammar.FAMILY: 0.15,
}


def generate(family_or_mix: str | Mapping[str, float], split: str, seed: int, index: int) -> Task:
    """Task `index` of a split: of one family (its name), or of a mix of families with weights.

    `split` is "train" or "test". Raises UsageError for an unknown split or family, or bad weights.
    """
    return generate_many(split, seed, index, 1, mix=family_or_mix)[0]


def generate_many(
    split: str, seed: int, start: int, count: int, *, mix: str | Mapping[str, float] = MIX
) -> list[Task]:
    """Tasks `start` to `start` + `count` - 1 of a split, each as `generate` gives it."""
    check_choice("split", split, SPLITS)
    check_range("start", start, low=0)
    check_range("count", count, low=0)
    names, limits = _cumulative({mix: 1.0} if isinstance(mix, str) else mix)
    keys = hash_u64(stream_key(seed, f"tasks/{split}"), np.arange(start, start + count))
    tasks = []
    for key in keys.tolist():
        draws = Draws(key)
        place = draws.uniform()
        name = next(name for name, limit in zip(names, limits, strict=True) if place < limit)
        tasks.append(_draw_of_split(_FAMILIES[name], name, split, draws))
    return tasks


def _cumulative(mix: Mapping[str, float]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Families with weight and the upper ends of their shares of [0, 1)."""
    for name, weight in mix.items():
        check_choice("task family", name, FAMILIES)
        check_range(f"weight of {name}", weight, low=0.0)
    names = tuple(name for name, weight in mix.items() if weight > 0)
    if not names:
        raise UsageError("mix", dict(mix), "at least one family with a weight above 0")
    total = sum(mix.values())
    limits = np.cumsum([mix[name] / total for name in names]).tolist()
    return names, (*limits[:-1], 1.0)


def _draw_of_split(family: _Family, name: str, split: str, draws: Draws) -> Task:
    while True:
        task = family.draw(draws)
        if split_of(name, family.key(task)) == split:
            return task


def split_key(task: Task) -> str:
    """The content of a task that decides its split; tasks with equal prompts have equal keys."""
    return _FAMILIES[task.family].key(task)


def check(task: Task, output: str) -> bool:
    """Whether `output`, any reply to the task's prompt, is right; always False for stories."""
    return _FAMILIES[task.family].check(task, output)
