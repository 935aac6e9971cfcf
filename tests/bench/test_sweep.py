"""Which points a sweep has, and what is left when some of them fail."""

import dataclasses
import gc
import weakref
from collections.abc import Iterator

import pytest

from focus_bench.bench.sweep import Axes, FailedPoint, expand, run_sweep
from focus_bench.core.config import EngineConfig, PointConfig
from focus_bench.core.errors import CapacityError, UsageError

BASE = PointConfig(engine=EngineConfig(model="dummy-tiny"))
ONE = Axes(
    models=("dummy-tiny",),
    datasets=("sharegpt",),
    batch_sizes=(8,),
    alphas=(1.5,),
    thresholds=(0.9,),
    strategies=("low_confidence_dynamic",),
    policies=("focus",),
)


def test_points_are_ordered_with_the_policy_changing_fastest() -> None:
    axes = dataclasses.replace(
        ONE,
        models=("sdar-8b", "dummy-tiny"),
        datasets=("math", "sharegpt"),
        block_lengths=(16, 32),
        batch_sizes=(32, 8),
        policies=("focus", "baseline"),
    )
    points = expand(axes, BASE)
    seen = [
        (
            p.engine.model,
            p.workload.dataset,
            p.decode.block_length,
            p.scheduler.batch_size,
            p.decode.policy,
        )
        for p in points
    ]
    assert seen == [
        (model, dataset, block_length, batch_size, policy)
        for model in ("sdar-8b", "dummy-tiny")
        for dataset in ("math", "sharegpt")
        for block_length in (16, 32)
        for batch_size in (32, 8)
        for policy in ("focus", "baseline")
    ]
    assert {p.acceptance.preset for p in points if p.workload.dataset == "math"} == {"math"}


def test_values_that_a_point_does_not_read_make_no_points_of_their_own() -> None:
    axes = dataclasses.replace(
        ONE,
        alphas=(1.2, 1.5, 1.8),
        thresholds=(0.8, 0.9),
        policies=("baseline", "focus", "adaptive", "focus-fixed"),
    )
    points = expand(axes, BASE)
    assert [(p.decode.policy, p.decode.alpha, p.decode.threshold) for p in points] == [
        ("baseline", 1.2, 0.8),
        ("focus", 1.2, 0.8),
        ("adaptive", 1.2, 0.8),
        ("focus-fixed", 1.2, 0.8),
        ("focus", 1.5, 0.8),
        ("adaptive", 1.5, 0.8),
        ("focus", 1.8, 0.8),
        ("adaptive", 1.8, 0.8),
    ]


def test_confidences_make_the_threshold_an_axis() -> None:
    axes = dataclasses.replace(ONE, thresholds=(0.8, 0.9), acceptance="confidence")
    assert [p.decode.threshold for p in expand(axes, BASE)] == [0.8, 0.9]
    axes = dataclasses.replace(axes, strategies=("sequential",))
    assert [p.decode.threshold for p in expand(axes, BASE)] == [0.8]


def test_duplicates_are_dropped() -> None:
    axes = dataclasses.replace(ONE, batch_sizes=(8, 4, 8), policies=("focus", "focus"))
    assert [p.scheduler.batch_size for p in expand(axes, BASE)] == [8, 4]


def test_each_model_brings_its_own_block_length() -> None:
    (point,) = expand(ONE, BASE)
    assert point.decode.block_length == 32


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"models": ("sdar-9b",)}, "--model: 'sdar-9b'"),
        ({"policies": ("focsu",)}, "--policy: 'focsu'"),
        ({"models": ("fast-dllm-v2-7b",), "policies": ("focus",)}, "--policy: 'focus'"),
        ({"batch_sizes": (8, 0)}, "--batch-size: 0"),
        ({"alphas": (0.5,)}, "--alpha: 0.5"),
        ({"thresholds": (1.5,)}, "--threshold: 1.5"),
        ({"block_lengths": (65,)}, "--block-length: 65"),
        ({"strategies": ("sequential",)}, "--unmasking-strategy: 'sequential'"),
    ],
)
def test_values_that_are_not_allowed_are_named_before_anything_runs(
    changes: dict[str, tuple[object, ...]], named: str
) -> None:
    with pytest.raises(UsageError) as caught:
        expand(dataclasses.replace(ONE, **changes), BASE)
    assert str(caught.value).startswith(named)
    assert "allowed: " in str(caught.value)


def points_of_four_batch_sizes() -> tuple[PointConfig, ...]:
    return expand(dataclasses.replace(ONE, batch_sizes=(1, 2, 3, 4)), BASE)


def test_a_point_that_fails_does_not_stop_the_others() -> None:
    points = points_of_four_batch_sizes()
    ran: list[int] = []
    told: list[FailedPoint] = []

    def run(index: int, point: PointConfig) -> None:
        if index == 1:
            raise MemoryError("no more\nbytes")
        if index == 2:
            raise UsageError("--num-pages", 1, ">= 2")
        ran.append(point.scheduler.batch_size)

    result = run_sweep(points, run=run, is_finished=lambda point: False, on_failed=told.append)
    assert ran == [1, 4]
    assert result.finished == [points[0], points[3]]
    assert [f.point for f in result.failed] == [points[1], points[2]] == [f.point for f in told]
    assert [f.reason for f in result.failed] == [
        "out of memory: no more bytes",
        "--num-pages: 1 is not usable; allowed: >= 2",
    ]
    assert not result.interrupted


