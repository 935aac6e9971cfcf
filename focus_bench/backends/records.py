"""Replies of an outside engine as this project's records. Knows neither protocol nor clock."""

import platform
from collections.abc import Mapping, Sequence

import numpy as np

from focus_bench.backends.backend import TextTokenizer
from focus_bench.backends.reply import Reply, Served
from focus_bench.core.records import RequestRecord, RunRecord
from focus_bench.core.workload import Workload


def run_record(
    served: Sequence[Served],
    *,
    workload: Workload,
    tokenizer: TextTokenizer,
    duration_s: float,
    notes: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> RunRecord:
    """The record of a run; output tokens that the engine did not count are counted here.

    Its steps, pages and counters are not known. Notes say what was counted by which tokenizer.
    """
    replies = [s.reply for s in served]
    uncounted = [r for r in replies if r.output_tokens is None]
    lengths = [len(ids) for ids in tokenizer.encode_batch([r.text for r in uncounted])]
    counted = iter(lengths)
    output_tokens = [next(counted) if r.output_tokens is None else r.output_tokens for r in replies]
    all_notes = list(notes)
    if any(not r.error for r in uncounted):
        all_notes.append(
            f"output tokens counted with tokenizer {tokenizer.name}: the engine reports none"
        )
    gaps = [np.diff(np.array(r.group_times_s)) for r in replies if not r.error]
    return RunRecord(
        source="measured",
        steps=(),
        requests=tuple(
            sorted(
                (_request_record(s, n) for s, n in zip(served, output_tokens, strict=True)),
                key=lambda record: record.request_id,
            )
        ),
        duration_s=duration_s,
        step_fed_tokens=0,
        step_kept_tokens=0,
        steps_per_block=np.zeros(0, dtype=np.int64),
        group_gaps_s=np.concatenate([np.zeros(0), *gaps]),
        block_latencies_s=np.zeros(0),
        num_pages=None,
        requested_rate=workload.request_rate,
        notes=tuple(all_notes),
        settings={"python": platform.python_version(), **(settings or {})},
    )


def _request_record(served: Served, output_tokens: int) -> RequestRecord:
    spec, reply = served.spec, served.reply
    return RequestRecord(
        request_id=spec.request_id,
        prompt_tokens=_prompt_tokens(served),
        output_tokens=output_tokens,
        max_new_tokens=spec.max_new_tokens,
        finish_reason=reply.finish_reason,
        error=reply.error,
        arrival_s=served.arrival_s,
        admitted_s=served.sent_s,
        first_token_s=_first(reply),
        finished_s=reply.finished_s,
        decode_steps=None,
        commit_passes=None,
        blocks=None,
        processed_shallow_tokens=None,
        processed_deep_tokens=None,
        decoded_tokens=None,
        preemptions=None,
    )


def _prompt_tokens(served: Served) -> int:
    counted = served.reply.prompt_tokens
    return served.spec.num_prompt_tokens if counted is None else counted


def _first(reply: Reply) -> float | None:
    return reply.group_times_s[0] if reply.group_times_s else None
