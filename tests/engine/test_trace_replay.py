"""A recorded decode trace says what the engine did, and replayed through it gives the same."""

import dataclasses
from pathlib import Path

import pytest
from engine_serving import (
    BATCH_INDEPENDENT_POLICIES,
    make_point,
    make_requests,
    make_workload,
    random_model,
    serve,
)

from focus_bench.core.config import AcceptanceConfig, PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.decoding.masks import unpack_masks
from focus_bench.decoding.trace import DecodeTrace
from focus_bench.engine.runner import run_point

REQUESTS = make_requests([5, 16, 11, 3], [30, 20, 37, 26])


def replaying(point: PointConfig, trace: DecodeTrace, folder: Path) -> PointConfig:
    """The point with the trace in place of confidences."""
    trace.save(folder / "trace.npz")
    acceptance = AcceptanceConfig(kind="replay", path=str(folder / "trace.npz"))
    return dataclasses.replace(point, acceptance=acceptance)


@pytest.mark.parametrize("policy", [*BATCH_INDEPENDENT_POLICIES, "adaptive"])
def test_the_trace_holds_every_forward_and_end(policy: str) -> None:
    point = make_point(policy, focus_min_batch=3, retain=3)
    served = serve(random_model(), point, REQUESTS)
    record, trace = run_point(random_model(), point, make_workload(REQUESTS), decode_trace=True)
    assert trace is not None
    assert {r: ids.tolist() for r, ids in record.output_ids.items()} == served.outputs
    fed, kept, decoded = (
        unpack_masks(words, 8) for words in (trace.fed, trace.kept, trace.decoded)
    )
    row = 0
    for request_id in sorted(served.forwards):
        for number, forward in enumerate(served.forwards[request_id]):
            assert (trace.request_id[row], trace.forward[row]) == (request_id, number)
            for mask, positions in zip(
                (fed[row], kept[row], decoded[row]),
                (forward.fed, forward.kept, forward.decoded),
                strict=True,
            ):
                assert tuple(mask.nonzero()[0].tolist()) == positions
            row += 1
    assert row == len(trace.request_id)
    assert trace.ended_request.tolist() == [0, 1, 2, 3]
    assert trace.ended_output_tokens.tolist() == [30, 20, 37, 26]
    assert trace.ended_reason.tolist() == ["length"] * 4


@pytest.mark.parametrize("policy", [*BATCH_INDEPENDENT_POLICIES, "adaptive"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_pages", [None, 12])
def test_replaying_gives_the_same_tokens(
    policy: str, temperature: float, num_pages: int | None, tmp_path: Path
) -> None:
    point = make_point(
        policy, focus_min_batch=3, retain=3, temperature=temperature, num_pages=num_pages
    )
    served = serve(random_model(), point, REQUESTS)
    assert bool(served.preemptions) == (num_pages is not None)
    replayed = serve(random_model(), replaying(point, served.trace, tmp_path), REQUESTS)
    assert replayed.outputs == served.outputs
    assert replayed.forwards == served.forwards
    assert len(replayed.record.steps) == len(served.record.steps)


@pytest.mark.parametrize("include_stop_token", [True, False])
def test_replaying_ends_where_stop_tokens_did(include_stop_token: bool, tmp_path: Path) -> None:
    point = make_point("focus", include_stop_token=include_stop_token)
    whole = serve(random_model(), point, REQUESTS).outputs
    model = random_model(stop_token_ids=(whole[0][12], whole[2][20]))
    served = serve(model, point, REQUESTS)
    assert list(served.reasons.values()).count("stop") >= 2
    replayed = serve(model, replaying(point, served.trace, tmp_path), REQUESTS)
    assert replayed.outputs == served.outputs
    assert replayed.reasons == served.reasons
    assert replayed.forwards == served.forwards


def test_a_trace_of_other_requests_is_refused(tmp_path: Path) -> None:
    point = make_point("focus")
    served = serve(random_model(), point, REQUESTS[:2])
    replay = replaying(point, served.trace, tmp_path)
    with pytest.raises(UsageError, match=r"request [23], forward 0"):
        serve(random_model(), replay, REQUESTS)
    other_lengths = make_requests([6, 16], [30, 20])
    with pytest.raises(UsageError, match="request 0, forward"):
        serve(random_model(), replay, other_lengths)


def test_a_trace_of_another_policy_is_replayed_approximately(tmp_path: Path) -> None:
    baseline = make_point("baseline")
    served = serve(random_model(), baseline, REQUESTS)
    focus = make_point("focus")
    replayed = serve(random_model(), replaying(focus, served.trace, tmp_path), REQUESTS)
    assert replayed.reasons == served.reasons
    assert [len(o) for o in replayed.outputs.values()] == [len(o) for o in served.outputs.values()]
    other_block = replaying(make_point("focus", block_length=4), served.trace, tmp_path)
    with pytest.raises(UsageError, match=r"--block-length: 4 .* allowed: 8"):
        serve(random_model(), other_block, REQUESTS)
