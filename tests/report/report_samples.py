"""Hand-made records for the tests of report/: small numbers that can be checked by hand."""

import dataclasses

import numpy as np

from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    ImportanceConfig,
    PointConfig,
    SchedulerConfig,
)
from focus_bench.core.records import RequestRecord, RunRecord, StepRecord, StepTiming
from focus_bench.core.workload import Provenance
from focus_bench.report.results import PointResult, result_of

PROVENANCE = Provenance(
    dataset="sharegpt",
    origin="local file",
    tokenizer="bytes",
    path="s.json",
    sha256="ab" * 32,
    rows_read=12,
    rows_kept=10,
    dropped={"empty prompt": 2},
    notes=("no chat template",),
)


def make_request(request_id: int, **changes: object) -> RequestRecord:
    base = RequestRecord(
        request_id=request_id,
        prompt_tokens=1000,
        output_tokens=10,
        max_new_tokens=10,
        finish_reason="length",
        error="",
        arrival_s=1.0,
        admitted_s=1.5,
        first_token_s=2.0,
        finished_s=4.0,
        decode_steps=5,
        commit_passes=1,
        blocks=1,
        processed_shallow_tokens=96,
        processed_deep_tokens=64,
        decoded_tokens=16,
        preemptions=0,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def make_step(index: int, *, start_s: float, duration_s: float = 0.5, **changes: object):
    base = StepRecord(
        index=index,
        start_s=start_s,
        timing=StepTiming(
            duration_s=duration_s,
            prefill_s=0.1 * duration_s,
            prefix_s=0.2 * duration_s,
            eviction_s=0.05 * duration_s,
            suffix_s=0.4 * duration_s,
            head_s=0.15 * duration_s,
            host_s=0.1 * duration_s,
        ),
        schedule_s=0.001,
        prefill_tokens=0,
        num_rows=2,
        commit_rows=0,
        evicting_rows=1,
        fed_tokens=32,
        kept_tokens=16,
        masked_tokens=30,
        decoded_tokens=4,
        context_tokens=2000,
        num_waiting=0,
        pages_used=3 + index,
        preemptions=0,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def make_run(requests=(), steps=(), **changes: object) -> RunRecord:
    base = RunRecord(
        source="measured",
        steps=tuple(steps),
        requests=tuple(requests),
        duration_s=4.0,
        step_fed_tokens=80,
        step_kept_tokens=20,
        steps_per_block=np.array([5], dtype=np.int64),
        group_gaps_s=np.array([0.5, 1.5]),
        block_latencies_s=np.array([2.5]),
        num_pages=64,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def make_point(
    policy: str = "focus", *, batch_size: int = 8, seed: int = 0, **decode: object
) -> PointConfig:
    return PointConfig(
        decode=DecodeConfig(policy=policy, **decode),  # type: ignore[arg-type]
        acceptance=AcceptanceConfig(kind="synthetic", mean=2.0, preset="sharegpt"),
        importance=ImportanceConfig(kind="synthetic", tau=4.0, noise=0.1),
        scheduler=SchedulerConfig(batch_size=batch_size),
        engine=EngineConfig(model="dummy-tiny", load_format="dummy"),
        seed=seed,
    )


def make_result(
    point: PointConfig,
    *,
    source: str = "measured",
    output_tokens: int = 400,
    hardware: str = "",
    notes: tuple[str, ...] = (),
    provenance: Provenance = PROVENANCE,
    run_tokens: tuple[int, ...] = (),
    **changes: object,
) -> PointResult:
    """A result of one request with that many output tokens in 4 s.

    `run_tokens`: those of every run, where there were several; `changes`: of the run's record.
    """

    def run_of(tokens: int) -> RunRecord:
        return make_run(
            [make_request(0, output_tokens=tokens)],
            [make_step(0, start_s=1.0), make_step(1, start_s=2.0)],
            source=source,
            notes=notes,
            **changes,
        )

    return result_of(
        point,
        run_of(output_tokens),
        provenance=provenance,
        hardware=hardware,
        runs=tuple(run_of(tokens) for tokens in run_tokens),
    )
