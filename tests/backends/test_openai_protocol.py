"""What is asked of an OpenAI-compatible server, and what its events say."""

import json

import numpy as np
import pytest

from focus_bench.backends.openai_protocol import (
    Dialect,
    error_message_of,
    read_event,
    request_body,
)
from focus_bench.backends.reply import ReplyBuilder, RequestFailed
from focus_bench.backends.sse import MalformedStream
from focus_bench.core.config import SamplingConfig
from focus_bench.core.model_folder import checkpoint_folder
from focus_bench.core.workload import RequestSpec
from focus_bench.workloads.hf_tokenizer import HfTokenizer
from focus_bench.workloads.tokenizers import ByteTokenizer, Tokenizer


def body(
    tokenizer: Tokenizer,
    request: RequestSpec,
    *,
    api: str = "completions",
    prompts: str = "text",
    usage: bool = True,
    sampling: SamplingConfig | None = None,
    ignore_eos: bool = False,
) -> dict[str, object]:
    value = json.loads(
        request_body(
            Dialect(api=api, prompts=prompts, usage=usage),
            request,
            tokenizer=tokenizer,
            model="m",
            sampling=sampling or SamplingConfig(),
            ignore_eos=ignore_eos,
            seed=5,
        )
    )
    assert isinstance(value, dict)
    return value


def request_of(tokenizer: Tokenizer, text: str) -> RequestSpec:
    ids, _ = tokenizer.chat_prompt(text)
    return RequestSpec(request_id=0, prompt_ids=ids, max_new_tokens=9, prompt_text=text)


def test_greedy_requests_carry_nothing_that_is_not_asked_for() -> None:
    tokenizer = ByteTokenizer()
    request = request_of(tokenizer, "hé")
    common = {"model": "m", "max_tokens": 9, "temperature": 0.0, "stream": True}
    assert body(tokenizer, request, usage=False) == {**common, "prompt": "hé"}
    assert body(tokenizer, request)["stream_options"] == {"include_usage": True}
    ids = body(tokenizer, request, prompts="tokens")["prompt"]
    assert ids == request.prompt_ids.tolist()
    chat = body(tokenizer, request, api="chat", usage=False)
    assert chat == {**common, "messages": [{"role": "user", "content": "hé"}]}
    assert body(tokenizer, request, ignore_eos=True)["ignore_eos"] is True


def test_sampling_is_sent_where_it_is_on() -> None:
    tokenizer = ByteTokenizer()
    request = request_of(tokenizer, "x")
    sampling = SamplingConfig(temperature=0.7, top_p=0.9)
    sent = body(tokenizer, request, sampling=sampling)
    assert (sent["temperature"], sent["top_p"], sent["seed"]) == (0.7, 0.9, 5)
    assert "top_k" not in sent
    sampling = SamplingConfig(temperature=0.7, top_k=4)
    assert body(tokenizer, request, sampling=sampling)["top_k"] == 4


def test_a_prompt_as_text_spells_the_chat_template_out() -> None:
    tokenizer = HfTokenizer(checkpoint_folder("focus-tiny"), name="focus-tiny")
    request = request_of(tokenizer, "How many apples?")
    text = body(tokenizer, request)["prompt"]
    assert isinstance(text, str)
    assert "How many apples?" in text
    assert text != "How many apples?"
    np.testing.assert_array_equal(tokenizer.encode(text), request.prompt_ids)


def test_drawn_ids_go_as_their_text() -> None:
    tokenizer = ByteTokenizer()
    drawn = RequestSpec(
        request_id=0, prompt_ids=np.frombuffer(b"abc", np.uint8).astype(np.int32), max_new_tokens=1
    )
    assert body(tokenizer, drawn)["prompt"] == "abc"
    messages = body(tokenizer, drawn, api="chat")["messages"]
    assert messages == [{"role": "user", "content": "abc"}]


def test_events_become_a_reply() -> None:
    reply = ReplyBuilder()
    events: list[dict[str, object]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"choices": [{"index": 0, "delta": {"reasoning_content": "hm "}}], "usage": None},
        {"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}},
    ]
    for i, event in enumerate(events):
        read_event(json.dumps(event), reply, float(i))
    done = reply.finish(9.0)
    assert done.text == "hm yes"
    assert done.group_times_s == (1.0, 2.0)
    assert (done.finish_reason, done.error, done.finished_s) == ("stop", "", 3.0)
    assert (done.prompt_tokens, done.output_tokens) == (4, 3)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ("{", MalformedStream, "not JSON"),
        ("[]", MalformedStream, "no JSON object"),
        ("{}", MalformedStream, "without choices"),
        ('{"choices": []}', MalformedStream, "without choices"),
        ('{"choices": [3]}', MalformedStream, "a choice that is no JSON object"),
        ('{"choices": [{"index": 1, "text": "a"}]}', MalformedStream, "more than one reply"),
        ('{"choices": [{"text": 3}]}', MalformedStream, "text that is no string"),
        ('{"choices": [{"delta": "a"}]}', MalformedStream, "a delta that is no JSON object"),
        ('{"choices": [], "usage": 3}', MalformedStream, "usage that is no JSON object"),
        ('{"error": {"message": "no\\nmemory"}}', RequestFailed, "server error .*: no memory"),
        ('{"object": "error", "message": "gone"}', RequestFailed, "server error .*: gone"),
        (
            '{"choices": [{"text": "", "finish_reason": "content_filter"}]}',
            RequestFailed,
            "finish reason 'content_filter'",
        ),
    ],
)
def test_events_that_are_no_reply_are_named(data: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_event(data, ReplyBuilder(), 0.0)


def test_error_bodies_become_one_short_line() -> None:
    assert error_message_of(b'{"error": {"message": "a\\n b", "code": 3}}') == "a b"
    assert error_message_of(b'{"error": "plain"}') == "plain"
    assert error_message_of(b'{"detail": [{"msg": "x"}]}') == "[{'msg': 'x'}]"
    assert error_message_of(b"<html>\n bad\n</html>") == "<html> bad </html>"
    assert error_message_of(b"{}") == "no message"
    assert error_message_of(b"") == ""
    assert error_message_of(b"x" * 1000) == "x" * 200 + "..."
