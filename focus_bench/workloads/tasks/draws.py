"""Random choices of one task, made of nothing but uniform floats.

Python promises the sequence of random() for a seed across versions, and of no other method.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """Choices in order from a 64-bit seed."""

    __slots__ = ("uniform",)

    def __init__(self, seed: int) -> None:
        self.uniform = random.Random(seed).random

    def pick(self, options: Sequence[T]) -> T:
        """One of `options`, all equally likely."""
        return options[int(self.uniform() * len(options))]

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self.uniform() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.uniform() < probability

    def distinct(self, options: Sequence[T], count: int) -> list[T]:
        """`count` of `options` at different places, in random order."""
        left = list(options)
        chosen = []
        for _ in range(count):
            place = int(self.uniform() * len(left))
            chosen.append(left[place])
            left[place] = left[-1]
            left.pop()
        return chosen
