"""FOCUS and its relatives on models with experts against their second statement, token for token.

The dense first layer of LLaDA2 is one of the pair whose importance decides, as in any model.
"""

import pytest
from engine_serving import make_point, make_requests, serve
from moe_reference import build_glm4_moe, build_qwen3_moe, moe_model
from store_reference import StoreDecoder

pytestmark = pytest.mark.usefixtures("decisive_margins", "decisive_routes")

REFERENCES = {
    "llada2": lambda: build_glm4_moe(num_layers=4),
    "sdar-moe": lambda: build_qwen3_moe(seed=2),
}


@pytest.mark.parametrize("policy", ["delayed-cache-neighbor", "focus", "focus-fixed", "ideal"])
@pytest.mark.parametrize("kind", REFERENCES)
def test_forwards_and_tokens_equal_the_stores(kind: str, policy: str) -> None:
    reference = REFERENCES[kind]()
    point = make_point(policy, page_size=5, retain=3)
    requests = make_requests([5, 16], 20, seed=3)
    served = serve(moe_model(reference), point, requests)
    for request in requests:
        decoder = StoreDecoder(reference, point.decode, request_id=request.request_id, seed=0)
        expected = decoder.decode(
            request.prompt_ids.tolist(), max_new_tokens=request.max_new_tokens
        )
        forwards = served.forwards[request.request_id]
        assert [(f.fed, f.kept, f.decoded) for f in forwards] == expected.forwards
        assert served.outputs[request.request_id] == expected.output
        evicts = policy != "delayed-cache-neighbor"
        assert evicts == any(len(f.kept) < len(f.fed) for f in forwards)
