"""From the flags of run, simulate and eval to configurations and axes of a sweep."""

import os
from collections.abc import Callable
from typing import TypeVar

from focus_bench.bench.defaults import DEFAULT_BATCH_SIZES, DEFAULT_POLICIES
from focus_bench.bench.sweep import Axes, expand
from focus_bench.cli.eval_options import EvalFlags
from focus_bench.cli.options import DeviceFlags, ModelFlags, SamplingFlags
from focus_bench.cli.sweep_options import PointFlags
from focus_bench.core.config import (
    BackendConfig,
    DecodeConfig,
    EngineConfig,
    PointConfig,
    SamplingConfig,
    SchedulerConfig,
    WorkloadConfig,
)
from focus_bench.core.cpu_threads import check_threads
from focus_bench.core.errors import UsageError

Value = TypeVar("Value")


def points_from_flags(
    flags: PointFlags,
    *,
    device: str = "auto",
    simulated: bool = False,
    backend: BackendConfig | None = None,
) -> tuple[PointConfig, ...]:
    """The points that the flags span, in the order in which they run. Raises UsageError."""
    base = PointConfig(
        engine=engine_of(flags, device=device),
        backend=BackendConfig() if backend is None else backend,
        decode=DecodeConfig(
            policy="baseline",  # with which every other setting goes; the axes name the real ones
            steps=flags.steps,
            retain=flags.retain,
            select=flags.select,
            focus_min_batch=flags.focus_min_batch,
        ),
        sampling=sampling_of(flags),
        scheduler=SchedulerConfig(
            kind=flags.scheduler,
            page_size=flags.page_size,
            num_pages=flags.num_pages,
            max_prefill_tokens=flags.max_prefill_tokens,
            steps_per_round=flags.steps_per_round,
            stop_tokens=not flags.ignore_eos,
            repetition_guard=flags.repetition_guard,
        ),
        workload=WorkloadConfig(
            dataset_path=flags.dataset_path,
            num_prompts=flags.num_prompts,
            max_new_tokens=flags.max_new_tokens,
            request_rate=flags.request_rate,
            burstiness=flags.burstiness,
            max_concurrency=flags.max_concurrency,
            shuffle=flags.shuffle,
            repeat=flags.repeat,
            download=flags.download,
            ignore_eos=flags.ignore_eos,
            tokenizer=flags.tokenizer,
            random_input_len=flags.random_input_len,
            random_output_len=flags.random_output_len,
        ),
        seed=flags.seed,
    )
    datasets = comma_list("--dataset", flags.dataset, str, "names")
    return expand(axes_of(flags, datasets=datasets, simulated=simulated), base)


def engine_of(flags: ModelFlags, *, device: str) -> EngineConfig:
    """The engine of the first model that the flags name. Raises UsageError."""
    if isinstance(flags, DeviceFlags):
        check_threads(flags.threads)
    return EngineConfig(
        model=comma_list("--model", flags.model, str, "names")[0],
        load_format=flags.load_format,
        device=device,
        dtype=flags.dtype,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        mask_token_id=flags.mask_token_id,
        threads=flags.threads if isinstance(flags, DeviceFlags) else None,
        cuda_graphs=flags.cuda_graphs if isinstance(flags, DeviceFlags) else "auto",
    )


def sampling_of(flags: SamplingFlags) -> SamplingConfig:
    """How tokens are drawn."""
    return SamplingConfig(temperature=flags.temperature, top_k=flags.top_k, top_p=flags.top_p)


def axes_of(
    flags: PointFlags | EvalFlags, *, datasets: tuple[str, ...] = (), simulated: bool = False
) -> Axes:
    """What the flags list the values of. Raises UsageError."""
    block_lengths: tuple[int, ...] = ()
    if flags.block_length is not None:
        block_lengths = comma_list("--block-length", flags.block_length, int, "whole numbers")
    return Axes(
        models=comma_list("--model", flags.model, str, "names"),
        datasets=datasets,
        block_lengths=block_lengths,
        batch_sizes=DEFAULT_BATCH_SIZES
        if flags.batch_size is None
        else comma_list("--batch-size", flags.batch_size, int, "whole numbers"),
        alphas=comma_list("--alpha", flags.alpha, float, "numbers"),
        thresholds=comma_list("--threshold", flags.threshold, float, "numbers"),
        strategies=comma_list("--unmasking-strategy", flags.unmasking_strategy, str, "names"),
        policies=DEFAULT_POLICIES
        if flags.policy is None
        else comma_list("--policy", flags.policy, str, "names"),
        acceptance=flags.acceptance,
        importance=flags.importance,
        simulated=simulated,
    )


def comma_list(
    flag: str, text: str, convert: Callable[[str], Value], what: str
) -> tuple[Value, ...]:
    """The values of a comma list, in order; raises UsageError naming the flag and the value."""
    values = []
    for item in text.split(","):
        try:
            if not item.strip():
                raise ValueError
            values.append(convert(item.strip()))
        except ValueError:
            raise UsageError(flag, item.strip(), f"{what}, separated by commas") from None
    return tuple(values)


def key_values(flag: str, items: list[str] | None) -> dict[str, str]:
    """KEY=VALUE items as a dictionary; raises UsageError for an item without "=" or key.

    The items are the process's arguments, which main has found to be UTF-8.
    """
    pairs: dict[str, str] = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UsageError(flag, item, "KEY=VALUE")
        # Under LC_ALL=C Python took each byte of a character for itself.
        pairs[os.fsencode(key).decode("utf-8")] = os.fsencode(value).decode("utf-8")
    return pairs
