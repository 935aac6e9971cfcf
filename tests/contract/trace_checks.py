"""Reads a trace as strictly as a viewer could, and says what is in it."""

import json
from collections import defaultdict
from collections.abc import Sequence

from focus_bench.core.records import StepRecord
from focus_bench.report.perfetto import PHASES

Event = dict
Track = tuple[int, int]
COUNTERS = {
    "batch rows": "num_rows",
    "kept tokens": "kept_tokens",
    "pages used": "pages_used",
    "waiting requests": "num_waiting",
}


def ns(microseconds: float) -> int:
    """Nanoseconds; a trace has no finer times."""
    value = microseconds * 1000
    assert abs(value - round(value)) < 1e-3
    return round(value)


def read_events(text: str) -> list[Event]:
    """The events of a trace that is strict JSON, whose times never go back and start at 0."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    data = json.loads(text, parse_constant=refuse)
    assert data["displayTimeUnit"] == "ms"
    events = data["traceEvents"]
    assert {e["ph"] for e in events} <= {"M", "X", "C", "b", "e"}
    times = [e["ts"] for e in events if e["ph"] != "M"]
    assert times == sorted(times)
    assert min(times, default=0) >= 0
    return events


def names_of(events: list[Event], kind: str = "process_name") -> dict[Track, str]:
    """Names of processes (thread 0) or of threads, by process and thread."""
    return {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] == kind
    }


def counters_of(events: list[Event]) -> list[tuple[str, float, float]]:
    """Counters under the names that viewers show: (name and series, microseconds, value)."""
    return [
        (f"{e['name']} {series}", e["ts"], value)
        for e in events
        if e["ph"] == "C"
        for series, value in e["args"].items()
    ]


def check_slices(events: list[Event]) -> None:
    """On each thread a slice lies within the one that is open, and comes after those before it."""
    open_ends: dict[Track, list[int]] = defaultdict(list)
    for event in events:
        if event["ph"] != "X":
            continue
        begin = ns(event["ts"])
        end = begin + ns(event["dur"])
        assert end > begin
        stack = open_ends[event["pid"], event["tid"]]
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1]
        stack.append(end)


def check_async(events: list[Event]) -> None:
    """Asynchronous slices open and close like brackets on one id of each request."""
    stacks: dict[tuple[int, str], list[str]] = defaultdict(list)
    for event in events:
        if event["ph"] not in "be":
            continue
        stack = stacks[event["pid"], event["id2"]["local"]]
        if event["ph"] == "e":
            assert stack.pop() == event["name"]
        else:
            assert stack or int(event["id2"]["local"], 16) == int(event["name"].split()[1])
            stack.append(event["name"])
    assert not any(stacks.values())


def check_steps(events: list[Event], process: int, steps: Sequence[StepRecord]) -> None:
    """Slices and counters of a process are those of the steps, and phases fill their step."""
    own = [e for e in events if e["pid"] == process]
    slices = [e for e in own if e["ph"] == "X" and e["cat"] == "step"]
    assert [e["args"]["index"] for e in slices] == [step.index for step in steps]
    phases = [e for e in own if e["ph"] == "X" and e["cat"] == "phase"]
    for event, step in zip(slices, steps, strict=True):
        begin, length = ns(event["ts"]), ns(event["dur"])
        assert abs(begin - 1e9 * (step.start_s + step.schedule_s)) <= 1
        assert abs(length - 1e9 * step.timing.duration_s) <= 1
        assert event["args"]["kept_tokens"] == step.kept_tokens
        inside = [e for e in phases if begin <= ns(e["ts"]) < begin + length]
        assert sum(ns(e["dur"]) for e in inside) == length
        order = [PHASES.index(e["name"]) for e in inside]
        assert order == sorted(set(order))
        for phase in inside:
            seconds = getattr(step.timing, f"{phase['name']}_s")
            assert abs(ns(phase["dur"]) - 1e9 * seconds) <= 3
    assert len(phases) == sum(
        sum(getattr(step.timing, f"{name}_s") > 0 for name in PHASES) for step in steps
    )
    for name, column in COUNTERS.items():
        values = [value for counter, _, value in counters_of(own) if counter == name]
        assert values == [*(getattr(step, column) for step in steps), 0]


def shape_of(events: list[Event], process: int) -> dict[str, object]:
    """What a run's two processes hold, times and counts left out."""
    own = [e for e in events if e["pid"] in (process, process + 1)]
    slices = [e for e in own if e["ph"] == "X"]
    threads = names_of(own, "thread_name")
    return {
        "threads": sorted(threads.values()),
        "keys": {kind: sorted({k for e in own if e["ph"] == kind for k in e}) for kind in "MXCbe"},
        "step arguments": [sorted(e["args"]) for e in slices if e["cat"] == "step"],
        "counters": sorted({name for name, _, _ in counters_of(own)}),
        "requests": sorted(
            e["name"] for e in own if e["ph"] == "b" and e["name"].startswith("request ")
        ),
        "request arguments": [sorted(e["args"]) for e in own if e["ph"] == "b" and "args" in e],
    }
