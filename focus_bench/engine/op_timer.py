"""Times operations on a GPU: kernels within CUDA graphs by device events, launches by the clock.

Knows calls only, not what they do.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import torch

Call = Callable[[], object]

SAMPLES = 5
HOST_SAMPLES = 9
# Calls of one graph, in seconds of eager calls: some hundred short ones, so that the few
# microseconds between two replays do not count.
_GRAPH_S = 8e-3
_MAX_CALLS = 512
# A GPU takes some tenths of a second to lower its clock to what its power limit allows.
_SUSTAINED_S = 1.0


class OpTimer(Protocol):
    """Seconds of one call; each list holds independent samples.

    `calls` compute the same on different memory and are done in turn.
    """

    def device_s(self, calls: Sequence[Call]) -> list[float]:
        """Device time, launches left out."""

    def sustained_s(self, calls: Sequence[Call]) -> list[float]:
        """Device time after the device has done nothing else for a while."""

    def host_s(self, call: Call) -> list[float]:
        """Time until the call returns, on an idle device."""

    def captured(self, call: Call) -> Call:
        """What replays the call as one graph."""


class GraphTimer:
    """Times on the current CUDA device; implements OpTimer."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def device_s(self, calls: Sequence[Call]) -> list[float]:
        """Samples of replays that follow each other without a gap."""
        graph, num_calls = self._graph_of(calls)
        events = [_event() for _ in range(SAMPLES + 2)]
        for event in events[:-1]:  # the first replay waits for its launch, so it is no sample
            event.record()
            graph.replay()
        events[-1].record()
        events[-1].synchronize()
        return _seconds(events[1:], num_calls)

    def sustained_s(self, calls: Sequence[Call]) -> list[float]:
        """Samples from the end of a second of replays, one of which is always queued."""
        graph, num_calls = self._graph_of(calls)
        events: deque[torch.cuda.Event] = deque(maxlen=SAMPLES + 1)
        end = self._clock() + _SUSTAINED_S
        while len(events) <= SAMPLES or self._clock() < end:
            graph.replay()
            event = _event()
            event.record()
            if events:
                events[-1].synchronize()
            events.append(event)
        events[-1].synchronize()
        return _seconds(list(events), num_calls)

    def host_s(self, call: Call) -> list[float]:
        """Samples after one call that is not counted."""
        call()
        samples = []
        for _ in range(HOST_SAMPLES):
            torch.cuda.synchronize()
            begin = self._clock()
            call()
            samples.append(self._clock() - begin)
        torch.cuda.synchronize()
        return samples

    def captured(self, call: Call) -> Call:
        """The graph's replay, which keeps the graph alive."""
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def _graph_of(self, calls: Sequence[Call]) -> tuple[torch.cuda.CUDAGraph, int]:
        """A graph of enough calls, and how many they are."""
        for call in calls:  # compiles, and allocates what must not be allocated while capturing
            call()
        torch.cuda.synchronize()
        begin = self._clock()
        calls[-1]()
        torch.cuda.synchronize()
        call_s = max(self._clock() - begin, 1e-6)
        rounds = math.ceil(_GRAPH_S / (call_s * len(calls)))
        num_calls = len(calls) * max(1, min(rounds, _MAX_CALLS // len(calls)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for index in range(num_calls):
                calls[index % len(calls)]()
        return graph, num_calls


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _seconds(events: Sequence[torch.cuda.Event], num_calls: int) -> list[float]:
    return [float(begin.elapsed_time(end)) * 1e-3 / num_calls for begin, end in pairwise(events)]
