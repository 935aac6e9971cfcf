"""The number that a worked answer ends in, and whether two answers end in the same one.

Knows no data set but GSM8K's "#### 18" marker, which replies imitate.
"""

import re
from decimal import Decimal

_MARKER = "####"
# A minus belongs to the number unless it stands between operands (10-3), and may precede a "$".
# Commas belong to it where they group thousands (1,234), not where they list (1, 2).
_NUMBER = re.compile(
    r"(?P<minus>(?<![\w)\]}])[-\u2212]\$?)?"
    r"(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)


def extract_number(text: str) -> Decimal | None:
    """The first number behind the last "####", else the last number; None where there is none."""
    marked = _NUMBER.search(text.rpartition(_MARKER)[2]) if _MARKER in text else None
    matches = [marked] if marked else list(_NUMBER.finditer(text))
    if not matches:
        return None
    value = Decimal(matches[-1]["digits"].replace(",", ""))
    return -value if matches[-1]["minus"] else value


def same_number(answer: str, reference: str) -> bool:
    """Whether both texts end in a number and it is the same (72 equals 72.00; -3 is not 3)."""
    number = extract_number(answer)
    return number is not None and number == extract_number(reference)
