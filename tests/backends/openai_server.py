"""A small OpenAI-like HTTP server for tests, written on asyncio streams: it misbehaves on demand.

Runs in a thread of its own, so that a client's late reads are the client's.
"""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Received:
    """One request as it came; `begin_s` and `end_s` on time.perf_counter."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, object]
    begin_s: float
    end_s: float = 0.0


class Exchange:
    """What a handler writes with."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def head(self, status: str = "200 OK", kind: str = "text/event-stream") -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._writer.write(head.encode())
        await self._writer.drain()

    async def raw(self, data: bytes) -> None:
        """One chunk of the body."""
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def event(self, value: object) -> None:
        data = value if isinstance(value, str) else json.dumps(value)
        await self.raw(f"data: {data}\n\n".encode())

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def whole(
        self, status: str, body: bytes, kind: str = "application/json", *, extra: str = ""
    ) -> None:
        """A response with its length; `extra`: further header lines, each with its line end."""
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{extra}"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    def drop(self) -> None:
        """Close the connection in the middle of whatever it is in."""
        self._writer.transport.abort()


Handler = Callable[[Received, Exchange], Awaitable[None]]


def piece(text: str = "", reason: str | None = None, *, chat: bool = False) -> dict[str, object]:
    """One chunk of a completion, or of a chat."""
    content: dict[str, object] = {"delta": {"content": text}} if chat else {"text": text}
    return {"choices": [{"index": 0, **content, "finish_reason": reason}]}


def usage(prompt: int, output: int) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


def prompt_tokens(body: dict[str, object]) -> int:
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) else 7


@dataclass(kw_only=True)
class GoodServer:
    """Answers as it should: `pieces` texts `gap_s` apart, then the end, usage and [DONE]."""

    pieces: tuple[str, ...] = ("one ", "two ", "three")
    gap_s: float = 0.0
    tokens: int = 6
    models: tuple[str, ...] = ("focus-tiny",)
    received: list[Received] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    @property
    def completions(self) -> list[Received]:
        """What was asked of the model, without the first question of what is understood."""
        return [r for r in self.received if r.method == "POST" and r.body["max_tokens"] != 1]

    async def __call__(self, request: Received, out: Exchange) -> None:
        if request.path.endswith("/models"):
            listed = [{"id": name} for name in self.models]
            await out.whole("200 OK", json.dumps({"data": listed}).encode())
            self.received.append(request)
            return
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.answer(request, out)
        finally:
            self.in_flight -= 1
            self.received.append(request)

    async def answer(self, request: Received, out: Exchange) -> None:
        chat = request.path.endswith("/chat/completions")
        await out.head()
        for text in self.pieces:
            await asyncio.sleep(self.gap_s)
            await out.event(piece(text, chat=chat))
        await out.event(piece("", "length", chat=chat))
        if "stream_options" in request.body:
            await out.event(usage(prompt_tokens(request.body), self.tokens))
        await out.event("[DONE]")
        await out.end()


@contextmanager
def running(handler: Handler) -> Iterator[str]:
    """Serve on a free port of this machine; gives the base URL, with /v1."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    ports: list[int] = []
    stop = asyncio.Event()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                begin_s = time.perf_counter()
                method, path, _ = head[0].split(" ")
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                headers = {name.lower(): value for name, value in headers.items()}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                request = Received(
                    method=method,
                    path=path,
                    headers=headers,
                    body=json.loads(body) if body else {},
                    begin_s=begin_s,
                )
                await handler(request, Exchange(writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(connection, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await stop.wait()
        server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{ports[0]}/v1"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
