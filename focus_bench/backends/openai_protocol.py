"""The OpenAI completions and chat protocol: request bodies, and what the events of a reply say.

Knows no HTTP. `ignore_eos` and `top_k` are extensions that vLLM, SGLang and LMDeploy share; they
are sent only where they are asked for.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from focus_bench.backends.backend import BYTE_TOKENIZER, TextTokenizer
from focus_bench.backends.reply import ReplyBuilder, RequestFailed
from focus_bench.backends.sse import MalformedStream
from focus_bench.core.config import SamplingConfig
from focus_bench.core.workload import RequestSpec

DONE = "[DONE]"
_MESSAGE_LENGTH = 200


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How requests are put to one server.

    `api`: "completions" or "chat". `prompts`: "tokens" or "text" (chat: always one user message).
    `usage`: ask for token counts at the end of the stream.
    """

    api: str
    prompts: str
    usage: bool

    @property
    def path(self) -> str:
        """Behind the base URL."""
        return "/chat/completions" if self.api == "chat" else "/completions"

    @property
    def label(self) -> str:
        """How notes call the form of prompts."""
        if self.api == "chat":
            return "prompts sent as chat messages: the server applies its own chat template"
        return f"prompts sent as {'token ids' if self.prompts == 'tokens' else 'text'}"


def request_body(
    dialect: Dialect,
    request: RequestSpec,
    *,
    tokenizer: TextTokenizer,
    model: str,
    sampling: SamplingConfig,
    ignore_eos: bool,
    seed: int,
) -> bytes:
    """The JSON of one streaming request."""
    body: dict[str, object] = {
        "model": model,
        "max_tokens": request.max_new_tokens,
        "temperature": sampling.temperature,
        "stream": True,
    }
    if dialect.api == "chat":
        body["messages"] = [{"role": "user", "content": user_text(request, tokenizer)}]
    elif dialect.prompts == "tokens":
        body["prompt"] = request.prompt_ids.tolist()
    else:
        body["prompt"] = prompt_text(request, tokenizer)
    if dialect.usage:
        body["stream_options"] = {"include_usage": True}
    if sampling.temperature > 0.0:
        body |= {"top_p": sampling.top_p, "seed": seed}
        if sampling.top_k > 0:
            body["top_k"] = sampling.top_k
    if ignore_eos:
        body["ignore_eos"] = True
    return json.dumps(body).encode("ascii")


def prompt_text(request: RequestSpec, tokenizer: TextTokenizer) -> str:
    """The prompt as text, with the chat template's tokens spelled out.

    The byte tokenizer's own chat form means nothing to a server, so its user turn goes as it is.
    """
    if tokenizer.name == BYTE_TOKENIZER:
        return user_text(request, tokenizer)
    return tokenizer.decode(request.prompt_ids, skip_special=False)


def user_text(request: RequestSpec, tokenizer: TextTokenizer) -> str:
    """The user's turn alone; of drawn ids, their text."""
    if request.prompt_text is not None:
        return request.prompt_text
    return tokenizer.decode(request.prompt_ids)


def read_event(data: str, reply: ReplyBuilder, now_s: float) -> None:
    """Take in the data of one event (not DONE) that came at `now_s`.

    Raises MalformedStream for what is no chunk of a completion, and RequestFailed for an error
    that the server reports in the stream.
    """
    chunk = _object(_parsed(data), "an event")
    if chunk.get("error") or chunk.get("object") == "error":
        raise RequestFailed(f"server error in the stream: {error_message(chunk)}")
    usage = chunk.get("usage")
    if usage is not None:
        usage = _object(usage, "usage")
        reply.set_counts(
            prompt_tokens=_count(usage, "prompt_tokens"),
            output_tokens=_count(usage, "completion_tokens"),
        )
    choices = chunk.get("choices")
    if not isinstance(choices, list) or (not choices and usage is None):
        raise MalformedStream("an event without choices")
    for item in choices:
        choice = _object(item, "a choice")
        if choice.get("index", 0) != 0:
            raise MalformedStream("more than one reply to a request")
        reply.add_text(_text(choice), now_s)
        reason = choice.get("finish_reason")
        if reason is not None:
            reply.add_end(str(reason), now_s)


def error_message(value: object) -> str:
    """The message of an error object in one line of at most 200 characters."""
    while isinstance(value, Mapping):
        value = value.get("error") or value.get("message") or value.get("detail") or "no message"
    text = " ".join(str(value).split())
    return text if len(text) <= _MESSAGE_LENGTH else text[:_MESSAGE_LENGTH] + "..."


def error_message_of(body: bytes) -> str:
    """The message in the body of an error response, be it JSON or text; "" for an empty one."""
    text = body.decode("utf-8", "replace")
    try:
        return error_message(json.loads(text))
    except ValueError:
        return error_message(text)


def _text(choice: Mapping[str, object]) -> str:
    """The visible text of a choice: of a completion, or of a chat delta with its reasoning."""
    delta = choice.get("delta")
    if delta is None:
        parts = [choice.get("text")]
    else:
        delta = _object(delta, "a delta")
        parts = [delta.get("reasoning_content"), delta.get("content")]
    texts = [part for part in parts if part is not None]
    if not all(isinstance(part, str) for part in texts):
        raise MalformedStream("text that is no string")
    return "".join(map(str, texts))


def _parsed(data: str) -> object:
    try:
        return json.loads(data)
    except ValueError:
        raise MalformedStream("an event that is not JSON") from None


def _object(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise MalformedStream(f"{what} that is no JSON object")
    return value


def _count(usage: Mapping[str, object], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
