"""Ctrl-C and SIGTERM during a sweep: the first one ends it within a second, others do nothing.

Knows signals and threads, not what the sweep does.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TextIO

# From the signal to the end of the process, where the main thread does not end by itself.
GRACE_S = 0.5
EXIT_CODE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """A command was interrupted; its text says what is kept, for the line that main prints."""


class Interrupts:
    """Turns the first Ctrl-C or SIGTERM into a KeyboardInterrupt; use it as a context manager.

    Python raises only between two of its own instructions, so a main thread inside a long call of
    a library (a load, a compilation, a large product) would not stop. A second thread therefore
    ends the process when GRACE_S have passed, with what `last_words` returns as its last line (it
    must not wait for the main thread). What is on disk is whole at every moment, so this loses no
    finished point.

    Outside the main thread, where Python allows no handlers, this does nothing. After an
    interruption both signals stay ignored: the process is about to end.
    """

    def __init__(self, last_words: Callable[[], str]) -> None:
        self._last_words = last_words
        self._interrupted = False
        self._deferred = False
        self._pending = False
        self._busy = threading.Lock()
        self._ended = threading.Event()
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._old_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._on_signal)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._previous:
            return
        self._ended.set()
        for number, handler in self._previous.items():
            # An impatient second Ctrl-C must not hit the interpreter while it shuts down.
            signal.signal(number, signal.SIG_IGN if self._interrupted else handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._writer)  # wakes the watcher, whose end closes the other one
        self._watcher.join()
        self._previous = {}

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """A time in which nothing is interrupted: a finished point is being written.

        A signal that came meanwhile interrupts at its end.
        """
        with self._busy:
            self._deferred = True
            try:
                yield
            finally:
                self._deferred = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            return
        self._interrupted = True
        if self._deferred:
            self._pending = True
        else:
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """Runs in the second thread, which the first signal wakes through the pipe."""
        try:
            while numbers := os.read(self._reader, 64):
                if set(numbers).isdisjoint(_SIGNALS):
                    continue
                with self._busy:  # what is being written now does not count
                    pass
                if not self._ended.wait(GRACE_S):
                    with self._busy:
                        self._end_process()
                return
        finally:
            os.close(self._reader)

    def _end_process(self) -> None:
        try:
            # Not through what progress may have put in stderr's place, and locked.
            say_interrupted(self._last_words(), file=sys.__stderr__)
        finally:
            os._exit(EXIT_CODE)


def say_interrupted(what_is_kept: str = "", *, file: TextIO | None = None) -> None:
    """The one line about an interruption, on standard error."""
    rest = f": {what_is_kept}" if what_is_kept else ""
    print(f"focus-bench: interrupted{rest}", file=file or sys.stderr, flush=True)
