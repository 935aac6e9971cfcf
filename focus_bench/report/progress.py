"""How far a sweep is: a bar with rate and ETA on a terminal, a few plain lines in a pipe.

Knows counts and times only; the driver's loop calls `update`, which is cheap.
"""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from focus_bench.report import formats
from focus_bench.report.console import is_live

_REDRAW_S = 0.1
_LINE_S = 5.0  # plain lines are at least this far apart ...
_LINE_SHARE = 0.1  # ... and this share of a point


class SweepProgress:
    """Progress over the points of a sweep and the requests of the running point.

    Use it as a context manager: `begin_point`, `update` as often as you like, `end_point`.
    `clock` gives seconds and is for tests.
    """

    def __init__(
        self, console: Console, num_points: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._num_points = num_points
        self._clock = clock
        self._point = 0
        self._label = ""
        self._total = 0
        self._begun_s = 0.0
        self._shown_s = 0.0
        self._shown_requests = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "SweepProgress":
        if is_live(self._console):
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[status]}", markup=False),
                console=self._console,
                transient=True,
                auto_refresh=False,
            )
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin_point(self, label: str, num_requests: int) -> None:
        """A point with that many requests starts."""
        self._point += 1
        self._label = f"[{self._point}/{self._num_points}] {label}"
        self._total = num_requests
        self._begun_s = self._shown_s = self._clock()
        self._shown_requests = 0
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(self._label, total=num_requests, status="")
            self._bar.refresh()

    def update(self, finished_requests: int, output_tokens: int) -> None:
        """So many requests have ended, with so many output tokens, since the point began."""
        now = self._clock()
        if self._bar is not None and self._task is not None:
            if now - self._shown_s >= _REDRAW_S:
                self._shown_s = now
                status = self._status(finished_requests, output_tokens, now)
                self._bar.update(self._task, completed=finished_requests, status=status)
                self._bar.refresh()
            return
        news = finished_requests - self._shown_requests
        if now - self._shown_s >= _LINE_S and news >= max(1.0, _LINE_SHARE * self._total):
            self._shown_s, self._shown_requests = now, finished_requests
            self._print(f"{self._label}: {self._status(finished_requests, output_tokens, now)}")

    def end_point(self, outcome: str) -> None:
        """The point is finished (or failed, or was there already): one line that stays."""
        self._print(f"{self._label}: {outcome}")

    def abandon(self) -> None:
        """Clear the bar's line from a thread that must not wait for the one that draws it."""
        if self._bar is not None:
            self._console.file.write("\r\x1b[2K\x1b[?25h")  # erase the line, show the cursor

    def _status(self, finished: int, output_tokens: int, now: float) -> str:
        elapsed = now - self._begun_s
        rate = formats.number(output_tokens / elapsed if elapsed > 0 else None)
        left = elapsed * (self._total - finished) / finished if finished else None
        return f"{finished}/{self._total} requests, {rate} tok/s, {formats.seconds(left)} left"

    def _print(self, line: str) -> None:
        if self._bar is None:
            # A line of a log is one line, however long.
            self._console.print(line, soft_wrap=True)
        else:
            self._bar.console.print(line)
