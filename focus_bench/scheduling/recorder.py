"""Turns plans, outcomes and reports into records, for both executors. Decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from focus_bench.core.records import RequestRecord, RunRecord, StepRecord
from focus_bench.core.workload import RequestSpec, TokenArray, Workload
from focus_bench.decoding.trace import DecodeTrace, TraceWriter
from focus_bench.scheduling.plan import CommitReport, FinishedRequest, Outcome, Plan

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
    _gaps: list[np.ndarray] = field(default_factory=list)
    _block_steps: list[int] = field(default_factory=list)
    _block_latencies: list[float] = field(default_factory=list)
    _step_fed: int = 0
    _step_kept: int = 0

    def __post_init__(self) -> None:
        size = max((r.request_id for r in self.workload.requests), default=-1) + 1
        self._arrival = np.full(size, np.nan)
        self._admitted = np.full(size, np.nan)
        self._first_token = np.full(size, np.nan)
        self._last_visible = np.full(size, np.nan)
        self._block_started = np.full(size, np.nan)
        self._counters = {name: np.zeros(size, dtype=np.int64) for name in _COUNTERS}

    @property
    def num_finished(self) -> int:
        """Requests that ended so far, whatever the reason."""
        return len(self._requests)

    @property
    def output_tokens(self) -> int:
        """Output tokens of the requests that ended so far."""
        return sum(r.output_tokens for r in self._requests)

    def on_arrival(self, specs: Sequence[RequestSpec], now_s: float, closed_loop: bool) -> None:
        """Requests reached the scheduler. In a closed loop they arrive now; in an open one when
        the workload says, so that waiting for a busy driver counts.
        """
        for spec in specs:
            self._arrival[spec.request_id] = now_s if closed_loop else spec.arrival_s

    def on_admitted(self, request_ids: Sequence[int], now_s: float) -> None:
        """Requests were given a slot for the first time."""
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
        fed = plan.feed.positions.sum(axis=1)
        kept = outcome.kept.sum(axis=1)
        decoded = outcome.decoded.sum(axis=1)
        counters = self._counters
        counters["decode_steps"][ids] += ~commit
        counters["commit_passes"][ids] += commit
        counters["shallow"][ids] += fed
        counters["deep"][ids] += kept
        counters["decoded"][ids] += decoded
        self._step_fed += int(fed[~commit].sum())
        self._step_kept += int(kept[~commit].sum())
        self._visible(ids[report.visible_tokens > 0], end_s)
        new_block = ids[np.isnan(self._block_started[ids])]
        self._block_started[new_block] = start_s
        for row, steps in report.closed_block_steps:
            request_id = int(ids[row])
            counters["blocks"][request_id] += 1
            self._block_steps.append(steps)
            self._block_latencies.append(end_s - float(self._block_started[request_id]))
            self._block_started[request_id] = np.nan
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
                commit_rows=int(commit.sum()),
                evicting_rows=int(outcome.evicting.sum()),
                fed_tokens=int(fed.sum()),
                kept_tokens=int(kept.sum()),
                masked_tokens=int(plan.feed.decodable.sum()),
                decoded_tokens=int(decoded.sum()),
                context_tokens=int(plan.history.sum()),
                num_waiting=plan.num_waiting,
                pages_used=plan.pages_used,
                preemptions=plan.preemptions,
            )
        )

    def _visible(self, ids: np.ndarray, now_s: float) -> None:
        last = self._last_visible[ids]
        seen = ~np.isnan(last)
        self._gaps.append(now_s - last[seen])
        self._first_token[ids[~seen]] = now_s
        self._last_visible[ids] = now_s

    def on_finished(self, finished: Sequence[FinishedRequest], now_s: float) -> None:
        """Requests ended."""
        for request in finished:
            i = request.request_id
            if self.trace is not None:
                self.trace.add_end(i, request.ended_at, request.reason)
            self._outputs[i] = request.output_ids
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
        gaps = np.concatenate(self._gaps) if self._gaps else np.zeros(0)
        return RunRecord(
            source=self.source,
            steps=tuple(self._steps),
            requests=tuple(sorted(self._requests, key=lambda r: r.request_id)),
            duration_s=duration_s,
            step_fed_tokens=self._step_fed,
            step_kept_tokens=self._step_kept,
            steps_per_block=np.array(self._block_steps, dtype=np.int64),
            group_gaps_s=gaps.astype(np.float64),
            block_latencies_s=np.array(self._block_latencies, dtype=np.float64),
            num_pages=num_pages,
            requested_rate=self.workload.request_rate,
            output_ids=self._outputs,
        )

    def finished_trace(self) -> DecodeTrace | None:
        """The decode trace, if one was asked for."""
        return None if self.trace is None else self.trace.finish()


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
