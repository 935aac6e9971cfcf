"""CUDA graphs of a step's stages, captured by token bucket and replayed at fixed addresses.

Knows stages by name only.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")


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
