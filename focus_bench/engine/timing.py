"""Splits one step's time into phases: the host's clock on a CPU, CUDA events on a GPU.

Events are only recorded during the step and read after its last synchronisation, so timing does
not slow the run.
"""

import functools
import time
from collections.abc import Callable

import torch

from focus_bench.core.records import StepTiming

PHASES = ("swap", "prefill", "prefix", "eviction", "suffix", "head")


class StepTimer:
    """Phases of one step; each `end(phase)` closes the time since the previous mark.

    `events`: those of an earlier timer that is finished, to be used again; new ones are added.
    """

    def __init__(self, device: torch.device, events: list[torch.cuda.Event] | None = None) -> None:
        self._on_gpu = device.type == "cuda"
        self._events = [] if events is None else events
        self._start_s = time.perf_counter()
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []
        self._reached: torch.cuda.Event | None = None
        self.end("")

    def _mark(self) -> float | torch.cuda.Event:
        if not self._on_gpu:
            return time.perf_counter()
        if len(self._marks) == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        event = self._events[len(self._marks)]
        event.record()
        return event

    def end(self, phase: str) -> None:
        """The time since the last mark belongs to `phase` ("host" for the rest)."""
        self._marks.append((phase, self._mark()))

    def wait(self) -> None:
        """Wait until a GPU has reached the last mark."""
        last = self._marks[-1][1]
        if isinstance(last, torch.cuda.Event) and last is not self._reached:
            last.synchronize()
            self._reached = last

    def finish(self) -> Callable[[], StepTiming]:
        """The step is over (its last mark is waited for here); what reads its events, once, which
        on a GPU takes the host a while.
        """
        self.wait()
        duration_s = time.perf_counter() - self._start_s
        return functools.cache(lambda: self._read(duration_s))

    def _read(self, duration_s: float) -> StepTiming:
        seconds = dict.fromkeys(PHASES, 0.0)
        for (_, begin), (phase, end) in zip(self._marks, self._marks[1:], strict=False):
            if phase in seconds:
                seconds[phase] += _elapsed_s(begin, end)
        return StepTiming(
            duration_s=duration_s,
            swap_s=seconds["swap"],
            prefill_s=seconds["prefill"],
            prefix_s=seconds["prefix"],
            eviction_s=seconds["eviction"],
            suffix_s=seconds["suffix"],
            head_s=seconds["head"],
            host_s=max(0.0, duration_s - sum(seconds.values())),
        )


def _elapsed_s(begin: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return end - begin
    assert isinstance(begin, torch.cuda.Event)
    assert isinstance(end, torch.cuda.Event)
    return float(begin.elapsed_time(end)) * 1e-3
