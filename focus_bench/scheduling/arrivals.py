"""When requests reach the scheduler: by their arrival times, or as others leave (closed loop).

One object serves both drivers, so both submit the same requests in the same order.
"""

from collections import deque

from focus_bench.core.workload import RequestSpec, Workload


class ArrivalQueue:
    """Requests of a workload that have not arrived yet."""

    def __init__(self, workload: Workload) -> None:
        self._pending = deque(sorted(workload.requests, key=lambda r: (r.arrival_s, r.request_id)))
        self._max_concurrency = workload.max_concurrency
        self._in_system = 0

    @property
    def is_empty(self) -> bool:
        """Whether every request has arrived."""
        return not self._pending

    def due(self, now_s: float) -> list[RequestSpec]:
        """Take the requests that have arrived by `now_s` (seconds since the run's start)."""
        taken = []
        while self._pending and self._may_enter() and self._pending[0].arrival_s <= now_s:
            taken.append(self._pending.popleft())
            self._in_system += 1
        return taken

    def next_arrival_s(self) -> float | None:
        """When the next request arrives; None if none will, or one waits for another to leave."""
        if not self._pending or not self._may_enter():
            return None
        return self._pending[0].arrival_s

    def on_finished(self, count: int) -> None:
        """`count` requests left the system."""
        self._in_system -= count

    def _may_enter(self) -> bool:
        return self._max_concurrency is None or self._in_system < self._max_concurrency
