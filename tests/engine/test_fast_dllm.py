"""Fast-dLLM v2 on the engine: against its second statement, in company, across preemption, at ends.

With shifted logits on Qwen2.5 layers, and without the shift (paper, Fig. 19) on SDAR's.
"""

import dataclasses

import numpy as np
import pytest
import torch
from engine_serving import Served, alone, engine_model, make_point, make_requests, serve
from fast_dllm_reference import Decoded, FastDllm, Reference
from qwen2_reference import build_qwen2, qwen2_model
from qwen3_reference import build_qwen3

from focus_bench.core.config import (
    POLICY_NAMES,
    UNMASKING_STRATEGIES,
    AcceptanceConfig,
    PointConfig,
)
from focus_bench.core.errors import UsageError
from focus_bench.core.workload import RequestSpec
from focus_bench.engine.models.base import BlockDiffusionModel

KINDS = ("shifted", "unshifted")
B = 16  # two sub-blocks
PROMPTS = [5, 16, 11, 32, 1]
OUTPUTS = [50, 40, 37, 12, 26]

every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, num_layers: int = 3) -> Reference:
    builder = build_qwen2 if kind == "shifted" else build_qwen3
    return builder(num_layers=num_layers)


def model_of(
    kind: str, reference: Reference | None = None, **changes: object
) -> BlockDiffusionModel:
    reference = reference or build(kind)
    return (qwen2_model if kind == "shifted" else engine_model)(reference, **changes)


def point_of(policy: str = "fast-dllm-v2", **changes: object) -> PointConfig:
    return make_point(policy, **{"block_length": B, **changes})


def assert_equal_to_the_reference(
    kind: str,
    reference: Reference,
    point: PointConfig,
    requests: tuple[RequestSpec, ...],
    stop_ids: tuple[int, ...] = (),
) -> tuple[Served, list[Decoded]]:
    served = serve(model_of(kind, reference, stop_token_ids=stop_ids), point, requests)
    config, decoded = point.decode, []
    for request in requests:
        decoder = FastDllm(
            reference,
            shifted=kind == "shifted",
            block_length=config.block_length,
            sub_block=8 if config.policy == "fast-dllm-v2" else config.block_length,
            threshold=config.threshold,
            strategy=config.unmasking_strategy,
            steps=config.steps,
        )
        expected = decoder.decode(
            request.prompt_ids.tolist(), max_new_tokens=request.max_new_tokens, stop_ids=stop_ids
        )
        forwards = served.forwards[request.request_id]
        assert [(f.fed, f.decoded) for f in forwards] == expected.forwards
        assert all(f.kept == f.fed for f in forwards)
        assert served.outputs[request.request_id] == expected.output
        assert served.reasons[request.request_id] == expected.reason
        decoded.append(expected)
    return served, decoded


@pytest.mark.usefixtures("decisive_margins")
@every_kind
@pytest.mark.parametrize(("block_length", "page_size"), [(16, 5), (32, 64), (12, 4)])
def test_equals_its_second_statement(kind: str, block_length: int, page_size: int) -> None:
    point = point_of(block_length=block_length, page_size=page_size)
    requests = make_requests([5, block_length, 11], 2 * block_length + 9, seed=5)
    served, decoded = assert_equal_to_the_reference(kind, build(kind), point, requests)
    sizes = {len(f.fed) for fs in served.forwards.values() for f in fs if not f.is_commit}
    assert {8, block_length} <= sizes
    assert all(bool(d.carried) == (kind == "shifted") for d in decoded)


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("num_layers", [1, 2, 4])
def test_any_depth(num_layers: int) -> None:
    requests = make_requests([5, 16], 25, seed=2)
    assert_equal_to_the_reference("shifted", build("shifted", num_layers), point_of(), requests)


@pytest.mark.usefixtures("decisive_margins")
def test_the_baseline_decodes_shifted_models_by_whole_blocks() -> None:
    requests = make_requests([5, 16, 11], 40, seed=3)
    point = point_of("baseline")
    served, _ = assert_equal_to_the_reference("shifted", build("shifted"), point, requests)
    assert {len(f.fed) for fs in served.forwards.values() for f in fs} == {B}


