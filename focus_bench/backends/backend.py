"""What every outside engine offers, and what it needs of a tokenizer. Knows no engine itself."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy.typing as npt

from focus_bench.core.config import PointConfig
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import TokenArray, Workload

# Called with the number of requests that ended so far, and their output tokens.
Progress = Callable[[int, int], None]

BYTE_TOKENIZER = "byte"  # ids of no real model: they mean nothing to a server


class TextTokenizer(Protocol):
    """The part of a workload's tokenizer that outside engines use."""

    @property
    def name(self) -> str:
        """What reports show; BYTE_TOKENIZER where ids are bytes."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """Ids of every text, in order; nothing is put before or after them."""
        ...

    def decode(self, ids: npt.ArrayLike, skip_special: bool = True) -> str:
        """Text of `ids`, shape [tokens]."""
        ...


class Backend(Protocol):
    """An engine from outside that serves workloads."""

    @property
    def hardware(self) -> str:
        """What every output calls it, "outside engine" included."""
        ...

    def check(self, point: PointConfig) -> None:
        """Raise UsageError for a point that it cannot run, naming what and why."""
        ...

    def connect(self) -> None:
        """Find out what it takes, before anything is measured. Raises UsageError."""
        ...

    def warm_up(self, point: PointConfig) -> None:
        """Serve a few short requests, unmeasured."""
        ...

    def run(
        self, point: PointConfig, workload: Workload, *, on_progress: Progress | None = None
    ) -> RunRecord:
        """Serve the workload in real time; requests that fail are recorded as such."""
        ...

    def close(self) -> None:
        """Give back what the engine holds; nothing may be run after it."""
        ...
