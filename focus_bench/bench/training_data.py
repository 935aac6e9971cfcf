"""Generated tasks as token ids for training, encoded by several processes over ranges of numbers.

Knows no model: what comes out are plain arrays. The same arguments give the same arrays, whatever
the number of processes.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from focus_bench.core.errors import check_range
from focus_bench.workloads.tasks.encode import EncodedTasks, encode_tasks
from focus_bench.workloads.tasks.generate import generate_many
from focus_bench.workloads.tokenizers import load_tokenizer

_TASKS_PER_RANGE = 5000


@dataclass(frozen=True, kw_only=True)
class _Range:
    """Tasks `start` to `start + count` of a split."""

    tokenizer: str
    split: str
    seed: int
    start: int
    count: int


def encoded_split(
    tokenizer_folder: Path, split: str, *, seed: int, count: int, processes: int = 1
) -> EncodedTasks:
    """The first `count` tasks of a split ("train" or "test") through the folder's tokenizer.

    About 5,000 tasks a second and process.
    """
    check_range("--num-tasks", count, low=1)
    check_range("--workers", processes, low=1)
    ranges = [
        _Range(
            tokenizer=str(tokenizer_folder),
            split=split,
            seed=seed,
            start=start,
            count=min(_TASKS_PER_RANGE, count - start),
        )
        for start in range(0, count, _TASKS_PER_RANGE)
    ]
    if processes == 1 or len(ranges) == 1:
        parts = [_encode_range(r) for r in ranges]
    else:
        # Fresh processes: a fork of one that has loaded PyTorch can hang in its thread pools.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            parts = list(pool.map(_encode_range, ranges))
    lengths = np.concatenate([np.diff(part.starts) for part in parts])
    return EncodedTasks(
        ids=np.concatenate([part.ids for part in parts]),
        starts=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        prompt_lengths=np.concatenate([part.prompt_lengths for part in parts]),
    )


def _encode_range(tasks: _Range) -> EncodedTasks:
    tokenizer = load_tokenizer(tasks.tokenizer)
    return encode_tasks(tokenizer, generate_many(tasks.split, tasks.seed, tasks.start, tasks.count))
