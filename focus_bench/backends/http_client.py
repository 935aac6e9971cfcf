"""One streaming request over HTTP to its reply, with every failure under a name of its own.

Knows Server-Sent Events and the OpenAI protocol's events; not when requests are due.
"""

import asyncio
import json
import re
from types import TracebackType

import httpx2

from focus_bench.backends.api_key import ApiKey
from focus_bench.backends.driver import Clock
from focus_bench.backends.openai_protocol import DONE, error_message_of, read_event
from focus_bench.backends.reply import Reply, ReplyBuilder, RequestFailed
from focus_bench.backends.sse import EventDecoder, MalformedStream

CONNECT_TIMEOUT_S = 10.0
_IDLE_S = 2.0  # servers close idle connections after about 5 s: let go of ours before that
_ERROR_BODY_BYTES = 65536


class HttpError(RequestFailed):
    """The server answered with an error status."""

    def __init__(self, status: int, phrase: str, message: str) -> None:
        self.status = status
        name = f"http {status} {phrase}".rstrip()
        super().__init__(f"{name}: {message}" if message else name)


class CannotConnect(RequestFailed):
    """Nobody answers."""


class EndpointClient:
    """Connections to one endpoint; an async context manager, of one event loop.

    No retries, no redirects and no proxy from the environment: all of these would be measured as
    the engine's. `timeout_s` bounds a whole reply.
    """

    def __init__(self, base_url: str, *, api_key: ApiKey, timeout_s: float) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._http = httpx2.AsyncClient(
            headers={
                **api_key.headers(),
                "Accept": "text/event-stream, application/json",
                "Accept-Encoding": "identity",  # compression would hold events back
            },
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_S
            ),
            trust_env=False,
            follow_redirects=False,
        )

    async def __aenter__(self) -> "EndpointClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def get_json(self, path: str) -> object:
        """The JSON at `path`; raises RequestFailed."""
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._http.get(self._base_url + path)
                if response.status_code != 200:
                    raise self._http_error(response, response.content)
                return json.loads(response.content)
        except (httpx2.HTTPError, TimeoutError, ValueError) as error:
            raise self._failure(error, has_begun=False) from None

    async def stream(self, path: str, body: bytes, now: Clock) -> Reply:
        """Send `body` and collect the reply; never raises for a failure, the reply names it."""
        reply = ReplyBuilder()
        try:
            await self.stream_into(reply, path, body, now)
        except RequestFailed as error:
            return reply.finish(now(), error=str(error))
        return reply.finish(now())

    async def stream_into(self, reply: ReplyBuilder, path: str, body: bytes, now: Clock) -> None:
        """Send `body` and take in the reply; raises RequestFailed."""
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.stream(
                    "POST",
                    self._base_url + path,
                    content=body,
                    headers={"Content-Type": "application/json"},
                ) as response,
            ):
                await self._read(response, reply, now)
        except (httpx2.HTTPError, TimeoutError, MalformedStream) as error:
            if not reply.is_whole:
                raise self._failure(error, has_begun=reply.has_begun) from None
        except HttpError:
            raise
        except RequestFailed as error:
            raise RequestFailed(self._api_key.hidden_in(str(error))) from None

    async def _read(self, response: httpx2.Response, reply: ReplyBuilder, now: Clock) -> None:
        if response.status_code != 200:
            error_body = b""
            async for chunk in response.aiter_bytes():
                error_body += chunk
                if len(error_body) > _ERROR_BODY_BYTES:
                    break
            raise self._http_error(response, error_body)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            raise MalformedStream(f"content type {kind or 'none'} instead of text/event-stream")
        decoder = EventDecoder()
        async for chunk in response.aiter_bytes():
            now_s = now()
            if reply.is_whole:
                continue  # read to the end, or the connection cannot be used again
            for data in decoder.feed(chunk):
                if data == DONE:
                    reply.set_whole()
                    break
                read_event(data, reply, now_s)

    def _http_error(self, response: httpx2.Response, body: bytes) -> HttpError:
        message = self._api_key.hidden_in(error_message_of(body))
        return HttpError(response.status_code, response.reason_phrase, message)

    def _failure(self, error: Exception, *, has_begun: bool) -> RequestFailed:
        """The name of a failure; the same for every request that fails alike."""
        if isinstance(error, TimeoutError):
            return RequestFailed(f"timeout: no whole reply within {self._timeout_s:g} s")
        if isinstance(error, MalformedStream):
            return RequestFailed(f"malformed stream: {error}")
        if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout)):
            return CannotConnect(f"cannot connect: {_one_line(error)}")
        if isinstance(error, httpx2.TransportError):
            when = "within the reply" if has_begun else "before the reply"
            return RequestFailed(f"disconnected {when}: {_one_line(error)}")
        return RequestFailed(self._api_key.hidden_in(_one_line(error)))


def _one_line(error: Exception) -> str:
    words = re.sub(r"^\[Errno -?\d+\] ", "", " ".join(str(error).split()))
    return words or type(error).__name__
