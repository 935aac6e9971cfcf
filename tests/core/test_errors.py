"""Errors keep what they say when they are copied, pickled or made anew from their arguments."""

import copy
import pickle

import pytest

from focus_bench.core.errors import CapacityError, UsageError, check_range


@pytest.mark.parametrize("kind", [UsageError, CapacityError])
def test_an_error_made_anew_says_the_same(kind: type[UsageError]) -> None:
    error = kind("--alpha", "x" * 300, "a number\nabove 0")
    text = "--alpha: '" + "x" * 199 + "... is not usable; allowed: a number above 0"
    for again in (
        type(error)(*error.args),
        copy.copy(error),
        copy.deepcopy(error),
        pickle.loads(pickle.dumps(error)),
    ):
        assert type(again) is kind
        assert str(again) == str(error) == text
        assert (again.field, again.value, again.allowed) == ("--alpha", "x" * 300, error.allowed)


def test_whole_limits_have_all_their_digits() -> None:
    with pytest.raises(UsageError, match=r"allowed: >= 0 and <= 9223372036854775807$"):
        check_range("--seed", -1, low=0, high=2**63 - 1)
    with pytest.raises(UsageError, match=r"allowed: >= 0.25$"):
        check_range("--share", 0.0, low=0.25)
