"""What a run leaves behind: one record a step, a request and a point; the same from both executors.

Records hold counts and seconds as they were measured or predicted; metrics are computed from them
in report/. Bump SCHEMA_VERSION with every change (and say so in CHANGELOG.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

SCHEMA_VERSION = 2
SOURCES = ("measured", "predicted", "published")
FINISH_REASONS = ("stop", "length", "repetition", "error", "aborted")


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """Seconds of one step, split as steps.csv shows it; parts that were not timed apart are 0.

    `prefill_s`: prefill chunks; `prefix_s`: layers 0 and 1 up to its K/V write; `eviction_s`:
    importance, selection, compaction; `suffix_s`: the rest of the layers; `head_s`: logits,
    sampling, unmasking; `swap_s`: copies of preempted requests; `host_s`: the rest.
    """

    duration_s: float
    prefill_s: float = 0.0
    prefix_s: float = 0.0
    eviction_s: float = 0.0
    suffix_s: float = 0.0
    head_s: float = 0.0
    swap_s: float = 0.0
    host_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One engine step. Times count from the start of the run.

    `fed_tokens`: positions of decode rows fed at layers 0 and 1; `kept_tokens`: those that went on
    past layer 1 (= fed without eviction); `masked_tokens`: masked among the fed; `context_tokens`:
    sum over decode rows of their history (tokens before the block). `schedule_s`: host time of
    scheduling and bookkeeping around the step (0 in the simulator, whose model includes it).
    """

    index: int
    start_s: float
    timing: StepTiming
    schedule_s: float
    prefill_tokens: int
    num_rows: int
    commit_rows: int
    evicting_rows: int
    fed_tokens: int
    kept_tokens: int
    masked_tokens: int
    decoded_tokens: int
    context_tokens: int
    num_waiting: int
    pages_used: int
    preemptions: int


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request from arrival to end; None marks what did not happen. Times from the run's start.

    An outside engine shows nothing of its steps: all counts behind `finished_s` are None then.
    `processed_deep_tokens`: positions fed through layers >= 2, commit passes included (Table 5);
    `processed_shallow_tokens`: the same for layers 0-1. `decoded_tokens`: positions unmasked,
    those behind the cut and those that commit passes gave (shifted logits) included.
    """

    request_id: int
    prompt_tokens: int
    output_tokens: int
    max_new_tokens: int
    finish_reason: str
    error: str
    arrival_s: float
    admitted_s: float | None
    first_token_s: float | None
    finished_s: float
    decode_steps: int | None
    commit_passes: int | None
    blocks: int | None
    processed_shallow_tokens: int | None
    processed_deep_tokens: int | None
    decoded_tokens: int | None
    preemptions: int | None


@dataclass(frozen=True, kw_only=True)
class EnvironmentSample:
    """The GPU's state at one moment; None marks what its driver does not tell.

    `time_s` counts from the run's start: the first sample is taken just before it, the last just
    after the end. `power_w`: of the board, which the driver may average over up to a second;
    `energy_j`: the driver's running total since it was loaded. `clock_reasons`: why the clocks are
    what they are, by the names that nvidia-smi gives its fields.
    """

    time_s: float
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    energy_j: float | None
    clock_reasons: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything one executor did for one point.

    `step_fed_tokens`/`step_kept_tokens` exclude commit passes (for retained_fraction).
    `steps_per_block`: decode steps of every closed block. `tokens_per_step_counts[i]`: decode steps
    of a sequence (no commit passes) that decoded i positions. `group_gaps_s`: seconds between
    visible groups of tokens of one request. `output_ids` maps request id to its token ids (engine
    only). `num_pages`: of the KV cache, None where that is not known.
    `notes`: what the run did not measure, shown in every output. `settings`: device and versions.
    `environment`: samples of the GPU in order of time; none without a GPU or without its driver's
    library.
    """

    source: str
    steps: tuple[StepRecord, ...]
    requests: tuple[RequestRecord, ...]
    duration_s: float
    step_fed_tokens: int
    step_kept_tokens: int
    steps_per_block: npt.NDArray[np.int64]
    group_gaps_s: npt.NDArray[np.float64]
    block_latencies_s: npt.NDArray[np.float64]
    num_pages: int | None
    tokens_per_step_counts: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )
    peak_memory_bytes: int | None = None
    requested_rate: float = float("inf")
    output_ids: Mapping[int, npt.NDArray[np.int32]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[EnvironmentSample, ...] = ()
