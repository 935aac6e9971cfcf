"""What an engine leaves behind, made of given replies."""

from collections.abc import Callable

import numpy as np

from focus_bench.core.records import RequestRecord, RunRecord
from focus_bench.core.workload import Workload
from focus_bench.workloads.tokenizers import ByteTokenizer


def fake_record(workload: Workload, reply: Callable[[int], str]) -> RunRecord:
    """What an engine would leave that replies so to request i; "" is a failed request."""
    requests, outputs = [], {}
    for request in workload.requests:
        text = reply(request.request_id)
        ids = ByteTokenizer().encode(text)
        requests.append(
            RequestRecord(
                request_id=request.request_id,
                prompt_tokens=request.num_prompt_tokens,
                output_tokens=len(ids),
                max_new_tokens=request.max_new_tokens,
                finish_reason="stop" if text else "error",
                error="" if text else "no room",
                arrival_s=0.0,
                admitted_s=0.0,
                first_token_s=0.5,
                finished_s=1.0,
                decode_steps=4,
                commit_passes=0,
                blocks=1,
                processed_shallow_tokens=20,
                processed_deep_tokens=16,
                decoded_tokens=8,
                preemptions=0,
            )
        )
        if text:
            outputs[request.request_id] = ids
    nothing = np.zeros(0)
    return RunRecord(
        source="measured",
        steps=(),
        requests=tuple(reversed(requests)),  # records come in the order of ends, not of requests
        duration_s=2.0,
        step_fed_tokens=0,
        step_kept_tokens=0,
        steps_per_block=nothing.astype(np.int64),
        group_gaps_s=nothing,
        block_latencies_s=nothing,
        num_pages=1,
        output_ids=outputs,
    )
