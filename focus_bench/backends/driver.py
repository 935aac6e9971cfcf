"""Sends a workload's requests when they are due, on the wall clock. Knows no protocol."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from focus_bench.backends.backend import Progress
from focus_bench.backends.reply import Reply, Served
from focus_bench.core.workload import RequestSpec, Workload

Clock = Callable[[], float]
# Sends one request and waits for its reply; the clock gives seconds from the run's start.
Send = Callable[[RequestSpec, Clock], Awaitable[Reply]]

_LAG_CHECK_S = 0.05
_LAG_TO_MENTION_S = 0.1


@dataclass(frozen=True, kw_only=True)
class DriverRun:
    """All requests with their replies, the duration, and how late this client was at worst."""

    served: tuple[Served, ...]
    duration_s: float
    worst_lag_s: float

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know about the client itself."""
        if self.worst_lag_s < _LAG_TO_MENTION_S:
            return ()
        return (
            f"the client was up to {self.worst_lag_s:.1f} s late in reading replies (a busy "
            "machine): latencies include that",
        )


async def serve(
    workload: Workload,
    send: Send,
    *,
    max_in_flight: int,
    on_progress: Progress | None = None,
) -> DriverRun:
    """Send every request when it is due, at most `max_in_flight` at once, in order of arrival.

    Open loop: a request arrives when the workload says, whatever the server does, and waits here
    while `max_in_flight` others are out. Closed loop: it arrives when one of `max_concurrency`
    leaves. `send` turns the failures of a request into its reply; nothing is sent twice.
    """
    return await _Driver(
        workload=workload, send=send, max_in_flight=max_in_flight, on_progress=on_progress
    ).run()


@dataclass(kw_only=True)
class _Driver:
    workload: Workload
    send: Send
    max_in_flight: int
    on_progress: Progress | None
    _served: list[Served] = field(default_factory=list)
    _output_tokens: int = 0
    _worst_lag_s: float = 0.0

    async def run(self) -> DriverRun:
        begin_s = time.perf_counter()

        def now() -> float:
            return time.perf_counter() - begin_s

        lag = asyncio.create_task(self._watch_lag())
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._let_in(tasks, now)
        finally:
            lag.cancel()
        return DriverRun(
            served=tuple(self._served), duration_s=now(), worst_lag_s=self._worst_lag_s
        )

    async def _let_in(self, tasks: asyncio.TaskGroup, now: Clock) -> None:
        in_flight = asyncio.Semaphore(self.max_in_flight)
        concurrency = self.workload.max_concurrency
        in_system = None if concurrency is None else asyncio.Semaphore(concurrency)
        for spec in sorted(self.workload.requests, key=lambda r: (r.arrival_s, r.request_id)):
            if in_system is None:
                await asyncio.sleep(max(0.0, spec.arrival_s - now()))
                arrival_s = spec.arrival_s
            else:
                await in_system.acquire()
                arrival_s = now()
            tasks.create_task(self._one(spec, arrival_s, in_flight, in_system, now))

    async def _one(
        self,
        spec: RequestSpec,
        arrival_s: float,
        in_flight: asyncio.Semaphore,
        in_system: asyncio.Semaphore | None,
        now: Clock,
    ) -> None:
        async with in_flight:
            sent_s = now()
            reply = await self.send(spec, now)
        if in_system is not None:
            in_system.release()
        self._served.append(Served(spec=spec, arrival_s=arrival_s, sent_s=sent_s, reply=reply))
        self._output_tokens += reply.output_tokens or 0
        if self.on_progress is not None:
            self.on_progress(len(self._served), self._output_tokens)

    async def _watch_lag(self) -> None:
        while True:
            due_s = time.perf_counter() + _LAG_CHECK_S
            await asyncio.sleep(_LAG_CHECK_S)
            self._worst_lag_s = max(self._worst_lag_s, time.perf_counter() - due_s)
