"""Turns plans, outcomes and reports into records, for both executors. Decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from focus_bench.core.config import MAX_BLOCK_LENGTH
from focus_bench.core.records import RequestRecord, RunRecord, StepRecord
from focus_bench.core.workload import RequestSpec, TokenArray, Workload
from focus_bench.decoding.block_state import IntArray
from focus_bench.decoding.trace import DecodeTrace, TraceWriter
from focus_bench.scheduling.plan import CommitReport, FinishedRequest, Outcome, Plan

FloatArray = npt.NDArray[np.float64]

_COUNTERS = ("decode_steps", "commit_passes", "blocks", "shallow", "deep", "decoded")


@dataclass(kw_only=True)
class Recorder:
    """Collects one run's records; arrays are indexed by request id.

    `trace`: collect a decode trace too.
    """

    workload: Workload
    source: str
    trace: TraceWriter | None = None
    _steps: list[StepRecord] = field(default_factory=list)
    _requests: list[RequestRecord] = field(default_factory=list)
    _outputs: dict[int, TokenArray] = field(default_factory=dict)
    _gaps: list[FloatArray] = field(default_factory=list)
    _block_steps: list[IntArray] = field(default_factory=list)
    _block_latencies: list[FloatArray] = field(default_factory=list)
    _output_tokens: int = 0
    _step_fed: int = 0
    _step_kept: int = 0

    def __post_init__(self) -> None:
        size = max((r.request_id for r in self.workload.requests), default=-1) + 1
        self._arrival = np.full(size, np.nan)
        self._admitted = np.full(size, np.nan)
        self._first_token = np.full(size, np.nan)
        self._last_visible = np.full(size, np.nan)
        self._block_started = np.full(size, np.nan)
        self._tokens_per_step = np.zeros(MAX_BLOCK_LENGTH + 1, dtype=np.int64)
        self._counters = {name: np.zeros(size, dtype=np.int64) for name in _COUNTERS}

    @property
    def num_finished(self) -> int:
        """Requests that ended so far, whatever the reason."""
        return len(self._requests)

    @property
    def output_tokens(self) -> int:
        """Output tokens of the requests that ended so far."""
        return self._output_tokens

    def on_arrival(self, specs: Sequence[RequestSpec], now_s: float, closed_loop: bool) -> None:
        """Requests reached the scheduler. In a closed loop they arrive now; in an open one when
        the workload says, so that waiting for a busy driver counts.
        """
        for spec in specs:
            self._arrival[spec.request_id] = now_s if closed_loop else spec.arrival_s

    def on_admitted(self, request_ids: Sequence[int], now_s: float) -> None:
        """Requests were given a slot for the first time."""
        if request_ids:
            self._admitted[list(request_ids)] = now_s

    def on_step(
        self,
        plan: Plan,
        outcome: Outcome,
        report: CommitReport,
        *,
        start_s: float,
        end_s: float,
        schedule_s: float,
    ) -> None:
        """A step from `start_s` to `end_s` was committed."""
        ids, commit = plan.request_ids, plan.feed.commit
        fed, kept, decoded = plan.feed.num_fed, outcome.num_kept, outcome.num_decoded
        counters = self._counters
        counters["decode_steps"][ids] += ~commit
        counters["commit_passes"][ids] += commit
        counters["shallow"][ids] += fed
        counters["deep"][ids] += kept
        counters["decoded"][ids] += decoded + outcome.num_carried
        self._tokens_per_step += np.bincount(decoded[~commit], minlength=MAX_BLOCK_LENGTH + 1)
        fed_tokens, kept_tokens = int(fed.sum()), int(kept.sum())
        self._step_fed += fed_tokens - int(fed[commit].sum())
        self._step_kept += kept_tokens - int(kept[commit].sum())
        self._visible(ids[report.visible_tokens > 0], end_s)
        self._blocks(ids, report, start_s, end_s)
        if self.trace is not None:
            self.trace.add_step(plan.block, plan.feed, outcome.kept, outcome.decoded)
        self._steps.append(
            StepRecord(
                index=plan.index,
                start_s=start_s,
                timing=outcome.timing,
                schedule_s=schedule_s,
                prefill_tokens=plan.prefill_tokens,
                num_rows=len(ids),
                commit_rows=int(np.count_nonzero(commit)),
                evicting_rows=int(np.count_nonzero(outcome.evicting)),
                fed_tokens=fed_tokens,
                kept_tokens=kept_tokens,
                masked_tokens=int(plan.feed.num_decodable.sum()),
                decoded_tokens=int(decoded.sum() + outcome.num_carried.sum()),
                context_tokens=int(plan.history.sum()),
                num_waiting=plan.num_waiting,
                pages_used=plan.pages_used,
                preemptions=plan.preemptions,
            )
        )

    def _visible(self, ids: IntArray, now_s: float) -> None:
        last = self._last_visible[ids]
        seen = ~np.isnan(last)
        self._gaps.append(now_s - last[seen])
        self._first_token[ids[~seen]] = now_s
        self._last_visible[ids] = now_s

    def _blocks(self, ids: IntArray, report: CommitReport, start_s: float, end_s: float) -> None:
        new = ids[np.isnan(self._block_started[ids])]
        self._block_started[new] = start_s
        if len(report.closed_rows):
            closed = ids[report.closed_rows]
            self._counters["blocks"][closed] += 1
            self._block_steps.append(report.closed_steps)
            self._block_latencies.append(end_s - self._block_started[closed])
            self._block_started[closed] = np.nan

    def on_finished(self, finished: Sequence[FinishedRequest], now_s: float) -> None:
        """Requests ended."""
        for request in finished:
            i = request.request_id
            if self.trace is not None:
                self.trace.add_end(i, request.ended_at, request.reason)
            if self.source == "measured":  # a simulation decodes no text
                self._outputs[i] = request.output_ids
            self._output_tokens += request.num_output_tokens
            counters = {name: int(values[i]) for name, values in self._counters.items()}
            self._requests.append(
                RequestRecord(
                    request_id=i,
                    prompt_tokens=request.prompt_tokens,
                    output_tokens=request.num_output_tokens,
                    max_new_tokens=request.max_new_tokens,
                    finish_reason=request.reason,
                    error=request.error,
                    arrival_s=float(self._arrival[i]),
                    admitted_s=_known(self._admitted[i]),
                    first_token_s=_known(self._first_token[i]),
                    finished_s=now_s,
                    decode_steps=counters["decode_steps"],
                    commit_passes=counters["commit_passes"],
                    blocks=counters["blocks"],
                    processed_shallow_tokens=counters["shallow"],
                    processed_deep_tokens=counters["deep"],
                    decoded_tokens=counters["decoded"],
                    preemptions=request.preemptions,
                )
            )

    def finish(self, duration_s: float, num_pages: int) -> RunRecord:
        """The run's record; executors add memory, notes and settings to it."""
        return RunRecord(
            source=self.source,
            steps=tuple(self._steps),
            requests=tuple(sorted(self._requests, key=lambda r: r.request_id)),
            duration_s=duration_s,
            step_fed_tokens=self._step_fed,
            step_kept_tokens=self._step_kept,
            steps_per_block=np.concatenate([np.zeros(0, dtype=np.int64), *self._block_steps]),
            group_gaps_s=np.concatenate([np.zeros(0), *self._gaps]),
            block_latencies_s=np.concatenate([np.zeros(0), *self._block_latencies]),
            num_pages=num_pages,
            tokens_per_step_counts=np.trim_zeros(self._tokens_per_step, "b"),
            requested_rate=self.workload.request_rate,
            output_ids=self._outputs,
        )

    def finished_trace(self) -> DecodeTrace | None:
        """The decode trace, if one was asked for."""
        return None if self.trace is None else self.trace.finish()


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