@pytest.mark.usefixtures("decisive_margins")
@every_kind
@pytest.mark.parametrize("strategy", UNMASKING_STRATEGIES[1:])
def test_other_unmasking_strategies(kind: str, strategy: str) -> None:
    point = point_of(unmasking_strategy=strategy, steps=5)  # 3 positions a step
    requests = make_requests([5, 16], 30, seed=1)
    served, _ = assert_equal_to_the_reference(kind, build(kind), point, requests)
    counts = {len(f.decoded) for fs in served.forwards.values() for f in fs if not f.is_commit}
    assert counts <= {1, 2, 3}
    assert 3 in counts
    assert 2 in counts  # a sub-block's last ones: 8 = 3 + 3 + 2


def carried_of(decoded: Decoded, prompt: int) -> list[tuple[int, int]]:
    """(place in the output, token) of the carried tokens."""
    return [(position - prompt, token) for position, token in decoded.carried.items()]


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("prompt", [5, 16])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("include", [True, False])
def test_a_carried_stop_token_ends_the_request_in_its_commit_pass(
    prompt: int, which: int, include: bool
) -> None:
    reference, point = build("shifted"), point_of(include_stop_token=include)
    request = make_requests([prompt], 60, seed=23)
    _, (whole,) = assert_equal_to_the_reference("shifted", reference, point, request)
    place, token = carried_of(whole, prompt)[which]
    assert token not in whole.output[:place]  # else pick another seed
    served = serve(model_of("shifted", reference, stop_token_ids=(token,)), point, request)
    assert served.reasons == {0: "stop"}
    assert served.outputs[0] == whole.output[: place + include]
    assert served.forwards[0][-1].is_commit
    assert served.record.requests[0].finished_s == len(served.record.steps)


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("prompt", [5, 16])
def test_every_limit_of_new_tokens_cuts_the_same_output(prompt: int) -> None:
    reference, point = build("shifted"), point_of()
    request = make_requests([prompt], 60, seed=6)[0]
    whole = serve(model_of("shifted", reference), point, [request]).outputs[0]
    decoder = FastDllm(reference, shifted=True, block_length=B)
    expected = decoder.decode(request.prompt_ids.tolist(), max_new_tokens=60)
    at = {place for place, _ in carried_of(expected, prompt)}
    for limit in {1, 59, *at, *(a + 1 for a in at), *(a + 2 for a in at)} & set(range(1, 61)):
        cut = serve(
            model_of("shifted", reference),
            point,
            [dataclasses.replace(request, max_new_tokens=limit)],
        )
        assert cut.outputs[0] == whole[:limit]
        assert cut.reasons == {0: "length"}
        # The carried token is the last one: its commit pass ends the request, and only then.
        assert cut.forwards[0][-1].is_commit == (limit - 1 in at)


@pytest.mark.usefixtures("decisive_margins")
@every_kind
@pytest.mark.parametrize("scheduler", ["continuous", "static"])
def test_a_batch_gives_each_request_what_it_gets_alone(kind: str, scheduler: str) -> None:
    model, point = model_of(kind), point_of(kind=scheduler, batch_size=3)
    requests = make_requests(PROMPTS, OUTPUTS, seed=1)
    served = serve(model, point, requests)
    assert served.outputs == alone(model, point, requests)
    assert [len(served.outputs[i]) for i in range(5)] == OUTPUTS
    # Rows of one step differ in what they feed: the choice is each request's own.
    fed = {step.fed_tokens for step in served.record.steps if step.num_rows == 3}
    assert fed & {8 + 8 + B, 8 + B + B}


@pytest.mark.usefixtures("decisive_margins")
@every_kind
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_across_preemption(kind: str, temperature: float) -> None:
    model = model_of(kind)
    requests = make_requests(PROMPTS, OUTPUTS, seed=1)
    point = point_of(num_pages=14, temperature=temperature, seed=3)
    served = serve(model, point, requests)
    assert served.preemptions >= 2
    assert served.num_swaps_in == served.num_swaps_out == served.preemptions
    roomy = dataclasses.replace(
        point, scheduler=dataclasses.replace(point.scheduler, num_pages=None)
    )
    for request in requests:
        single = serve(model, roomy, [request])
        assert served.outputs[request.request_id] == single.outputs[request.request_id]
        assert served.forwards[request.request_id] == single.forwards[request.request_id]


