"""How long threads of this process wait for a core that other programs use, as Linux counts it.

Knows nothing of what the threads do. The load average would not tell: it is a mean over the last
minute, so it misses a program that has just begun and goes on after one that has ended.
"""

import time
from dataclasses import dataclass
from pathlib import Path

_THREADS = Path("/proc/self/task")


@dataclass(frozen=True, kw_only=True)
class CpuWaits:
    """A moment: `clock_s`, and nanoseconds that each thread had waited by then, by its id.

    `waited_ns` None: this system does not say.
    """

    clock_s: float
    waited_ns: dict[str, int] | None

    @classmethod
    def now(cls) -> "CpuWaits":
        """The present moment."""
        return cls(clock_s=time.perf_counter(), waited_ns=_waited_ns())

    def longest_share_since(self) -> float | None:
        """The share of the time since then that the thread which waited most was waiting, 0 to 1.

        None where this system does not say.
        """
        now = CpuWaits.now()
        if self.waited_ns is None or now.waited_ns is None:
            return None
        waits = (ns - self.waited_ns.get(name, 0) for name, ns in now.waited_ns.items())
        return max(waits, default=0) * 1e-9 / max(now.clock_s - self.clock_s, 1e-9)


def _waited_ns() -> dict[str, int] | None:
    """The second figure of each thread's schedstat: nanoseconds on a run queue, not running."""
    waited = {}
    try:
        for thread in _THREADS.iterdir():
            try:
                ran, waiting, _ = map(int, (thread / "schedstat").read_text().split())
            except ProcessLookupError:  # it has ended meanwhile
                continue
            if not ran and not waiting:  # a kernel that keeps no account writes zeros
                continue
            waited[thread.name] = waiting
    except (OSError, ValueError):
        return None
    return waited or None
