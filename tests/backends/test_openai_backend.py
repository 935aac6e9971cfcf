"""An OpenAI-compatible endpoint behind this project's records, against a server on this machine."""

import asyncio
import json
import time

import numpy as np
import pytest
from openai_server import (
    Exchange,
    GoodServer,
    Handler,
    Received,
    piece,
    running,
    usage,
)

from focus_bench.backends.openai import OpenAIBackend
from focus_bench.core.config import (
    BackendConfig,
    EngineConfig,
    PointConfig,
    SchedulerConfig,
    WorkloadConfig,
)
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import checkpoint_folder
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Provenance, RequestSpec, Workload
from focus_bench.workloads.arrivals import arrival_times
from focus_bench.workloads.hf_tokenizer import HfTokenizer
from focus_bench.workloads.tokenizers import ByteTokenizer, Tokenizer

KEY = "sk-a-key-of-tests"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FOCUS_BENCH_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def workload_of(
    texts: list[str],
    *,
    arrivals: list[float] | None = None,
    max_concurrency: int | None = None,
    rate: float = float("inf"),
) -> Workload:
    tokenizer = ByteTokenizer()
    return Workload(
        requests=tuple(
            RequestSpec(
                request_id=i,
                prompt_ids=tokenizer.encode(text),
                prompt_text=text,
                max_new_tokens=8,
                arrival_s=arrivals[i] if arrivals else 0.0,
            )
            for i, text in enumerate(texts)
        ),
        provenance=Provenance(dataset="prompts", origin="caller", tokenizer="byte"),
        request_rate=rate,
        max_concurrency=max_concurrency,
    )


def point_of(
    url: str, *, batch_size: int = 64, ignore_eos: bool = False, **backend: object
) -> PointConfig:
    return PointConfig(
        engine=EngineConfig(model="dummy-tiny"),
        backend=BackendConfig(kind="openai", base_url=url, **backend),  # type: ignore[arg-type]
        scheduler=SchedulerConfig(batch_size=batch_size),
        workload=WorkloadConfig(ignore_eos=ignore_eos),
    )


def backend_of(point: PointConfig, tokenizer: Tokenizer | None = None) -> OpenAIBackend:
    backend = OpenAIBackend(
        config=point.backend,
        tokenizer=tokenizer or ByteTokenizer(),
        model_name=point.engine.model,
    )
    backend.check(point)
    backend.connect()
    return backend


def served(url: str, workload: Workload, **changes: object) -> RunRecord:
    point = point_of(url, **changes)  # type: ignore[arg-type]
    return backend_of(point).run(point, workload)


