"""What came back for one request, collected while it comes. Knows no protocol."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from focus_bench.core.workload import RequestSpec

ENDS = ("stop", "length")  # how a request ends well, by the name that both protocols use


class RequestFailed(Exception):
    """A request gave no whole reply; the text is the name that its record carries."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The outcome of one request; times in seconds from the run's start.

    `group_times_s`: when something visible came. `error` names a failure, "" for none; what came
    before it is kept. Token counts are the server's, None where it gave none.
    """

    text: str
    group_times_s: tuple[float, ...]
    finish_reason: str
    error: str
    finished_s: float
    prompt_tokens: int | None
    output_tokens: int | None


@dataclass(frozen=True, kw_only=True)
class Served:
    """A request with its reply: when it arrived, and when it was sent (None: not known)."""

    spec: RequestSpec
    arrival_s: float
    sent_s: float | None
    reply: Reply


@dataclass(kw_only=True)
class ReplyBuilder:
    """Collects one reply."""

    _texts: list[str] = field(default_factory=list)
    _times_s: list[float] = field(default_factory=list)
    _reason: str = ""
    _ended_s: float | None = None
    _prompt_tokens: int | None = None
    _output_tokens: int | None = None
    _is_whole: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the server has said that nothing more will come."""
        return self._is_whole

    @property
    def has_begun(self) -> bool:
        """Whether anything visible has come."""
        return bool(self._times_s)

    def add_text(self, text: str, now_s: float) -> None:
        """Visible text came."""
        if text:
            self._texts.append(text)
            self._times_s.append(now_s)

    def add_end(self, reason: str, now_s: float) -> None:
        """The reply is over. Raises RequestFailed for an end that is none of ENDS."""
        if reason not in ENDS:
            raise RequestFailed(f"finish reason {reason!r}")
        self._reason, self._ended_s = reason, now_s

    def set_whole(self) -> None:
        """Nothing more will come."""
        self._is_whole = True

    def set_counts(self, *, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """The server's counts, where it gives any."""
        if prompt_tokens is not None:
            self._prompt_tokens = prompt_tokens
        if output_tokens is not None:
            self._output_tokens = output_tokens

    def finish(self, now_s: float, error: str = "") -> Reply:
        """The reply, whole or, with `error`, as far as it came by `now_s`."""
        if not error and self._ended_s is None:
            error = "stream ended without a finish reason"
        return Reply(
            text=joined(self._texts),
            group_times_s=tuple(self._times_s),
            finish_reason="error" if error else self._reason,
            error=error,
            finished_s=now_s if error or self._ended_s is None else self._ended_s,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
        )


def joined(texts: Sequence[str]) -> str:
    r"""The pieces as one text: a character that JSON cut into "\ud83d" and "\ude00" is whole."""
    return "".join(texts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
