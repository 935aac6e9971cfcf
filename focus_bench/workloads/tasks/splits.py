"""Whether a task belongs to training or to the test: its content alone decides, never the seed.

So no seed and no count can bring a test task into training.
"""

import hashlib

from focus_bench.workloads.tasks.task import TEST, TRAIN

TEST_SHARE = 10  # one task in ten, so the test set has its own numbers and yet the same shape


def split_of(family: str, key: str) -> str:
    """The split of a task of `family` with content `key` (families say what that is)."""
    digest = hashlib.blake2b(f"{family}/{key}".encode(), digest_size=4).digest()
    return TEST if int.from_bytes(digest, "little") % TEST_SHARE == 0 else TRAIN