def refusal(url: str, tokenizer: Tokenizer | None = None, **changes: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        backend_of(point_of(url, **changes), tokenizer)  # type: ignore[arg-type]
    return caught.value


def test_times_and_counts_of_a_stream() -> None:
    server = GoodServer(pieces=("a", "b", "c"), gap_s=0.05, tokens=5)
    seen: list[tuple[int, int]] = []
    with running(server) as url:
        point = point_of(url)
        backend = backend_of(point)
        run = backend.run(
            point, workload_of(["x", "y"]), on_progress=lambda n, tokens: seen.append((n, tokens))
        )
    assert backend.hardware == f"outside engine at {url}"
    assert seen == [(1, 5), (2, 10)]
    assert [r.request_id for r in run.requests] == [0, 1]
    for r in run.requests:
        assert (r.finish_reason, r.error, r.output_tokens, r.prompt_tokens) == ("length", "", 5, 7)
        assert r.arrival_s == 0.0
        assert r.admitted_s is not None
        assert r.first_token_s is not None
        assert 0.05 <= r.first_token_s - r.admitted_s < r.finished_s
        assert 0.15 <= r.finished_s <= run.duration_s
        unknown = (r.decode_steps, r.commit_passes, r.blocks, r.processed_deep_tokens)
        assert unknown == (None,) * 4
        assert (r.processed_shallow_tokens, r.decoded_tokens, r.preemptions) == (None,) * 3
    assert run.steps == ()
    assert run.num_pages is None
    assert len(run.group_gaps_s) == 4
    assert float(run.group_gaps_s.min()) > 0.02
    assert 0.19 < float(run.group_gaps_s.sum()) < 1.0
    assert run.settings["served_model"] == "focus-tiny"
    assert not any("counted with" in note for note in run.notes)


async def _bad(request: Received, out: Exchange) -> None:
    """Misbehaves as the prompt says."""
    kind = str(request.body["prompt"])
    if kind == "500":
        await out.whole("500 Internal Server Error", b'{"error": {"message": "out of memory"}}')
    elif kind == "429":
        await out.whole("429 Too Many Requests", b"slow down", "text/plain")
    elif kind == "redirect":
        await out.whole("307 Temporary Redirect", b"", extra="Location: /v1/elsewhere\r\n")
    elif kind == "no stream":
        await out.whole("200 OK", json.dumps(piece("whole", "stop")).encode())
    elif kind == "drop at once":
        out.drop()
    else:
        await out.head()
        await out.event(piece("some"))
        if kind == "not json":
            await out.event("{not json")
        elif kind == "not utf-8":
            await out.raw(b"data: \xff\xfe\n\n")
        elif kind == "drop":
            await asyncio.sleep(0.05)
            out.drop()
            return
        elif kind == "slow":
            await asyncio.sleep(30)
        elif kind == "error event":
            await out.event({"error": {"message": "the engine died", "code": 500}})
        elif kind == "filtered":
            await out.event(piece("", "content_filter"))
        elif kind != "no end":
            await out.event(piece("", "stop"))
        if kind != "cut":
            await out.event("[DONE]")
        await out.end()


FAILURES = {
    "500": "http 500 Internal Server Error: out of memory",
    "429": "http 429 Too Many Requests: slow down",
    "redirect": "http 307 Temporary Redirect",
    "no stream": "malformed stream: content type application/json instead of text/event-stream",
    "drop at once": "disconnected before the reply",
    "not json": "malformed stream: an event that is not JSON",
    "not utf-8": "malformed stream: a line that is not UTF-8",
    "drop": "disconnected within the reply",
    "slow": "timeout: no whole reply within 1 s",
    "error event": "server error in the stream: the engine died",
    "filtered": "finish reason 'content_filter'",
    "no end": "stream ended without a finish reason",
}


def test_failures_are_named_per_request_and_nothing_is_sent_twice() -> None:
    texts = [*FAILURES, "good", "cut"]
    received: list[str] = []

    async def handler(request: Received, out: Exchange) -> None:
        if request.body.get("max_tokens") == 1 or request.path == "/v1/elsewhere":
            await GoodServer().answer(request, out)
            return
        received.append(str(request.body["prompt"]))
        await _bad(request, out)

    with running(handler) as url:
        run = served(url, workload_of(texts), served_model="m", request_timeout_s=1.0)
    by_kind = dict(zip(texts, run.requests, strict=True))
    for kind, words in FAILURES.items():
        record = by_kind[kind]
        assert record.finish_reason == "error", kind
        assert record.error.startswith(words), kind
    for kind in ("good", "cut"):  # a reply whose end was said is whole without [DONE]
        assert (by_kind[kind].finish_reason, by_kind[kind].error) == ("stop", "")
        assert by_kind[kind].output_tokens == len("some")
    assert sorted(received) == sorted(texts)
    assert run.duration_s < 5.0
    # What had come before a failure is kept in its record, but no gap or latency counts it.
    assert by_kind["drop"].first_token_s is not None
    assert by_kind["drop"].output_tokens == len("some")
    assert by_kind["drop at once"].first_token_s is None


def test_a_server_that_goes_away_fails_what_is_left() -> None:
    with running(GoodServer()) as url:
        point = point_of(url)
        backend = backend_of(point)
    run = backend.run(point, workload_of(["a", "b"]))
    assert [r.error.partition(":")[0] for r in run.requests] == ["cannot connect"] * 2
    assert "cannot connect" in refusal(url).allowed


def test_arrivals_are_kept_whatever_the_server_does() -> None:
    count, rate = 24, 40.0
    arrivals = arrival_times(count, request_rate=rate, burstiness=1.0, seed=3).tolist()
    server = GoodServer(gap_s=0.2, pieces=("a", "b"))
    with running(server) as url:
        point = point_of(url)
        backend = backend_of(point)
        work = workload_of([str(i) for i in range(count)], arrivals=arrivals, rate=rate)
        begin_s = time.perf_counter()
        run = backend.run(point, work)
    came = {str(r.body["prompt"]): r.begin_s - begin_s for r in server.completions}
    late = np.array([came[str(i)] - arrivals[i] for i in range(count)])
    assert late.min() > 0.0
    assert float(np.median(late)) < 0.1
    assert server.most_in_flight > 2
    assert [r.arrival_s for r in run.requests] == arrivals
    sent = [r.admitted_s for r in run.requests if r.admitted_s is not None]
    assert all(s >= a for s, a in zip(sent, arrivals, strict=True))
    assert run.requested_rate == rate


@pytest.mark.parametrize("limit", [1, 3])
def test_a_closed_loop_never_has_more_in_the_system(limit: int) -> None:
    server = GoodServer(gap_s=0.01)
    with running(server) as url:
        run = served(url, workload_of([str(i) for i in range(9)], max_concurrency=limit))
    assert server.most_in_flight == limit
    ends = sorted(r.finished_s for r in run.requests)
    arrivals = sorted(r.arrival_s for r in run.requests)
    for arrival, end in zip(arrivals[limit:], ends, strict=False):
        assert arrival >= end  # in when another one has left, and not counted as waiting before
    assert len(server.completions) == 9


def test_the_batch_size_bounds_what_is_out_and_waiting_counts() -> None:
    server = GoodServer(gap_s=0.02, pieces=("a",))
    with running(server) as url:
        run = served(url, workload_of([str(i) for i in range(6)]), batch_size=2)
    assert server.most_in_flight == 2
    waits = [r.admitted_s for r in run.requests]
    assert all(r.arrival_s == 0.0 for r in run.requests)
    assert waits == sorted(waits, key=lambda w: w or 0.0)  # first come, first served
    assert (waits[-1] or 0.0) > 0.03


def test_a_character_in_several_packets_is_one() -> None:
    async def handler(request: Received, out: Exchange) -> None:
        await out.head()
        data = json.dumps(piece("🦜é", None), ensure_ascii=False)
        for byte in f"data: {data}\r\n\r\n".encode():
            await out.raw(bytes([byte]))
        await out.event(piece("\ud83e"))
        await out.event(piece("\udd9c", "stop"))
        await out.end()

    with running(handler) as url:
        run = served(url, workload_of(["x"]), served_model="m")
    (record,) = run.requests
    assert record.finish_reason == "stop"
    assert record.output_tokens == len("🦜é🦜".encode())  # bytes are the byte tokenizer's tokens


def tiny_tokenizer() -> HfTokenizer:
    return HfTokenizer(checkpoint_folder("focus-tiny"), name="focus-tiny")


def ids_only(server: GoodServer) -> Handler:
    """A server that takes token ids and nothing else."""

    async def handler(request: Received, out: Exchange) -> None:
        if isinstance(request.body.get("prompt"), str):
            await out.whole("400 Bad Request", b'{"message": "ids, please"}')
        else:
            await server(request, out)

    return handler


def each_id_a_prompt(server: GoodServer) -> Handler:
    """A server that takes a list for a list of prompts, as some do."""

    async def handler(request: Received, out: Exchange) -> None:
        prompt = request.body.get("prompt")
        if not isinstance(prompt, list):
            await server(request, out)
            return
        await out.head()
        for index in range(len(prompt)):
            await out.event({"choices": [{"index": index, "text": "a", "finish_reason": "stop"}]})
        await out.event(usage(3 * len(prompt), len(prompt)))
        await out.end()

    return handler


def ids_for_text(server: GoodServer) -> Handler:
    """A server that takes a list for its spelling, digits and all."""

    async def handler(request: Received, out: Exchange) -> None:
        prompt = request.body.get("prompt")
        if isinstance(prompt, list):
            await out.head()
            await out.event(piece("a", "length"))
            await out.event(usage(len(str(prompt)), 1))
            await out.end()
        else:
            await server(request, out)

    return handler


def without_usage(server: GoodServer) -> Handler:
    """A server that knows no stream_options."""

    async def handler(request: Received, out: Exchange) -> None:
        if "stream_options" in request.body:
            await out.whole("422 Unprocessable Content", b'{"detail": "stream_options"}')
        else:
            await server(request, out)

    return handler


@pytest.mark.parametrize(
    ("make", "form", "counted_here"),
    [
        (lambda s: s, "token ids", False),
        (ids_only, "token ids", False),
        (each_id_a_prompt, "text", False),
        (ids_for_text, "text", False),
        (without_usage, "text", True),  # nothing says that ids were understood
    ],
)
def test_prompts_go_as_ids_where_the_server_shows_that_it_takes_them(
    make: object, form: str, counted_here: bool
) -> None:
    server = GoodServer(pieces=("a", "b"))
    assert callable(make)
    with running(make(server)) as url:
        point = point_of(url)
        backend = backend_of(point, tiny_tokenizer())
        run = backend.run(point, workload_of(["x"]))
    assert any(note.endswith(f"prompts sent as {form}") for note in run.notes)
    assert any("counted with tokenizer focus-tiny" in n for n in run.notes) == counted_here
    (sent,) = server.completions
    assert isinstance(sent.body["prompt"], list if form == "token ids" else str)
    (record,) = run.requests
    expected = len(tiny_tokenizer().encode("ab")) if counted_here else server.tokens
    assert record.output_tokens == expected


def test_chat_sends_the_users_turn() -> None:
    server = GoodServer()
    with running(server) as url:
        run = served(url, workload_of(["hello"]), api="chat", ignore_eos=True)
    (sent,) = server.completions
    assert sent.path == "/v1/chat/completions"
    assert sent.body["messages"] == [{"role": "user", "content": "hello"}]
    assert sent.body["ignore_eos"] is True
    assert run.requests[0].output_tokens == server.tokens
    assert run.requests[0].finish_reason == "length"


def test_forms_that_cannot_be_are_refused() -> None:
    url = "http://127.0.0.1:1/v1"
    assert refusal(url, prompt_format="tokens").allowed == "text with the byte tokenizer"
    error = refusal(url, tiny_tokenizer(), prompt_format="tokens", api="chat")
    assert error.allowed == "text with --endpoint chat"


def test_the_model_is_the_one_that_is_served() -> None:
    with running(GoodServer(models=("org/one", "org/Dummy-Tiny"))) as url:
        run = served(url, workload_of(["x"]))
        assert run.settings["served_model"] == "org/Dummy-Tiny"
        assert served(url, workload_of(["x"]), served_model="other").settings["served_model"] == (
            "other"
        )
    for models, words in (
        ((), "the server's name of its model, since its list of models is empty"),
        (("a", "b"), "one of the 2 models that the endpoint offers: a, b"),
    ):
        with running(GoodServer(models=models)) as url:
            error = refusal(url)
            assert error.field == "--served-model-name"
            assert (error.value, error.allowed) == ("not given", words)


def test_a_server_that_lists_no_models_needs_their_name() -> None:
    async def handler(request: Received, out: Exchange) -> None:
        if request.path.endswith("/models"):
            await out.whole("404 Not Found", b"")
        else:
            await GoodServer().answer(request, out)

    with running(handler) as url:
        assert refusal(url).field == "--served-model-name"
        run = served(url, workload_of(["x"]), served_model="given")
        assert run.settings["served_model"] == "given"


def test_the_default_model_is_no_name_for_another_one() -> None:
    with running(GoodServer(models=("SDAR-8B-Chat",))) as url:
        config = BackendConfig(kind="openai", base_url=url)
        backend = OpenAIBackend(config=config, tokenizer=tiny_tokenizer(), model_name="focus-tiny")
        with pytest.raises(UsageError, match=r"what the endpoint serves \(SDAR-8B-Chat\)"):
            backend.connect()


def test_a_server_that_refuses_everything_is_told_with_its_words() -> None:
    async def handler(request: Received, out: Exchange) -> None:
        await out.whole("400 Bad Request", b'{"error": {"message": "no such model"}}')

    with running(handler) as url:
        error = refusal(url, served_model="m")
    assert "http 400 Bad Request: no such model" in error.allowed


@pytest.mark.parametrize("name", ["FOCUS_BENCH_API_KEY", "OPENAI_API_KEY"])
def test_the_key_goes_into_one_header_and_nowhere_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = GoodServer()

    async def handler(request: Received, out: Exchange) -> None:
        echo = json.dumps({"error": {"message": f"Incorrect key {KEY} in {request.headers}"}})
        if request.headers.get("authorization") != f"Bearer {KEY}":
            await out.whole("401 Unauthorized", echo.encode())
        elif request.body.get("prompt") == "500":
            await out.whole("500 Internal Server Error", echo.encode())
        elif request.body.get("prompt") == "event":
            await out.head()
            await out.event(json.loads(echo))
            await out.end()
        else:
            await server(request, out)

    with running(handler) as url:
        error = refusal(url)
        assert "FOCUS_BENCH_API_KEY or OPENAI_API_KEY" in error.allowed
        monkeypatch.setenv(name, KEY[:-1])
        assert "with a key that it takes" in str(refusal(url))
        monkeypatch.setenv(name, KEY)
        point = point_of(url)
        backend = backend_of(point)
        run = backend.run(point, workload_of(["500", "event", "good"]))
    assert [r.finish_reason for r in run.requests] == ["error", "error", "length"]
    assert "Incorrect key [key] in" in run.requests[0].error
    assert "Incorrect key [key] in" in run.requests[1].error
    assert KEY not in repr(run) + repr(backend) + repr(point)
    assert not any(KEY in json.dumps(r.body) or KEY in r.path for r in server.received)


def test_a_key_that_no_header_can_carry_is_refused_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-clé\n-x")
    with running(GoodServer()) as url:
        error = refusal(url)
    assert error.field == "OPENAI_API_KEY"
    assert "clé" not in str(error)


def test_a_proxy_of_the_environment_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with running(GoodServer()) as url:
        run = served(url, workload_of(["x"]))
    assert run.requests[0].error == ""


def test_warm_ups_are_short_and_not_recorded() -> None:
    server = GoodServer()
    with running(server) as url:
        point = point_of(url, batch_size=3)
        backend = backend_of(point)
        backend.warm_up(point)
        assert len(server.completions) == 3
        assert all(r.body["max_tokens"] == point.decode.block_length for r in server.completions)
        run = backend.run(point, workload_of(["x"]))
    assert len(run.requests) == 1


def test_a_point_of_another_endpoint_is_refused() -> None:
    with running(GoodServer()) as url:
        backend = backend_of(point_of(url))
        with pytest.raises(UsageError, match="points of dummy-tiny at"):
            backend.check(point_of(url + "x"))


def test_gaps_are_those_between_groups_of_one_request() -> None:
    server = GoodServer(pieces=("a", "", "b"), gap_s=0.03)
    with running(server) as url:
        run = served(url, workload_of(["x", "y", "z"]))
    assert len(run.group_gaps_s) == 3  # the empty piece is nothing visible
    assert float(run.group_gaps_s.min()) > 0.04
