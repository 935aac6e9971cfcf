"""The first or the best positions of each row of a batch; ties go to the lower position.

Knows neither what the scores mean nor what is done with the chosen ones. Rows are sequences,
columns the positions of their blocks.
"""

import numpy as np
import numpy.typing as npt

from focus_bench.decoding.masks import BoolArray, IntArray, count_true


def leftmost(candidates: BoolArray, count: int | IntArray) -> BoolArray:
    """The `count` leftmost candidates of each row; `count` is a number or one per row [n, 1]."""
    return candidates & (np.cumsum(candidates, axis=1, dtype=np.int8) <= count)


def largest(
    score: npt.NDArray[np.floating], candidates: BoolArray, count: int | IntArray
) -> BoolArray:
    """The `count` candidates with the largest score of each row; all where there are fewer.

    `score[n,B]` is read at candidates only and must be a number there; `count`, at least 1, is a
    number or one per row [n].
    """
    num_rows, length = score.shape
    # Sorting values and comparing with the last one chosen is a third of the work of argsort.
    # (Infinite for what is no candidate; a third of the time of `where`, which guesses.)
    key = np.fmax(-score, (0.5 - candidates.astype(score.dtype)) * np.inf)
    place = np.minimum(count, length) - 1
    limit = np.sort(key, axis=1)[np.arange(num_rows), place][:, None]
    chosen = np.asarray(candidates & (key <= limit))
    tied = count_true(chosen) > count
    if tied.any():
        better = candidates[tied] & (key[tied] < limit[tied])
        equal = candidates[tied] & (key[tied] == limit[tied])
        room = np.broadcast_to(count, num_rows)[tied] - count_true(better)
        chosen[tied] = better | leftmost(equal, room[:, None])
    return chosen
