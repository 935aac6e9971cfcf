"""The GPU's decode step, its kernels interpreted: the host step's decisions and tokens, all of them.

tests/gpu repeats this on a GPU with larger models; here nothing but the launches is different.
"""

from typing import Any

import pytest
from engine_serving import (
    BATCH_INDEPENDENT_POLICIES,
    Served,
    make_point,
    make_requests,
    random_model,
    serve,
)

from focus_bench.core.config import ImportanceConfig, PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.decoding.rules import StepRules
from focus_bench.engine.device_step import DeviceStep
from focus_bench.engine.executor import EngineExecutor
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.base import BlockDiffusionModel


def with_kernels(
    model: BlockDiffusionModel, cache: PagedKVCache, point: PointConfig
) -> EngineExecutor:
    rules = StepRules.for_point(point)
    step = DeviceStep(model, cache, rules, point.sampling, max_rows=point.scheduler.batch_size)
    return EngineExecutor(model, cache, rules, point.sampling, step=step)


def both(policy: str, page_size: int = 8, **settings: Any) -> tuple[Served, Served]:
    """A run by kernels and the same run on the host."""
    point = make_point(
        policy, block_length=4, batch_size=3, page_size=page_size, retain=1, **settings
    )
    requests = make_requests([5, 2, 9], [6, 5, 4])
    model = random_model(num_layers=2)
    by_kernels = serve(model, point, requests, make_executor=with_kernels)
    return by_kernels, serve(model, point, requests)


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("policy", (*BATCH_INDEPENDENT_POLICIES, "adaptive"))
def test_kernels_decode_as_the_host_does(policy: str) -> None:
    by_kernels, on_host = both(policy, focus_min_batch=2)
    assert by_kernels.forwards == on_host.forwards
    assert by_kernels.outputs == on_host.outputs


@pytest.mark.usefixtures("decisive_margins")
def test_across_preemption() -> None:
    by_kernels, on_host = both("focus", page_size=4, num_pages=4)
    assert by_kernels.num_swaps_in == by_kernels.num_swaps_out > 0
    assert by_kernels.forwards == on_host.forwards
    assert by_kernels.outputs == on_host.outputs


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("select", ["random", "bottom"])
def test_each_selection(select: str) -> None:
    by_kernels, on_host = both("focus-fixed", select=select)
    assert by_kernels.forwards == on_host.forwards


def test_synthetic_importance_ranks_in_place_of_the_models() -> None:
    importance = ImportanceConfig(kind="synthetic", tau=2.0, noise=0.3)
    by_kernels, on_host = both("focus", importance=importance)
    assert by_kernels.forwards == on_host.forwards


def test_what_layers_attend_to_may_end_at_the_rightmost_kept_position() -> None:
    by_kernels, on_host = both("focus", attention_cover="rightmost")
    assert by_kernels.forwards == on_host.forwards


@pytest.mark.usefixtures("decisive_margins")
def test_draws_at_temperature_one() -> None:
    by_kernels, on_host = both("focus", temperature=1.0, seed=3)
    assert by_kernels.outputs == on_host.outputs


def test_a_small_head_dim_is_refused_by_name() -> None:
    model = random_model()
    spec = model.spec.replace(head_dim=8)
    point = make_point("focus")
    cache = PagedKVCache(
        model.spec, num_pages=2, page_size=8, device=model.device, dtype=model.dtype
    )

    class Small:
        def __getattr__(self, name: str) -> Any:
            return spec if name == "spec" else getattr(model, name)

    with pytest.raises(UsageError, match=r"head_dim of .*: 8 .*even numbers from 16 to 256"):
        with_kernels(Small(), cache, point)  # type: ignore[arg-type]