def test_finished_points_are_skipped() -> None:
    points = points_of_four_batch_sizes()
    done = {points[0].hash(), points[2].hash()}
    ran: list[int] = []
    result = run_sweep(
        points,
        run=lambda index, point: ran.append(index),
        is_finished=lambda point: point.hash() in done,
        on_failed=lambda failed: None,
    )
    assert ran == [1, 3]
    assert result.skipped == [points[0], points[2]]
    assert result.finished == [points[1], points[3]]


def test_an_interruption_keeps_what_is_finished() -> None:
    points = points_of_four_batch_sizes()

    def run(index: int, point: PointConfig) -> None:
        if index == 2:
            raise KeyboardInterrupt

    result = run_sweep(points, run=run, is_finished=lambda point: False, on_failed=print)
    assert result.interrupted
    assert result.finished == [points[0], points[1]]
    assert result.failed == []


def test_an_interruption_between_points_is_one_too() -> None:
    points = points_of_four_batch_sizes()

    def is_finished(point: PointConfig) -> bool:
        if point is points[1]:
            raise KeyboardInterrupt
        return False

    result = run_sweep(
        points, run=lambda index, point: None, is_finished=is_finished, on_failed=print
    )
    assert (result.interrupted, result.finished) == (True, [points[0]])


def test_a_finished_point_that_cannot_be_completed_is_a_failed_one() -> None:
    points = points_of_four_batch_sizes()

    def is_finished(point: PointConfig) -> bool:
        if point is points[1]:
            raise MemoryError
        return True

    told: list[FailedPoint] = []
    result = run_sweep(points, run=never, is_finished=is_finished, on_failed=told.append)
    assert result.skipped == [points[0], points[2], points[3]]
    assert [(f.point, f.reason) for f in result.failed] == [(points[1], "out of memory")]


def never(index: int, point: PointConfig) -> None:
    raise AssertionError(point)


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch's is."""


CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.80 GiB of "
    "which 5.00 GiB is free.\n"
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            OutOfMemoryError(f"{CUDA_TEXT} If reserved but unallocated memory is large try ..."),
            f"out of memory: {CUDA_TEXT.strip()}",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B"),
            "out of memory: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 B",
        ),
        (
            RuntimeError("CUDA error: out of memory\nFor debugging consider ..."),
            "out of memory: CUDA error: out of memory For debugging consider ...",
        ),
        (MemoryError(), "out of memory"),
        (
            CapacityError("memory", "9 bytes wanted, 8 bytes had", "less"),
            "memory: '9 bytes wanted, 8 bytes had' is not usable; allowed: less",
        ),
    ],
)
def test_memory_that_runs_out_is_a_reason_of_one_line(error: Exception, reason: str) -> None:
    failed = FailedPoint(point=BASE, error=error)
    assert failed.is_foreseen
    assert failed.reason == reason


def test_other_errors_are_not_foreseen() -> None:
    for error in (RuntimeError("shapes"), ValueError("out of memory"), ZeroDivisionError()):
        failed = FailedPoint(point=BASE, error=error)
        assert not failed.is_foreseen
        assert failed.reason.startswith(type(error).__name__)


class Tensor:
    """Something large that a point makes."""


def test_nothing_of_a_failed_point_is_alive_when_memory_is_released() -> None:
    """Neither its variables nor those of the error behind the error."""
    alive: list[weakref.ref[Tensor]] = []

    def allocate() -> None:
        tensor = Tensor()
        alive.append(weakref.ref(tensor))
        raise OutOfMemoryError("no room")

    def run(index: int, point: PointConfig) -> None:
        tensor = Tensor()
        alive.append(weakref.ref(tensor))
        try:
            allocate()
        except OutOfMemoryError as error:
            raise RuntimeError("while capturing") from error

    seen: list[list[bool]] = []
    gc.disable()  # what is free is so without the collector
    try:
        result = run_sweep(
            points_of_four_batch_sizes()[:2],
            run=run,
            is_finished=lambda point: False,
            on_failed=lambda failed: None,
            release=lambda: seen.append([reference() is None for reference in alive]),
        )
    finally:
        gc.enable()
    assert seen == [[True] * 2, [True] * 4]
    assert [f.reason for f in result.failed] == ["RuntimeError: while capturing"] * 2


def test_memory_is_released_after_every_point_that_was_run() -> None:
    points = points_of_four_batch_sizes()
    events: list[str] = []

    def run(index: int, point: PointConfig) -> None:
        events.append(f"run {index}")
        if index == 1:
            raise MemoryError

    run_sweep(
        points,
        run=run,
        is_finished=lambda point: point is points[0],
        on_failed=lambda failed: events.append("failed"),
        release=lambda: events.append("release"),
    )
    assert events == ["run 1", "failed", "release", *events_of(2), *events_of(3)]


def events_of(index: int) -> Iterator[str]:
    yield from (f"run {index}", "release")
