"""Which rows of a step's last layer give logits, and what each decodes (algorithm section 1).

Knows masks only. Where a model's logits are shifted, row i decodes position i + 1: a position's
token comes from the row before it, the block's first from its own row, and the last row of a commit
pass gives the first token of the next block (Fast-dLLM v2).
"""

from dataclasses import dataclass

import numpy as np

from focus_bench.decoding.block_state import BoolArray, IntArray
from focus_bench.decoding.caching import Feed


@dataclass(frozen=True, kw_only=True)
class HeadRows:
    """`index[R]`: places among the step's kept positions, row after row. The first ones decode the
    candidates in order; the others give the commit passes `carry[c]` (rows) their next tokens.
    """

    index: IntArray
    carry: IntArray


def head_rows(feed: Feed, kept: BoolArray, *, shifted: bool) -> HeadRows:
    """The rows needed of a step that keeps `kept[n,B]`; its kept decodable positions are the
    candidates. With `shifted`, every row that a candidate needs must be kept.
    """
    row, column = np.nonzero(kept & feed.decodable)
    carry = np.zeros(0, dtype=np.int64)
    if shifted:
        carry = np.flatnonzero(feed.commit)
        last = np.full(len(carry), kept.shape[1] - 1)
        row = np.concatenate([row, carry])
        column = np.concatenate([np.maximum(column - 1, 0), last])
        if not kept[row, column].all():
            raise AssertionError("a position is to be decoded by a row that was not kept")
    place = np.cumsum(kept.reshape(-1)).reshape(kept.shape) - 1
    return HeadRows(index=place[row, column], carry=carry)
