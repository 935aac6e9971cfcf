"""The timer of operations on a device that is made up: what it counts, and what it leaves out."""

import contextlib
from collections.abc import Iterator

import pytest
import torch

from focus_bench.engine import op_timer
from focus_bench.engine.op_timer import HOST_SAMPLES, SAMPLES, GraphTimer

LAUNCH_S = 20e-6  # a graph's launch, during which an idle device waits
EAGER_S = 50e-6  # the host's time for one call


class Machine:
    """A host's clock and a device's; the device is behind or ahead, as work is queued."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self.device_s = 0.0
        self.recording: list[float] | None = None
        self.num_replays = 0
        self.graph_calls = 0

    def kernel(self, seconds: float) -> None:
        """Launch one kernel, or record it."""
        if self.recording is not None:
            self.recording.append(seconds)
            return
        self.host_s += EAGER_S
        self.device_s = max(self.device_s, self.host_s) + seconds

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.device_s)

    @contextlib.contextmanager
    def capture(self, graph: "Graph") -> Iterator[None]:
        self.recording = graph.kernels
        yield
        self.graph_calls = len(graph.kernels)
        self.recording = None


class Graph:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.kernels: list[float] = []

    def replay(self) -> None:
        machine = self.machine
        machine.num_replays += 1
        machine.host_s += LAUNCH_S
        machine.device_s = max(machine.device_s, machine.host_s) + sum(self.kernels)


class Event:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = max(self.machine.device_s, self.machine.host_s)

    def synchronize(self) -> None:
        self.machine.host_s = max(self.machine.host_s, self.at_s)

    def elapsed_time(self, end: "Event") -> float:
        return 1e3 * (end.at_s - self.at_s)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(made))
    monkeypatch.setattr(torch.cuda, "graph", made.capture)
    monkeypatch.setattr(op_timer, "_event", lambda: Event(made))
    return made


def timer_of(machine: Machine) -> GraphTimer:
    return GraphTimer(clock=lambda: machine.host_s)


@pytest.mark.parametrize("seconds", [2e-6, 1e-4, 2e-2])
def test_device_time_is_that_of_kernels_alone(machine: Machine, seconds: float) -> None:
    """Neither the launch of the first replay nor the host's time per call counts."""
    samples = timer_of(machine).device_s([lambda: machine.kernel(seconds)])
    assert samples == pytest.approx([seconds] * SAMPLES)


def test_calls_are_taken_in_turn_and_equally_often(machine: Machine) -> None:
    times = (1e-6, 2e-6, 6e-6)
    calls = [lambda seconds=seconds: machine.kernel(seconds) for seconds in times]
    samples = timer_of(machine).device_s(calls)
    assert samples == pytest.approx([3e-6] * SAMPLES)
    assert machine.graph_calls % 3 == 0
    assert 100 <= machine.graph_calls <= 512


def test_long_calls_are_not_repeated(machine: Machine) -> None:
    timer_of(machine).device_s([lambda: machine.kernel(0.05)])
    assert machine.graph_calls == 1


def test_a_lasting_load_lasts_a_second(machine: Machine) -> None:
    begin = machine.host_s
    samples = timer_of(machine).sustained_s([lambda: machine.kernel(1e-3)])
    assert samples == pytest.approx([1e-3] * SAMPLES)
    assert 1.0 <= machine.host_s - begin < 1.2


def test_a_lasting_load_of_long_calls_has_all_samples(machine: Machine) -> None:
    samples = timer_of(machine).sustained_s([lambda: machine.kernel(2.0)])
    assert samples == pytest.approx([2.0] * SAMPLES)


def test_host_time_is_until_the_call_returns(machine: Machine) -> None:
    samples = timer_of(machine).host_s(lambda: machine.kernel(5e-3))
    assert samples == pytest.approx([EAGER_S] * HOST_SAMPLES)


def test_a_captured_call_is_replayed(machine: Machine) -> None:
    replay = timer_of(machine).captured(lambda: machine.kernel(1e-3))
    before = machine.device_s
    assert timer_of(machine).host_s(replay) == pytest.approx([LAUNCH_S] * HOST_SAMPLES)
    assert machine.num_replays == HOST_SAMPLES + 1
    assert machine.device_s > before + 1e-3
