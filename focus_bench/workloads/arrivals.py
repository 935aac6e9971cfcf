"""When requests arrive in an open loop: all at once, Poisson, or burstier and smoother than that.

Knows no requests; the closed loop is the driver's matter.
"""

import math

import numpy as np

from focus_bench.core.rng import FloatArray, generator


def arrival_times(count: int, *, request_rate: float, burstiness: float, seed: int) -> FloatArray:
    """Arrival times in seconds from the start, shape [count], ascending from 0.0.

    The gaps are gamma distributed with mean 1 / `request_rate` and shape `burstiness`: 1 is a
    Poisson process, below it bursts, above it is smoother (the meaning that vLLM's benchmark gives
    to --burstiness). An infinite rate sends all at 0.0.
    """
    if count == 0 or math.isinf(request_rate):
        return np.zeros(count)
    scale = 1.0 / (request_rate * burstiness)
    gaps = generator(seed, "workload/arrivals").gamma(burstiness, scale, size=count - 1)
    return np.concatenate(([0.0], np.cumsum(gaps)))
