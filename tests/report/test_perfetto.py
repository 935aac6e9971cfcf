"""Traces of hand-made records: exact events at the edges that real runs seldom reach."""

import pytest
from report_samples import make_request, make_run, make_step
from trace_checks import (
    check_async,
    check_slices,
    check_steps,
    counters_of,
    names_of,
    read_events,
)

from focus_bench.core.records import EnvironmentSample, StepTiming
from focus_bench.report.perfetto import TracedRun, trace_json


def events_of(run, title: str = "") -> list[dict]:
    return read_events(trace_json([TracedRun.of(run, title)]))


def slices(events, category: str) -> list[tuple[str, float, float]]:
    return [(e["name"], e["ts"], e["dur"]) for e in events if e.get("cat") == category]


def stages(request) -> list[tuple[str, str, float]]:
    events = events_of(make_run([request]))
    check_async(events)
    return [(e["ph"], e["name"], e["ts"] / 1e6) for e in events if e["ph"] in "be"]


def test_a_step_and_its_phases_in_microseconds():
    step = make_step(
        7,
        start_s=1.0,
        schedule_s=0.25,
        timing=StepTiming(
            duration_s=0.5, prefill_s=0.125, suffix_s=0.25, head_s=0.0625, host_s=0.0625
        ),
    )
    run = make_run([], [step])
    events = events_of(run)
    assert slices(events, "schedule") == [("schedule", 1e6, 0.25e6)]
    assert slices(events, "step") == [("step", 1.25e6, 0.5e6)]
    assert slices(events, "phase") == [
        ("prefill", 1.25e6, 0.125e6),
        ("suffix", 1.375e6, 0.25e6),
        ("head", 1.625e6, 0.0625e6),
        ("host", 1.6875e6, 0.0625e6),
    ]
    check_slices(events)
    check_steps(events, 1, run.steps)


def test_phases_of_a_clock_that_runs_ahead_end_with_their_step():
    timing = StepTiming(duration_s=0.1, prefix_s=0.06, suffix_s=0.05, head_s=0.02)
    events = events_of(make_run([], [make_step(0, start_s=0.0, schedule_s=0.0, timing=timing)]))
    check_slices(events)
    assert slices(events, "phase") == [("prefix", 0.0, 60_000.0), ("suffix", 60_000.0, 40_000.0)]


@pytest.mark.parametrize("duration_s", [1 / 3, 1e-6, 7.123456789e-4, 3.3e-9])
def test_phases_fill_steps_whose_parts_are_no_whole_nanoseconds(duration_s: float):
    steps = [
        make_step(i, start_s=i * (duration_s + 0.001), duration_s=duration_s) for i in range(50)
    ]
    events = events_of(make_run([], steps))
    check_slices(events)
    whole = sum(dur for _, _, dur in slices(events, "step"))
    assert sum(dur for _, _, dur in slices(events, "phase")) == pytest.approx(whole, rel=1e-12)


def test_a_request_from_arrival_to_end():
    assert stages(make_request(3)) == [
        ("b", "request 3", 1.0),
        ("b", "queued", 1.0),
        ("e", "queued", 1.5),
        ("b", "to first token", 1.5),
        ("e", "to first token", 2.0),
        ("b", "streaming", 2.0),
        ("e", "streaming", 4.0),
        ("e", "request 3", 4.0),
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"admitted_s": None, "first_token_s": None}, [("queued", 1.0, 4.0)]),
        ({"first_token_s": None}, [("queued", 1.0, 1.5), ("to first token", 1.5, 4.0)]),
        # An outside engine does not show when it admitted a request.
        ({"admitted_s": None}, [("to first token", 1.0, 2.0), ("streaming", 2.0, 4.0)]),
        # One step long, admitted at once.
        ({"admitted_s": 1.0, "first_token_s": 4.0}, [("to first token", 1.0, 4.0)]),
        ({"admitted_s": None, "first_token_s": None, "finished_s": 1.0}, []),
    ],
)
def test_what_never_came_has_no_slice(changes, expected):
    found = stages(make_request(0, **changes))
    begins = {name: at for kind, name, at in found if kind == "b"}
    ends = {name: at for kind, name, at in found if kind == "e"}
    begins.pop("request 0")
    assert ends.pop("request 0") == changes.get("finished_s", 4.0)
    assert [(name, at, ends[name]) for name, at in begins.items()] == expected


def test_counters_hold_from_a_step_on_and_end_with_the_run():
    steps = [make_step(0, start_s=0.5, num_waiting=2), make_step(1, start_s=1.5, num_waiting=1)]
    events = events_of(make_run([], steps, duration_s=4.0))
    found = [(at, value) for name, at, value in counters_of(events) if name == "waiting requests"]
    assert found == [(0.5e6, 2), (1.5e6, 1), (4e6, 0)]


def test_samples_of_a_gpu_are_counters_from_the_start_on():
    samples = [
        EnvironmentSample(
            time_s=time_s,
            sm_clock_mhz=clock,
            memory_clock_mhz=2619,
            power_w=300.5,
            temperature_c=None,
            energy_j=None,
            clock_reasons=None,
        )
        for time_s, clock in ((-0.002, 1980), (0.1, 1755))
    ]
    events = events_of(make_run(environment=tuple(samples)))
    assert sorted(counters_of(events)) == [
        ("GPU power W", 0.0, 300.5),
        ("GPU power W", 100_000.0, 300.5),
        ("SM clock MHz", 0.0, 1980),
        ("SM clock MHz", 100_000.0, 1755),
        ("memory clock MHz", 0.0, 2619),
        ("memory clock MHz", 100_000.0, 2619),
    ]


def test_notes_are_slices_over_the_whole_run_and_labels():
    run = make_run(notes=("dummy weights", "synthetic data (é)"), duration_s=4.0)
    events = events_of(run, "a title")
    check_slices(events)
    assert slices(events, "note") == [
        ("dummy weights", 0.0, 4e6),
        ("synthetic data (é)", 0.0, 4e6),
    ]
    labels = [e["args"]["labels"] for e in events if e["name"] == "process_labels"]
    assert labels == ["dummy weights; synthetic data (é)"] * 2
    assert names_of(events) == {(1, 0): "a title", (2, 0): "requests, a title"}
    assert names_of(events, "thread_name") == {(1, 1): "steps", (1, 2): "rests on"}


def test_a_run_without_steps_and_requests_is_a_trace_too():
    events = events_of(make_run())
    assert all(e["ph"] == "M" for e in events)
    assert read_events(trace_json([])) == []
