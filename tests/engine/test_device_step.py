"""The GPU's decode step, its kernels interpreted: the host step's tokens for every kind of policy."""

import pytest
from engine_serving import make_point, make_requests, random_model, serve

from focus_bench.core.config import ImportanceConfig, PointConfig
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


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("policy", ["baseline", "focus"])
def test_kernels_decode_as_the_host_does(policy: str) -> None:
    point = make_point(policy, block_length=4, batch_size=2, page_size=8)
    model, requests = random_model(num_layers=2), make_requests([5, 2], [6, 5])
    by_kernels = serve(model, point, requests, make_executor=with_kernels)
    assert by_kernels.forwards == serve(model, point, requests).forwards
    assert by_kernels.outputs == serve(model, point, requests).outputs
