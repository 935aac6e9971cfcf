"""Puts a run together from one point: pages, scheduler, recorder, loop; for any executor."""

import dataclasses

from focus_bench.core.config import PointConfig
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.workload import Workload
from focus_bench.decoding.policies import check_suits_model
from focus_bench.decoding.trace import TraceWriter
from focus_bench.scheduling.loop import Executor, ServingLoop
from focus_bench.scheduling.recorder import Recorder
from focus_bench.scheduling.request import target_tokens
from focus_bench.scheduling.scheduler import Scheduler


def lengths_from_data(point: PointConfig) -> bool:
    """Whether output lengths are the data set replies' (synthetic acceptance, algorithm 4)."""
    return point.acceptance.kind == "synthetic"


def pages_wanted(point: PointConfig, workload: Workload) -> int:
    """Pages that the workload can hold at most: its `batch_size` largest requests at once."""
    block_length, page_size = point.decode.block_length, point.scheduler.page_size
    from_data = lengths_from_data(point)
    pages = []
    for request in workload.requests:
        tokens = request.num_prompt_tokens + target_tokens(request, from_data=from_data)
        blocks = -(-tokens // block_length)
        pages.append(-(-blocks * block_length // page_size))
    return max(1, sum(sorted(pages, reverse=True)[: point.scheduler.batch_size]))


def pages_of_longest(point: PointConfig, workload: Workload) -> int:
    """Pages that the longest request may fill: what page tables are made for."""
    tokens = max((r.num_prompt_tokens + r.max_new_tokens for r in workload.requests), default=1)
    whole_blocks = -(-tokens // point.decode.block_length) * point.decode.block_length
    return -(-whole_blocks // point.scheduler.page_size)


def build_loop(
    point: PointConfig,
    workload: Workload,
    executor: Executor,
    *,
    spec: ModelSpec,
    num_pages: int,
    source: str,
    decode_trace: bool = False,
) -> ServingLoop:
    """A serving loop over a fresh scheduler; `source` is "measured" or "predicted".

    Raises UsageError for a policy that does not suit the model.
    """
    decode, config = point.decode, point.scheduler
    check_suits_model(decode.policy, spec)
    if point.acceptance.kind == "replay":
        # A replay has no tokens to scan: its trace knows where stops and repetitions were.
        config = dataclasses.replace(config, stop_tokens=False, repetition_guard=False)
    scheduler = Scheduler(
        config,
        decode,
        num_pages=num_pages,
        stop_token_ids=() if point.workload.ignore_eos else spec.stop_token_ids,
        max_positions=spec.max_position_embeddings,
        lengths_from_data=lengths_from_data(point),
        shifted_logits=spec.shifted_logits,
    )
    writer = None
    if decode_trace:
        writer = TraceWriter(
            policy=decode.policy,
            block_length=decode.block_length,
            alpha=decode.alpha,
            threshold=decode.threshold,
        )
    recorder = Recorder(workload=workload, source=source, trace=writer)
    return ServingLoop(scheduler=scheduler, executor=executor, workload=workload, recorder=recorder)
