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
        shown = repr(value) if isinstance(value, str) else str(value)
        if len(shown) > 200:
            shown = shown[:200] + "..."
        super().__init__(" ".join(f"{field}: {shown} is not usable; allowed: {allowed}".split()))


class CapacityError(UsageError):
    """Something does not fit into memory or into the page pool; carries the numbers in its text."""


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
        low_text = "" if low is None else f"{'>' if low_open else '>='} {low:g}"
        high_text = "" if high is None else f"<= {high:g}"
        raise UsageError(field, value, " and ".join(t for t in (low_text, high_text) if t))


def check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise UsageError unless `value` is one of `choices`."""
    if value not in choices:
        raise UsageError(field, value, ", ".join(choices))
