"""One task: what is asked, a good reply, and what any reply is checked against.

Knows no family.
"""

from dataclasses import dataclass

TRAIN = "train"
TEST = "test"
SPLITS = (TRAIN, TEST)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A task of one family.

    `reply` is one of many good replies. `answer` is what the family's check compares with: a
    number, a printed line, the constraints of an instruction; "" where nothing can be checked.
    """

    family: str
    prompt: str
    reply: str
    answer: str
