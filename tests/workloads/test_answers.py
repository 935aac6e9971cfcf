"""Numbers out of worked answers."""

from decimal import Decimal

import pytest

from focus_bench.workloads.answers import extract_number, same_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,234", "1234"),
        ("1,234,567.50 dollars.", "1234567.50"),
        ("So 72, in all.", "72"),
        ("She makes $18.", "18"),
        ("-3", "-3"),
        ("It is \u22123.", "-3"),
        ("a loss of -$1,200.", "-1200"),
        ("10-3", "3"),
        ("(4)-2", "2"),
        ("10-3=7", "7"),
        ("- 3 apples", "3"),
        (".5", "0.5"),
        ("3.", "3"),
        ("1, 2, 3", "3"),
        ("1,2345", "2345"),
        ("2 + 2 is 4.\n#### 4", "4"),
        ("#### 18 (that is 2 * 9)", "18"),
        ("It is 7. ####", "7"),
    ],
)
def test_extract_number(text: str, number: str) -> None:
    assert extract_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "none", "####", "-", ",", "."])
def test_no_number_is_none_and_equals_nothing(text: str) -> None:
    assert extract_number(text) is None
    assert not same_number(text, text)


def test_fault_07_number_answers() -> None:
    assert same_number("1,234", "1234")
    assert same_number("So 72, in all.", "72")
    assert same_number("So 72, in all.", "... = 72\n#### 72.00")
    assert same_number("-3", "-3")
    assert not same_number("3", "-3")
    assert not same_number("1,234", "234")
