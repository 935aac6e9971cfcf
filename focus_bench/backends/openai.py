"""An OpenAI-compatible HTTP endpoint as an engine: what it takes is found out once, then it serves.

Knows no command line. What the server runs, and how it decodes, is not visible from here.
"""

import asyncio
import os
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import PurePosixPath

import numpy as np

from focus_bench.backends.api_key import KEY_VARIABLES, ApiKey
from focus_bench.backends.backend import BYTE_TOKENIZER, Progress, TextTokenizer
from focus_bench.backends.driver import Clock, DriverRun, serve
from focus_bench.backends.http_client import CannotConnect, EndpointClient, HttpError
from focus_bench.backends.openai_protocol import Dialect, request_body
from focus_bench.backends.records import run_record
from focus_bench.backends.reply import Reply, ReplyBuilder, RequestFailed
from focus_bench.core.config import BackendConfig, PointConfig, SamplingConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import DEFAULT_MODEL
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Provenance, RequestSpec, Workload

_PROBE_TEXT = "Say in a few words what a benchmark is for."
_NO_PERMISSION = (401, 403)
_NO_LIST = (404, 405, 501)
_WARM_UP_REQUESTS = 4


@dataclass(frozen=True, kw_only=True)
class _Endpoint:
    """What was found out about an endpoint."""

    model: str
    dialect: Dialect


@dataclass(kw_only=True)
class OpenAIBackend:
    """An endpoint. `model_name` is this project's name of the model, whose tokenizer is used."""

    config: BackendConfig
    tokenizer: TextTokenizer
    model_name: str
    _api_key: ApiKey = field(default_factory=ApiKey)
    _found: _Endpoint | None = None

    def check(self, point: PointConfig) -> None:
        """Raise UsageError for a point of another endpoint or model."""
        if point.backend != self.config or point.engine.model != self.model_name:
            raise UsageError(
                "point", point.hash(), f"points of {self.model_name} at {self.config.base_url}"
            )
        _candidates(self.config, self.tokenizer)

    def connect(self) -> None:
        """Ask the endpoint for its model and try forms of prompts.

        Raises UsageError where nobody answers, the key is refused, the model is not clear, or no
        form of prompts gives a reply.
        """
        self._api_key = ApiKey.from_environment(os.environ)
        model = self.config.served_model or asyncio.run(
            _served_model(self.config, self._api_key, self.model_name)
        )
        if self.model_name == DEFAULT_MODEL and _base_name(model) != DEFAULT_MODEL:
            raise UsageError(
                "--model",
                DEFAULT_MODEL,
                f"what the endpoint serves ({model}), as a checkpoint folder or the name of a "
                "shape: its tokenizer makes and counts tokens",
            )
        dialect = asyncio.run(_find_dialect(self.config, self._api_key, model, self.tokenizer))
        self._found = _Endpoint(model=model, dialect=dialect)

    @property
    def hardware(self) -> str:
        """The endpoint, whatever is behind it."""
        return f"outside engine at {self.config.base_url}"

    def warm_up(self, point: PointConfig) -> None:
        """Send a few short requests, unmeasured; whether they fail is seen when it counts."""
        workload = Workload(
            requests=tuple(
                _probe(self.tokenizer, request_id=i, max_new_tokens=point.decode.block_length)
                for i in range(min(_WARM_UP_REQUESTS, point.scheduler.batch_size))
            ),
            provenance=Provenance(
                dataset="warm-up", origin="synthetic", tokenizer=self.tokenizer.name
            ),
        )
        asyncio.run(self._serve(self._endpoint, point, workload, None))

    def run(
        self, point: PointConfig, workload: Workload, *, on_progress: Progress | None = None
    ) -> RunRecord:
        """Serve the workload, at most `batch_size` requests at once at the endpoint.

        Needs a thread without a running event loop.
        """
        endpoint = self._endpoint
        done = asyncio.run(self._serve(endpoint, point, workload, on_progress))
        return run_record(
            done.served,
            workload=workload,
            tokenizer=self.tokenizer,
            duration_s=done.duration_s,
            notes=(f"served model {endpoint.model}; {endpoint.dialect.label}", *done.notes),
            settings={
                "endpoint": self.config.base_url,
                "api": self.config.api,
                "served_model": endpoint.model,
                "prompts": endpoint.dialect.label,
                "client": f"httpx2 {version('httpx2')}",
            },
        )

    def close(self) -> None:
        """Nothing is held between runs."""

    @property
    def _endpoint(self) -> _Endpoint:
        if self._found is None:
            self.connect()
        assert self._found is not None
        return self._found

    async def _serve(
        self,
        endpoint: _Endpoint,
        point: PointConfig,
        workload: Workload,
        on_progress: Progress | None,
    ) -> DriverRun:
        bodies = {
            request.request_id: request_body(
                endpoint.dialect,
                request,
                tokenizer=self.tokenizer,
                model=endpoint.model,
                sampling=point.sampling,
                ignore_eos=point.workload.ignore_eos,
                seed=point.seed,
            )
            for request in workload.requests
        }
        async with _client(self.config, self._api_key) as client:

            async def send(request: RequestSpec, now: Clock) -> Reply:
                return await client.stream(endpoint.dialect.path, bodies[request.request_id], now)

            return await serve(
                workload,
                send,
                max_in_flight=point.scheduler.batch_size,
                on_progress=on_progress,
            )


