"""CUDA graphs of a step's stages, captured by token bucket and replayed at fixed addresses.

Knows stages by name only.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")


# Buckets are powers of two up to 256 tokens, then multiples of 64, and of 256 from 1,024 on. (The
# paper's E.4 has multiples of 256 from 256 on: 310 tokens padded to 512 made a step of SDAR-8B at
# batch 32 wait for two fifths more arithmetic than it needs.)
_STEPS = ((1024, 64), (None, 256))


def token_bucket(num_tokens: int) -> int:
    """The smallest bucket that holds `num_tokens` (at least 1)."""
    if num_tokens <= 256:
        return 1 << max(0, num_tokens - 1).bit_length()
    step = next(step for limit, step in _STEPS if limit is None or num_tokens <= limit)
    return -(-num_tokens // step) * step


def buckets_up_to(max_tokens: int) -> list[int]:
    """All buckets for 1 to `max_tokens` tokens, ascending."""
    buckets = [token_bucket(1)]
    while buckets[-1] < max_tokens:
        buckets.append(token_bucket(buckets[-1] + 1))
    return buckets


class StageGraphs(Generic[Result]):
    """Captured graphs of one stage, by bucket; all graphs of a `pool` share its memory.

    Graphs of one pool are replayed one after another on one stream, and what a stage returns is
    used before the stage runs again.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Result]] = {}

    def __contains__(self, bucket: int) -> bool:
        return bucket in self._graphs

    def capture(self, bucket: int, stage: Callable[[], Result]) -> Result:
        """Run the stage once, so that everything is compiled, then capture it; its result."""
        stage()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = stage()
        self._graphs[bucket] = graph, result
        return result

    def replay(self, bucket: int) -> Result:
        """Run the captured stage; the result lies where it lay when it was captured."""
        graph, result = self._graphs[bucket]
        graph.replay()
        return result
