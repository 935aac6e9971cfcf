"""CUDA graphs of a step's stages, captured by token bucket and replayed at fixed addresses.

Knows stages by name only. Buckets: powers of two below 256, multiples of 256 from there (the
paper's E.4).
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")


def token_bucket(num_tokens: int) -> int:
    """The smallest bucket that holds `num_tokens` (at least 1)."""
    if num_tokens <= 256:
        return 1 << max(0, num_tokens - 1).bit_length()
    return -(-num_tokens // 256) * 256


def buckets_up_to(max_tokens: int) -> list[int]:
    """All buckets for 1 to `max_tokens` tokens, ascending."""
    top = token_bucket(max_tokens)
    powers = [1 << i for i in range(9) if 1 << i <= top]
    return powers + list(range(512, top + 1, 256))


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
