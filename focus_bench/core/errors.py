"""Errors that a user can cause; each names the input, the value and what is allowed."""


class UsageError(ValueError):
    """Bad input; the command line shows it as one line and exits with code 2.

    Parameters
    ----------
    field: name of the input as the user typed it (``--alpha``, a key of a file, an argument).
    value: what was given.
    allowed: what is allowed, as a phrase that can follow "allowed:".
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        # Copies, pickles and SimPy make an exception anew from its type and `args`.
        super().__init__(field, value, allowed)

    def __str__(self) -> str:
        shown = repr(self.value) if isinstance(self.value, str) else str(self.value)
        if len(shown) > 200:
            shown = shown[:200] + "..."
        return " ".join(f"{self.field}: {shown} is not usable; allowed: {self.allowed}".split())


class CapacityError(UsageError):
    """Something does not fit into memory or into the page pool; carries the numbers in its text."""


def reason_of(error: Exception) -> str:
    """Why a file could not be read, in words: without the system's number and without the path,
    which the message that takes it names already.
    """
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error)


def check_range(
    field: str,
    value: float,
    *,
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
) -> None:
    """Raise UsageError unless ``low <= value <= high`` (``low < value`` where `low_open`).

    NaN is always refused.
    """
    bad = value != value
    if low is not None:
        bad = bad or value < low or (low_open and value == low)
    if high is not None:
        bad = bad or value > high
    if bad:
        low_text = "" if low is None else f"{'>' if low_open else '>='} {_limit(low)}"
        high_text = "" if high is None else f"<= {_limit(high)}"
        raise UsageError(field, value, " and ".join(t for t in (low_text, high_text) if t))


def _limit(limit: float) -> str:
    """Whole numbers with all their digits."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise UsageError unless `value` is one of `choices`."""
    if value not in choices:
        raise UsageError(field, value, ", ".join(choices))
