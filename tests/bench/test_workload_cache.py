"""Requests that are loaded ahead: once, their errors kept until they are asked for."""

import threading

import pytest

from focus_bench.bench import workload_cache
from focus_bench.bench.workload_cache import WorkloadCache
from focus_bench.core.config import EngineConfig, PointConfig, WorkloadConfig
from focus_bench.core.errors import UsageError
from focus_bench.workloads.loader import load_workload


def point(num_prompts: int, **workload: object) -> PointConfig:
    return PointConfig(
        engine=EngineConfig(model="dummy-tiny"),
        workload=WorkloadConfig(
            dataset="random",
            num_prompts=num_prompts,
            random_input_len=8,
            max_new_tokens=8,
            **workload,  # type: ignore[arg-type]
        ),
    )


def test_each_is_loaded_once_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def load(*args: object, **kwargs: object) -> object:
        threads.append(threading.current_thread())
        return load_workload(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(workload_cache, "load_workload", load)
    cache = WorkloadCache()
    cache.load_ahead([point(3), point(5), point(3)])
    assert [len(cache.of(point(n)).requests) for n in (3, 5, 3)] == [3, 5, 3]
    assert len(threads) == 2
    assert threading.main_thread() not in threads
    assert len(cache.of(point(2)).requests) == 2
    assert threads[2] is threading.main_thread()


def test_what_cannot_be_loaded_is_said_when_it_is_asked_for() -> None:
    cache = WorkloadCache()
    cache.load_ahead([point(3, dataset_path="somewhere"), point(4)])
    with pytest.raises(UsageError, match="--dataset-path"):
        cache.of(point(3, dataset_path="somewhere"))
    assert len(cache.of(point(4)).requests) == 4
