"""A request's tokens do not depend on its company: batch, arrivals, preemption, chunks, scheduler.

Pages that nobody owns are NaN all the time, so what a preempted request resumes from must really
have been copied back or computed again.
"""

import dataclasses

import numpy as np
import pytest
from engine_serving import (
    BATCH_INDEPENDENT_POLICIES,
    alone,
    make_point,
    make_requests,
    random_model,
    serve,
)

pytestmark = pytest.mark.usefixtures("decisive_margins")

PROMPTS = [5, 16, 11, 24, 3]
OUTPUTS = [30, 20, 37, 12, 26]
every_policy = pytest.mark.parametrize("policy", BATCH_INDEPENDENT_POLICIES)


@every_policy
@pytest.mark.parametrize("kind", ["continuous", "static"])
def test_batch_of_unequal_requests(policy: str, kind: str) -> None:
    model = random_model()
    point = make_point(policy, kind=kind, batch_size=3, select="random", retain=3)
    requests = make_requests(PROMPTS, OUTPUTS, seed=1)
    served = serve(model, point, requests)
    assert served.outputs == alone(model, point, requests)
    assert [len(served.outputs[i]) for i in range(5)] == OUTPUTS
    assert max(s.num_rows for s in served.record.steps) == 3


@every_policy
def test_across_preemption(policy: str) -> None:
    model = random_model()
    requests = make_requests(PROMPTS, OUTPUTS, seed=1)
    point = make_point(policy, num_pages=12, retain=3)
    served = serve(model, point, requests)
    assert served.preemptions >= 2
    if policy == "baseline":
        assert served.num_swaps_out == 0  # it recomputes
    else:
        assert served.num_swaps_in == served.num_swaps_out == served.preemptions
    roomy = dataclasses.replace(
        point, scheduler=dataclasses.replace(point.scheduler, num_pages=None)
    )
    singles = [serve(model, roomy, [r]) for r in requests]
    for request, single in zip(requests, singles, strict=True):
        i = request.request_id
        assert served.outputs[i] == single.outputs[i]
        assert served.forwards[i] == single.forwards[i]


@every_policy
def test_arrivals_in_the_middle_of_decoding(policy: str) -> None:
    model = random_model()
    point = make_point(policy, retain=3)
    requests = make_requests(PROMPTS, OUTPUTS, seed=1, arrivals=[0.0, 3.0, 4.0, 13.0, 21.0])
    served = serve(model, point, requests)
    rows = [s.num_rows for s in served.record.steps]
    assert rows[0] == 1
    assert max(rows) >= 3  # the late ones joined while others were decoding
    assert any(s.prefill_tokens and s.num_rows for s in served.record.steps)
    at_once = [dataclasses.replace(r, arrival_s=0.0) for r in requests]
    assert served.outputs == alone(model, point, at_once)


@every_policy
def test_draws_at_temperature_one_belong_to_the_request(policy: str) -> None:
    model = random_model()
    point = make_point(policy, temperature=1.0, num_pages=9, seed=7, retain=3)
    requests = make_requests([5, 16, 11], [26, 17, 21], seed=4)
    served = serve(model, point, requests)
    assert served.preemptions
    assert served.outputs == alone(model, point, requests)
    other_seed = serve(model, dataclasses.replace(point, seed=8), requests)
    assert other_seed.outputs != served.outputs


def test_four_samples_of_one_prompt_differ() -> None:
    prompt = make_requests([13], 24, seed=1)[0]
    samples = [dataclasses.replace(prompt, request_id=i) for i in range(4)]
    outputs = serve(random_model(), make_point("focus", temperature=1.0), samples).outputs
    assert len({tuple(output) for output in outputs.values()}) == 4
    greedy = serve(random_model(), make_point("focus"), samples).outputs
    assert len({tuple(output) for output in greedy.values()}) == 1


@pytest.mark.parametrize("policy", ["baseline", "focus"])
@pytest.mark.parametrize("max_prefill_tokens", [1, 8, 24, 8192])
def test_prefill_in_chunks_of_any_size(policy: str, max_prefill_tokens: int) -> None:
    model = random_model()
    requests = make_requests([41, 64, 17], 18, seed=1)
    served = serve(model, make_point(policy, max_prefill_tokens=max_prefill_tokens), requests)
    assert served.outputs == alone(model, make_point(policy), requests)
    largest = max(s.prefill_tokens for s in served.record.steps)
    assert largest == {1: 8, 8: 8, 24: 24, 8192: 40 + 64 + 16}[max_prefill_tokens]


@pytest.mark.parametrize("policy", ["baseline", "focus"])
def test_prompts_that_share_exactly_one_page(policy: str) -> None:
    model = random_model()
    first, second = make_requests([19, 22], 20, seed=1)
    prompt = np.concatenate([first.prompt_ids[:8], second.prompt_ids[8:]])
    second = dataclasses.replace(second, prompt_ids=prompt)
    point = make_point(policy, page_size=8)
    served = serve(model, point, [first, second])
    assert served.outputs == alone(model, point, [first, second])


@pytest.mark.parametrize("policy", ["baseline", "focus"])
@pytest.mark.parametrize(
    ("batch_size", "num_pages"),
    [(2, 7), (2, 10), (256, 8), (512, 12)],
    ids=["1.5 requests", "2 requests", "batch 256, 8 pages", "batch 512"],
)
def test_pools_far_smaller_than_the_batch(policy: str, batch_size: int, num_pages: int) -> None:
    model = random_model()
    # Each request comes to hold 5 pages of 8.
    requests = make_requests([17] * 6, 20, seed=3)
    point = make_point(policy, batch_size=batch_size, num_pages=num_pages)
    served = serve(model, point, requests)
    assert served.outputs == alone(model, point, requests)
    assert served.reasons == dict.fromkeys(range(6), "length")
    assert served.max_pages_used <= num_pages
