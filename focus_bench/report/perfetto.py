"""Runs as a trace in the JSON format of Chrome and Perfetto (https://ui.perfetto.dev).

A pure function of records, the same for measured and predicted ones; knows no file and no folder.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

from focus_bench.core.records import (
    EnvironmentSample,
    RequestRecord,
    RunRecord,
    StepRecord,
    StepTiming,
)

# Records hold a phase's sum over a step; this is the order in which the slices are drawn. Host time
# lies between and behind the others in truth, and is drawn last.
PHASES = ("swap", "prefill", "prefix", "eviction", "suffix", "head", "host")

_STEPS_THREAD = 1
_NOTES_THREAD = 2
_STEP_COUNTS = tuple(f.name for f in fields(StepRecord) if f.type is int)
_REQUEST_TIMES = ("arrival_s", "admitted_s", "first_token_s", "finished_s")
_REQUEST_FACTS = tuple(
    f.name for f in fields(RequestRecord) if f.name not in ("request_id", *_REQUEST_TIMES)
)

# Viewers name a counter by its event's name and, behind it, the series within.
_STEP_COUNTERS = {
    ("batch", "rows"): "num_rows",
    ("kept", "tokens"): "kept_tokens",
    ("pages", "used"): "pages_used",
    ("waiting", "requests"): "num_waiting",
}
_GPU_COUNTERS = {
    ("GPU power", "W"): "power_w",
    ("GPU temperature", "C"): "temperature_c",
    ("SM clock", "MHz"): "sm_clock_mhz",
    ("memory clock", "MHz"): "memory_clock_mhz",
}

_Event = dict[str, object]  # one entry of traceEvents, with "ns" until its time is in microseconds


@dataclass(frozen=True, kw_only=True)
class TracedRun:
    """One run of a trace: its title, its records, and what they rest on (labels and notes)."""

    title: str
    steps: Sequence[StepRecord]
    requests: Sequence[RequestRecord]
    duration_s: float
    environment: Sequence[EnvironmentSample] = ()
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, run: RunRecord, title: str = "") -> Self:
        """A run as its executor recorded it."""
        device = run.settings.get("device", "")
        return cls(
            title=title or f"{run.source}{f' on {device}' if device else ''}",
            steps=run.steps,
            requests=run.requests,
            duration_s=run.duration_s,
            environment=run.environment,
            notes=run.notes,
        )


def trace_json(runs: Sequence[TracedRun]) -> str:
    """The trace of runs that all start at 0, as JSON text: one event a line, in order of time.

    Each run is two processes. The first has a thread "steps" with a slice for each step and, within
    it, one for each of its PHASES that took time ("schedule" slices lie before their step), a
    thread "rests on" with the run's notes as slices over the whole run, and counters that hold from
    the start of a step. The second has a track of asynchronous slices for each request: "queued",
    "to first token" and "streaming" within "request N". Times are microseconds to the nanosecond.
    """
    events: list[_Event] = []
    timed: list[_Event] = []
    for number, run in enumerate(runs):
        engine, requests = 2 * number + 1, 2 * number + 2
        events += _names(engine, run.title, run.notes)
        events += _names(requests, f"requests, {run.title}", run.notes)
        events.append(_meta(engine, "thread_name", {"name": "steps"}, _STEPS_THREAD))
        if run.notes:
            events.append(_meta(engine, "thread_name", {"name": "rests on"}, _NOTES_THREAD))
        timed += _note_slices(engine, run)
        timed += _step_slices(engine, run.steps)
        timed += _step_counters(engine, run)
        timed += _gpu_counters(engine, run.environment)
        timed += _request_slices(requests, run.requests)
    timed.sort(key=_nanoseconds)  # stable: an outer slice stays before the inner ones
    events += map(_in_microseconds, timed)
    as_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    lines = ",\n".join(map(as_json, events))
    about = {"phase_order": ", ".join(PHASES), "runs": [run.title for run in runs]}
    return f'{{"displayTimeUnit":"ms","otherData":{as_json(about)},"traceEvents":[\n{lines}\n]}}\n'


def _note_slices(process: int, run: TracedRun) -> Iterator[_Event]:
    for note in run.notes:
        yield _slice(process, _NOTES_THREAD, "note", note, 0, _ns(run.duration_s), {})


def _step_slices(process: int, steps: Sequence[StepRecord]) -> Iterator[_Event]:
    for step in steps:
        planned_s = step.start_s + step.schedule_s
        asked, begin = _ns(step.start_s), _ns(planned_s)
        end = _ns(planned_s + step.timing.duration_s)
        if begin > asked:
            yield _slice(process, _STEPS_THREAD, "schedule", "schedule", asked, begin, {})
        counts = {name: getattr(step, name) for name in _STEP_COUNTS}
        yield _slice(process, _STEPS_THREAD, "step", "step", begin, end, counts)
        for name, phase_begin, phase_end in _phases(step.timing, begin, end):
            yield _slice(process, _STEPS_THREAD, "phase", name, phase_begin, phase_end, {})


def _phases(timing: StepTiming, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Phases one after the other; the last reaches the step's end.

    Phases of a GPU are timed by its own clock, so their sum may pass the host's duration.
    """
    seconds = [(name, getattr(timing, f"{name}_s")) for name in PHASES]
    taken = [(name, value) for name, value in seconds if value > 0]
    passed_s, at = 0.0, begin
    for place, (name, value) in enumerate(taken, start=1):
        passed_s += value
        until = end if place == len(taken) else min(end, begin + _ns(passed_s))
        if until > at:
            yield name, at, until
        at = until


