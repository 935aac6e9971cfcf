"""Decoding with the paged cache equals decoding by full recomputation, token for token.

The reference is transformers' Qwen3 without any cache under an explicit 4-D mask; prompts are and
are not multiples of the block length, pages do and do not divide blocks.
"""

import pytest
from engine_serving import engine_model, make_point, make_requests, serve
from qwen3_reference import build_qwen3
from recompute_reference import decode_without_cache

pytestmark = pytest.mark.usefixtures("decisive_margins")


@pytest.mark.parametrize(
    ("block_length", "page_size", "prompt_lengths"),
    [
        (4, 4, [1, 8, 10]),
        (8, 4, [5, 16, 11]),
        (8, 16, [8, 3, 24]),
        (8, 5, [7, 16, 9]),
        (8, 3, [24, 1, 17]),
        (16, 7, [16, 30, 2]),
    ],
)
@pytest.mark.parametrize("num_layers", [3, 5])
def test_baseline_equals_full_recomputation_step_by_step(
    block_length: int, page_size: int, prompt_lengths: list[int], num_layers: int
) -> None:
    reference = build_qwen3(num_layers=num_layers)
    model = engine_model(reference)
    assert model.spec.group_size == 4
    max_new_tokens = 2 * block_length + 5
    requests = make_requests(prompt_lengths, max_new_tokens)
    point = make_point("baseline", block_length=block_length, page_size=page_size)
    served = serve(model, point, requests)
    sizes = set()
    for request in requests:
        forwards = served.forwards[request.request_id]
        expected = decode_without_cache(
            reference,
            request.prompt_ids.tolist(),
            block_length=block_length,
            max_new_tokens=max_new_tokens,
            threshold=point.decode.threshold,
        )
        assert served.outputs[request.request_id] == expected.output
        assert [f.decoded for f in forwards if not f.is_commit] == expected.decoded
        assert all(f.fed == f.kept == tuple(range(block_length)) for f in forwards)
        assert sum(f.is_commit for f in forwards) >= 2  # so there are three blocks or more
        tokens = request.num_prompt_tokens + max_new_tokens
        assert tokens > 2 * page_size or page_size > block_length
        sizes |= {len(d) for d in expected.decoded}
    assert served.reasons == {r.request_id: "length" for r in requests}
    assert len(sizes) >= 3  # steps that decode one position and steps that decode several


@pytest.mark.parametrize("strategy", ["low_confidence_static", "sequential"])
@pytest.mark.parametrize("steps", [None, 3])
def test_other_unmasking_strategies(strategy: str, steps: int | None) -> None:
    reference = build_qwen3()
    requests = make_requests([5, 16], 21, seed=1)
    point = make_point("baseline", page_size=5, unmasking_strategy=strategy, steps=steps)
    served = serve(engine_model(reference), point, requests)
    for request in requests:
        expected = decode_without_cache(
            reference,
            request.prompt_ids.tolist(),
            block_length=8,
            max_new_tokens=21,
            threshold=point.decode.threshold,
            strategy=strategy,
            steps=steps,
        )
        forwards = served.forwards[request.request_id]
        assert served.outputs[request.request_id] == expected.output
        assert [f.decoded for f in forwards if not f.is_commit] == expected.decoded


def test_stop_tokens_end_the_request_where_they_are_first_decoded() -> None:
    reference = build_qwen3()
    requests = make_requests([5, 16, 11, 4], 30)
    point = make_point("baseline", page_size=5)
    whole = serve(engine_model(reference), point, requests).outputs
    # Ids that the model does put out, so that most of the requests stop, in different blocks.
    stop_ids = (whole[0][20], whole[1][7], whole[2][15])
    served = serve(engine_model(reference, stop_token_ids=stop_ids), point, requests)
    for request in requests:
        expected = decode_without_cache(
            reference,
            request.prompt_ids.tolist(),
            block_length=8,
            max_new_tokens=30,
            threshold=point.decode.threshold,
            stop_ids=stop_ids,
        )
        forwards = served.forwards[request.request_id]
        assert served.outputs[request.request_id] == expected.output
        assert served.reasons[request.request_id] == expected.reason
        assert [f.decoded for f in forwards if not f.is_commit] == expected.decoded
    assert list(served.reasons.values()).count("stop") >= 3
    assert len({len(output) for output in served.outputs.values()}) >= 3