def _client(config: BackendConfig, api_key: ApiKey) -> EndpointClient:
    return EndpointClient(config.base_url, api_key=api_key, timeout_s=config.request_timeout_s)


def _base_name(model: str) -> str:
    return PurePosixPath(model.rstrip("/")).name.lower()


async def _served_model(config: BackendConfig, api_key: ApiKey, model_name: str) -> str:
    """The only model that the endpoint lists, or the one of several that --model names."""
    wanted = _base_name(model_name)
    async with _client(config, api_key) as client:
        try:
            listed = await client.get_json("/models")
        except HttpError as error:
            if error.status in _NO_LIST:
                raise UsageError(
                    "--served-model-name",
                    "not given",
                    "the server's name of its model, since it lists none",
                ) from None
            raise _refusal(config, api_key, error) from None
        except RequestFailed as error:
            raise _refusal(config, api_key, error) from None
    entries = listed.get("data") if isinstance(listed, dict) else None
    names = [
        entry["id"]
        for entry in entries or []
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]
    if len(names) == 1:
        return str(names[0])
    fitting = [name for name in names if _base_name(name) == wanted]
    if len(fitting) == 1:
        return str(fitting[0])
    if not names:
        allowed = "the server's name of its model, since its list of models is empty"
    else:
        allowed = f"one of the {len(names)} models that the endpoint offers: {', '.join(names)}"
    raise UsageError("--served-model-name", "not given", allowed)


async def _find_dialect(
    config: BackendConfig, api_key: ApiKey, model: str, tokenizer: TextTokenizer
) -> Dialect:
    """The first form of requests that gives a reply; token ids only where they were understood."""
    request = _probe(tokenizer, request_id=0, max_new_tokens=1)
    refused: RequestFailed | None = None
    async with _client(config, api_key) as client:
        for dialect in _candidates(config, tokenizer):
            body = request_body(
                dialect,
                request,
                tokenizer=tokenizer,
                model=model,
                sampling=SamplingConfig(),
                ignore_eos=False,
                seed=0,
            )
            reply = ReplyBuilder()
            try:
                await client.stream_into(reply, dialect.path, body, time.perf_counter)
            except CannotConnect as error:
                raise _refusal(config, api_key, error) from None
            except HttpError as error:
                if error.status in _NO_PERMISSION:
                    raise _refusal(config, api_key, error) from None
                refused = error
                continue
            except RequestFailed as error:
                refused = error
                continue
            done = reply.finish(time.perf_counter())
            if done.error:
                refused = RequestFailed(done.error)
            elif _is_understood(dialect, done, request, asked=config.prompt_format):
                return dialect
            else:
                refused = RequestFailed("its count of prompt tokens is not ours")
    raise _refusal(config, api_key, refused or RequestFailed("no reply"))


def _candidates(config: BackendConfig, tokenizer: TextTokenizer) -> tuple[Dialect, ...]:
    prompts = ("tokens", "text") if config.prompt_format == "auto" else (config.prompt_format,)
    if config.api == "chat" or tokenizer.name == BYTE_TOKENIZER:
        if config.prompt_format == "tokens":
            why = "--endpoint chat" if config.api == "chat" else "the byte tokenizer"
            raise UsageError("--prompt-format", "tokens", f"text with {why}")
        prompts = ("text",)
    return tuple(
        Dialect(api=config.api, prompts=form, usage=usage)
        for form in prompts
        for usage in (True, False)
    )


def _is_understood(dialect: Dialect, reply: Reply, request: RequestSpec, *, asked: str) -> bool:
    """Whether a server took ids for ids: some take each id for a prompt, or for text.

    Where the user asked for ids, a server that counts nothing is believed.
    """
    if dialect.prompts != "tokens":
        return True
    counted = reply.prompt_tokens
    # Some servers put a token for the beginning of the text before the prompt.
    fits = counted is not None and 0 <= counted - request.num_prompt_tokens <= 1
    return fits or (counted is None and asked == "tokens")


def _probe(tokenizer: TextTokenizer, *, request_id: int, max_new_tokens: int) -> RequestSpec:
    (ids,) = tokenizer.encode_batch([_PROBE_TEXT])
    return RequestSpec(
        request_id=request_id,
        prompt_ids=np.asarray(ids, dtype=np.int32),
        max_new_tokens=max_new_tokens,
        prompt_text=_PROBE_TEXT,
    )


def _refusal(config: BackendConfig, api_key: ApiKey, error: RequestFailed) -> UsageError:
    """What to tell where the endpoint cannot be used at all."""
    if isinstance(error, HttpError) and error.status in _NO_PERMISSION:
        have = "a key that it takes" if api_key.text else "a key"
        allowed = f"an endpoint, with {have} in {' or '.join(KEY_VARIABLES)} ({error})"
    else:
        allowed = f"the URL of an OpenAI-compatible server ({error})"
    return UsageError("--base-url", config.base_url, allowed)