def _step_counters(process: int, run: TracedRun) -> Iterator[_Event]:
    for step in run.steps:
        for counter, column in _STEP_COUNTERS.items():
            yield _counter(process, counter, _ns(step.start_s), getattr(step, column))
    if run.steps:
        for counter in _STEP_COUNTERS:
            yield _counter(process, counter, _ns(run.duration_s), 0)


def _gpu_counters(process: int, samples: Sequence[EnvironmentSample]) -> Iterator[_Event]:
    for sample in samples:
        at = max(0, _ns(sample.time_s))  # the first is taken just before the run
        for counter, column in _GPU_COUNTERS.items():
            value = getattr(sample, column)
            if value is not None:
                yield _counter(process, counter, at, value)


def _request_slices(process: int, requests: Sequence[RequestRecord]) -> Iterator[_Event]:
    for request in requests:
        facts = {name: getattr(request, name) for name in (*_REQUEST_FACTS, *_REQUEST_TIMES)}
        name = f"request {request.request_id}"
        arrival, finished = _ns(request.arrival_s), _ns(request.finished_s)
        yield _async("b", process, request, name, arrival) | {"args": facts}
        for stage, begin, end in _stages(request):
            if end > begin:
                yield _async("b", process, request, stage, begin)
                yield _async("e", process, request, stage, end)
        yield _async("e", process, request, name, finished)


def _stages(request: RequestRecord) -> Iterator[tuple[str, int, int]]:
    """What a request waited for, one after the other; what never came lasts to its end."""
    admitted_s, first_s = request.admitted_s, request.first_token_s
    stages: list[tuple[str, float | None]] = []
    if admitted_s is not None or first_s is None:  # outside engines do not show their queue
        stages.append(("queued", admitted_s))
    if admitted_s is not None or first_s is not None:
        stages.append(("to first token", first_s))
    if first_s is not None:
        stages.append(("streaming", request.finished_s))
    at = _ns(request.arrival_s)
    for name, end_s in stages:
        end = _ns(request.finished_s if end_s is None else end_s)
        yield name, at, end
        at = end


def _names(process: int, title: str, notes: Sequence[str]) -> Iterator[_Event]:
    yield _meta(process, "process_name", {"name": title})
    yield _meta(process, "process_sort_index", {"sort_index": process})
    if notes:
        yield _meta(process, "process_labels", {"labels": "; ".join(notes)})


def _meta(process: int, name: str, args: Mapping[str, object], thread: int = 0) -> _Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": name, "args": args}


def _slice(
    process: int,
    thread: int,
    category: str,
    name: str,
    begin: int,
    end: int,
    args: Mapping[str, object],
) -> _Event:
    event: _Event = {"ph": "X", "ns": begin, "dur": (end - begin) / 1000}
    event |= {"pid": process, "tid": thread, "cat": category, "name": name}
    return event | ({"args": args} if args else {})


def _counter(process: int, counter: tuple[str, str], at: int, value: float) -> _Event:
    name, series = counter
    return {"ph": "C", "ns": at, "pid": process, "name": name, "args": {series: value}}


def _async(kind: str, process: int, request: RequestRecord, name: str, at: int) -> _Event:
    # A plain "id" would be one for all processes, and shown under none of them.
    number = {"local": f"0x{request.request_id:x}"}
    place: _Event = {"pid": process, "tid": 0, "cat": "request", "id2": number}
    return {"ph": kind, "ns": at, **place, "name": name}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _nanoseconds(event: _Event) -> int:
    at = event["ns"]
    assert isinstance(at, int)
    return at


def _in_microseconds(event: _Event) -> _Event:
    at = _nanoseconds(event)
    return {"ts" if key == "ns" else key: at / 1000 if key == "ns" else event[key] for key in event}
