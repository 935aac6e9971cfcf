"""An executor whose steps go through the kernels, interpreted where there is no GPU."""

from focus_bench.core.config import PointConfig
from focus_bench.decoding.rules import StepRules
from focus_bench.engine.device_step import DeviceStep
from focus_bench.engine.executor import EngineExecutor
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.base import BlockDiffusionModel


def with_kernels(
    model: BlockDiffusionModel, cache: PagedKVCache, point: PointConfig
) -> EngineExecutor:
    """For `make_executor` of engine_serving.serve."""
    rules = StepRules.for_point(point)
    step = DeviceStep(model, cache, rules, point.sampling, max_rows=point.scheduler.batch_size)
    return EngineExecutor(model, cache, rules, point.sampling, step=step)