@pytest.mark.usefixtures("decisive_margins")
def test_a_recomputed_baseline_keeps_its_carried_tokens() -> None:
    model, requests = model_of("shifted"), make_requests(PROMPTS, OUTPUTS, seed=1)
    served = serve(model, point_of("baseline", num_pages=14), requests)
    assert served.preemptions >= 2
    assert served.num_swaps_out == 0
    assert served.outputs == alone(model, point_of("baseline"), requests)


def test_what_is_counted_of_carried_tokens() -> None:
    served = serve(model_of("shifted"), point_of(), make_requests([5, 16], 40, seed=2))
    for request in served.record.requests:
        forwards = served.forwards[request.request_id]
        commits = sum(f.is_commit for f in forwards)
        assert request.commit_passes == commits
        assert request.decode_steps == len(forwards) - commits
        assert request.decoded_tokens == sum(len(f.decoded) for f in forwards) + commits
        assert request.processed_deep_tokens == sum(len(f.fed) for f in forwards)
        # The committed block of a prompt that ends with it is none of the output's.
        assert request.blocks == commits - (request.prompt_tokens == 16)
    counts = served.record.tokens_per_step_counts
    assert sum(counts) == sum(r.decode_steps for r in served.record.requests)
    assert sum(s.decoded_tokens for s in served.record.steps) == sum(
        r.decoded_tokens for r in served.record.requests
    )


def test_logits_that_are_no_numbers_fail_at_the_carried_position() -> None:
    model = model_of("shifted")
    requests = make_requests([16, 16], 20, seed=1)
    assert 95 not in np.concatenate([r.prompt_ids for r in requests])
    healthy = serve(model, point_of(), requests[:1])
    assert 95 not in healthy.outputs[0]
    embedding = model.embedding.clone()
    embedding[95] = torch.nan
    requests[1].prompt_ids[3] = 95
    broken = dataclasses.replace(model, embedding=embedding)
    served = serve(broken, point_of(), requests)
    assert served.reasons[1] == "error"
    assert "confidence at position 16 is not finite" in served.record.requests[1].error
    assert served.outputs[0] == healthy.outputs[0]


SHIFTED_POLICIES = {"baseline", "fast-dllm-v2"}


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("strategy", UNMASKING_STRATEGIES)
def test_every_policy_on_a_shifted_model_runs_or_is_refused(strategy: str, policy: str) -> None:
    point = point_of(policy, unmasking_strategy=strategy, steps=8)
    requests = make_requests([8, 16], 18)
    model = model_of("shifted")
    if policy not in SHIFTED_POLICIES:
        allowed = "baseline, fast-dllm-v2 with qwen2-reference, whose logits are shifted"
        with pytest.raises(UsageError, match=f"--policy: '{policy}'.*{allowed}"):
            serve(model, point, requests)
        return
    served = serve(model, point, requests)
    assert served.reasons == {0: "length", 1: "length"}
    assert [len(served.outputs[i]) for i in range(2)] == [18, 18]


@every_kind
def test_synthetic_acceptance_stays_in_the_sub_block(kind: str) -> None:
    acceptance = AcceptanceConfig(kind="synthetic", mean=6.0, scatter=1.0)
    point = point_of(acceptance=acceptance)
    requests = [
        dataclasses.replace(r, reply_tokens=r.max_new_tokens)
        for r in make_requests([5, 16, 11], 40, seed=3)
    ]
    served = serve(model_of(kind), point, requests)
    steps = [f for fs in served.forwards.values() for f in fs if not f.is_commit]
    assert all(len({p // 8 for p in f.decoded}) == 1 for f in steps)
    assert max(len(f.decoded) for f in steps) > 6
    assert np.mean([len(f.decoded) for f in steps]) < 6.0  # cut where a sub-block ends
