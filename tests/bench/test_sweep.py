"""Which points a sweep has, and what is left when some of them fail."""

import dataclasses

import pytest

from focus_bench.bench.sweep import Axes, FailedPoint, expand, run_sweep
from focus_bench.core.config import EngineConfig, PointConfig
from focus_bench.core.errors import UsageError

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
        ({"policies": ("fast-dllm-v2",)}, "--policy: 'fast-dllm-v2'"),
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
        "MemoryError: no more bytes",
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
