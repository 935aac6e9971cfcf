"""Choices that exist to be measured, against the policies' second statement, changed alike."""

from typing import Any

import pytest
from engine_serving import Served, engine_model, make_point, make_requests, serve
from qwen3_reference import build_qwen3
from store_reference import Prefix, Store, StoreDecoder
from torch import Tensor
from transformers import Qwen3ForCausalLM

from focus_bench.core.config import PointConfig
from focus_bench.core.workload import RequestSpec

pytestmark = pytest.mark.usefixtures("decisive_margins")
B = 8


class RightmostDecoder(StoreDecoder):
    """Layers >= 1 of a decode step see the block up to its rightmost kept position."""

    in_step = False
    hidden_tokens = 0

    def step(self, *arguments: Any) -> Any:
        self.in_step = True
        result = super().step(*arguments)
        self.in_step = False
        return result

    def suffix(
        self, store: Store, start: int, prefix: Prefix, kept: list[int], progress: int
    ) -> dict[int, Tensor]:
        last = max(kept) if self.in_step else progress
        self.hidden_tokens += progress - last
        return super().suffix(store, start, prefix, kept, last)


class RefreshingDecoder(StoreDecoder):
    """The commit pass of the first decode block feeds the prompt's tokens again."""

    refreshed = 0

    def decode(self, prompt: list[int], **options: Any) -> Any:
        self.first, self.num_known = len(prompt) // B * B, len(prompt) % B
        return super().decode(prompt, **options)

    def prefix(self, store: Store, tokens: list[int | None], start: int, fed: list[int]) -> Prefix:
        if start == self.first and None not in tokens[start : start + B]:
            missing = [p for p in range(self.num_known) if p not in fed]
            self.refreshed += len(missing)
            fed[:] = sorted([*fed, *missing])  # the caller's list: what it goes on with and logs
        return super().prefix(store, tokens, start, fed)


def assert_equal(
    reference: Qwen3ForCausalLM,
    point: PointConfig,
    requests: tuple[RequestSpec, ...],
    decoder_type: type[StoreDecoder],
    counted: str,
) -> Served:
    """Engine and decoder agree in every forward and token; what is tested occurs."""
    served = serve(engine_model(reference), point, requests)
    total = 0
    for request in requests:
        decoder = decoder_type(reference, point.decode, request_id=request.request_id)
        expected = decoder.decode(
            request.prompt_ids.tolist(), max_new_tokens=request.max_new_tokens
        )
        forwards = served.forwards[request.request_id]
        assert [(f.fed, f.kept, f.decoded) for f in forwards] == expected.forwards
        assert served.outputs[request.request_id] == expected.output
        total += getattr(decoder, counted)
    assert total > 0
    return served


@pytest.mark.parametrize("num_layers", [2, 3])
def test_attention_up_to_the_rightmost_kept_position(num_layers: int) -> None:
    assert_equal(
        build_qwen3(num_layers=num_layers),
        make_point("focus", page_size=5, attention_cover="rightmost"),
        make_requests([5, 16, 11], 27, seed=3),
        RightmostDecoder,
        "hidden_tokens",
    )


@pytest.mark.parametrize("policy", ["focus", "delayed-cache"])
def test_prompt_tokens_refreshed_in_the_commit_pass(policy: str) -> None:
    requests = make_requests([5, 16, 11], 27, seed=1)
    served = assert_equal(
        build_qwen3(),
        make_point(policy, page_size=5, refresh_prompt=True),
        requests,
        RefreshingDecoder,
        "refreshed",
    )
    commits = [f for f in served.forwards[0] if f.is_commit]
    assert set(range(5)) <= set(commits[0].fed)
    assert not set(range(5)) <= set(commits[1].fed)
