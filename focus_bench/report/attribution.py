"""Why a prediction is off: what a step costs, how many steps blocks take, and how steps are shared.

Takes sums over the steps of both sides; knows no cost model and no file.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class RunTotals:
    """Sums over a run's steps.

    `duration_s`: of the run; `busy_s`: while there was a request, scheduling included;
    `modelled_s`: of its steps, by one and the same cost model on both sides; `sequence_steps`: rows
    of all steps; `tokens`: output tokens of finished requests.
    """

    duration_s: float
    busy_s: float
    modelled_s: float
    sequence_steps: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Factors of the predicted over the measured throughput, whose product is that ratio.

    `step_cost`: the same steps at predicted costs instead of measured ones; `steps_per_block`: as
    many sequence-steps for a token as predicted; `scheduling`: all else, that is how sequences
    share steps, prefill among them, and idle time. `measured_steps_s`: what the measured steps
    would take at predicted costs; `predicted_steps_s`: the predicted steps at measured costs.
    """

    step_cost: float
    steps_per_block: float
    scheduling: float
    measured_steps_s: float
    predicted_steps_s: float

    @property
    def total(self) -> float:
        """Predicted over measured throughput."""
        return self.step_cost * self.steps_per_block * self.scheduling


def attribute(measured: RunTotals, predicted: RunTotals) -> Attribution | None:
    """The factors; None where one of them is undefined (nothing was decoded or took time).

    A side's cost is its busy time over what the model gives its steps, so that what is left out of
    the model (ragged contexts, chunks of prefill) cancels.
    """
    values = [(float(m), float(p)) for m, p in _pairs(measured, predicted)]
    if any(not (math.isfinite(x) and x > 0.0) for pair in values for x in pair):
        return None
    cost_m = measured.busy_s / measured.modelled_s
    cost_p = predicted.busy_s / predicted.modelled_s
    per_token_m = measured.sequence_steps / measured.tokens
    per_token_p = predicted.sequence_steps / predicted.tokens
    throughput_m = measured.tokens / measured.duration_s
    throughput_p = predicted.tokens / predicted.duration_s
    step_cost, steps_per_block = cost_m / cost_p, per_token_m / per_token_p
    return Attribution(
        step_cost=step_cost,
        steps_per_block=steps_per_block,
        scheduling=throughput_p / throughput_m / step_cost / steps_per_block,
        measured_steps_s=cost_p * measured.modelled_s,
        predicted_steps_s=cost_m * predicted.modelled_s,
    )


def busy_seconds(served: npt.NDArray[np.float64]) -> float:
    """Seconds in which there was a request, from arrivals and ends [requests, 2]."""
    busy_s = end = 0.0
    for arrival, finished in served[np.argsort(served[:, 0])].tolist():
        busy_s += max(0.0, finished - max(arrival, end))
        end = max(end, finished)
    return busy_s


def _pairs(measured: RunTotals, predicted: RunTotals) -> list[tuple[float, float]]:
    return [
        (getattr(measured, name), getattr(predicted, name))
        for name in ("duration_s", "busy_s", "modelled_s", "sequence_steps", "tokens")
    ]
