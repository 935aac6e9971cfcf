"""What turns the shape of a step into seconds: the protocol of the simulator's time models."""

from typing import Protocol

from focus_bench.core.costs import StepShape
from focus_bench.core.records import StepTiming


class CostModel(Protocol):
    """Predicts how long steps take on one device."""

    @property
    def label(self) -> str:
        """What every output says about where the seconds come from."""
        ...

    def step_timing(self, shape: StepShape) -> StepTiming:
        """Seconds of one step, host time around it (scheduling, bookkeeping) included."""
        ...
