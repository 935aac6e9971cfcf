"""Points and workloads with the command line's defaults, for callers of the Python interface."""

from focus_bench.bench.sweep import Axes, expand
from focus_bench.bench.workload_cache import WorkloadCache
from focus_bench.core.config import EngineConfig, PointConfig, WorkloadConfig
from focus_bench.core.model_spec import DEFAULT_MODEL
from focus_bench.core.workload import Workload


def make_point(
    *,
    model: str = DEFAULT_MODEL,
    dataset: str = "sharegpt",
    policy: str = "focus",
    batch_size: int = 32,
    block_length: int | None = None,
    alpha: float = 1.5,
    threshold: float = 0.9,
    unmasking_strategy: str = "low_confidence_dynamic",
    acceptance: str | None = None,
    importance: str | None = None,
    num_prompts: int = 64,
    max_new_tokens: int = 64,
    load_format: str = "auto",
    device: str = "auto",
    seed: int = 0,
) -> PointConfig:
    """One point with the command line's defaults; names and meanings are those of its flags.

    For what has no argument here use `dataclasses.replace` on the result. Raises UsageError.
    """
    axes = Axes(
        models=(model,),
        datasets=(dataset,),
        block_lengths=() if block_length is None else (block_length,),
        batch_sizes=(batch_size,),
        alphas=(alpha,),
        thresholds=(threshold,),
        strategies=(unmasking_strategy,),
        policies=(policy,),
        acceptance=acceptance,
        importance=importance,
    )
    base = PointConfig(
        engine=EngineConfig(model=model, load_format=load_format, device=device),
        workload=WorkloadConfig(num_prompts=num_prompts, max_new_tokens=max_new_tokens),
        seed=seed,
    )
    (point,) = expand(axes, base)
    return point


def load_workload(point: PointConfig) -> Workload:
    """The requests of a point, from its data set through its model's tokenizer."""
    return WorkloadCache().of(point)
