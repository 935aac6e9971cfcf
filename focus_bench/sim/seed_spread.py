"""What another seed of the decoding makes of a run's figures, without simulating it again.

Resamples how many steps each request takes and lets requests take slots in their order, as the
scheduler does. Knows no costs: a step is a unit of time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.core.records import RequestRecord, RunRecord

FloatArray = npt.NDArray[np.float64]

_PERCENTILES = (50, 90, 99)
_ROWS = "rows"  # sequences in the mean step


@dataclass(frozen=True, kw_only=True)
class _Requests:
    """Finished requests in the order of their arrival; steps and offsets are counts of steps.

    `offset`: from admission to the first visible token; `waited`: for a slot; `decoded`: positions
    unmasked; `tokens`: in the output.
    """

    arrival: FloatArray
    steps: FloatArray
    offset: FloatArray
    waited: npt.NDArray[np.bool_]
    decoded: FloatArray
    tokens: FloatArray


def seed_ratios(
    record: RunRecord,
    rng: np.random.Generator,
    replicas: int,
    *,
    slots: int,
    is_open: bool,
    request_rate: float | None = None,
) -> dict[str, FloatArray]:
    """Figures of other seeds over those of the run itself [replicas], by figure.

    A request takes steps in proportion to what it decodes, plus a residual that grows with the root
    of it; other seeds draw residuals, and the steps up to the first token, from all requests that
    waited for a slot or all that did not. `slots`: sequences that run at once;
    `is_open`: requests arrive on their own, not one for another (closed loop). `request_rate`: a
    second, of arrivals that another seed draws as well (from the gaps between those of the run).
    """
    done = [r for r in record.requests if _is_usable(r)]
    if not done or not any(s.num_rows for s in record.steps):
        return {}
    step_s = sum(s.timing.duration_s for s in record.steps) / len(record.steps)
    requests = _requests_of(done, step_s, is_open=is_open)
    slope = requests.steps.sum() / requests.decoded.sum()
    root = np.sqrt(requests.decoded)
    residual = (requests.steps - slope * requests.decoded) / root
    count = len(done)
    donors = np.empty((replicas, count), dtype=np.int64)
    for alike in (requests.waited, ~requests.waited):
        members = np.flatnonzero(alike)
        if len(members):
            donors[:, alike] = members[rng.integers(0, len(members), (replicas, len(members)))]
    # The run at hand is one draw itself: its steps per decoded position are not the mean's.
    # (Few requests do not tell well how far others are: Student's distribution is that much wider.)
    residual = residual * np.sqrt((count - 1) / (count - 3) if count > 4 else 2.0)
    error = residual.std() * np.sqrt(requests.decoded.sum()) / requests.decoded.sum()
    slopes = slope + error * rng.standard_normal((replicas, 1))
    steps = np.maximum(1.0, slopes * requests.decoded + root * residual[donors])
    offset = np.minimum(requests.offset[donors], steps)
    slots = min(slots, count)
    arrival = requests.arrival[None]
    own = _figures(
        requests, arrival, requests.steps[None], requests.offset[None], slots, is_open=is_open
    )
    if request_rate is not None and requests.arrival[-1] > 0.0:
        gaps = np.diff(requests.arrival)  # whose mean is a draw itself
        gaps = gaps / gaps.mean() / (request_rate * step_s)
        arrival = np.zeros((replicas, count))
        drawn = gaps[rng.integers(0, count - 1, (replicas, count - 1))]
        np.cumsum(drawn, axis=1, out=arrival[:, 1:])
    others = _figures(requests, arrival, steps, offset, slots, is_open=is_open)
    ratios = {name: values / own[name] for name, values in others.items()}
    # With more sequences in the mean step, steps take longer, as they do within the run.
    longer = ratios.pop(_ROWS) ** _elasticity(record)
    ratios = {name: values * longer for name, values in ratios.items()}
    return ratios | {
        "output_throughput": ratios["output_throughput"] / longer**2,
        "step_time_mean_s": longer,
    }


def _elasticity(record: RunRecord) -> float:
    """Relative change of a step's time over that of its sequences, 0 to 1, from the run's steps."""
    some = [(s.num_rows, s.timing.duration_s - s.timing.prefill_s) for s in record.steps]
    rows, seconds = np.array([pair for pair in some if pair[0] > 0 and pair[1] > 0.0]).T
    x, y = np.log(rows), np.log(seconds)
    if x.std() < 0.01:
        return 0.0
    slope = float(((x - x.mean()) * (y - y.mean())).mean() / x.var())
    return min(1.0, max(0.0, slope))


def _is_usable(request: RequestRecord) -> bool:
    known = request.first_token_s is not None and request.admitted_s is not None
    return known and bool(request.decoded_tokens) and request.output_tokens > 0


def _requests_of(done: list[RequestRecord], step_s: float, *, is_open: bool) -> _Requests:
    done = sorted(done, key=lambda r: (r.arrival_s, r.request_id))
    first = [((r.first_token_s or 0.0) - (r.admitted_s or 0.0)) / step_s for r in done]
    return _Requests(
        arrival=np.array([r.arrival_s / step_s if is_open else 0.0 for r in done]),
        steps=np.array([(r.decode_steps or 0) + (r.commit_passes or 0) for r in done], float),
        offset=np.array(first),
        waited=np.array([(r.admitted_s or 0.0) > r.arrival_s + step_s for r in done]),
        decoded=np.array([r.decoded_tokens or 0 for r in done], float),
        tokens=np.array([r.output_tokens for r in done], float),
    )


def _figures(
    requests: _Requests,
    arrival: FloatArray,
    steps: FloatArray,
    offset: FloatArray,
    slots: int,
    *,
    is_open: bool,
) -> dict[str, FloatArray]:
    """Figures [replicas] in steps, for when each request comes and what it takes [replicas or 1,
    requests].
    """
    start = _starts(arrival, steps, slots)
    finish = start + steps
    arrival = arrival if is_open else start
    makespan = finish.max(axis=1)
    figures = {
        "output_throughput": requests.tokens.sum() / makespan,
        _ROWS: steps.sum(axis=1) / makespan,
    }
    many = requests.tokens > 1
    latencies = {"ttft": start + offset - arrival, "e2e": finish - arrival}
    if many.any():
        latencies["tpot"] = (steps - offset)[:, many] / (requests.tokens[many] - 1.0)
    for name, values in latencies.items():
        found = np.percentile(values, _PERCENTILES, axis=1)
        for percentile, line in zip(_PERCENTILES, found, strict=True):
            figures[f"{name}_p{percentile}_s"] = np.maximum(line, 1e-9)
    return figures


def _starts(arrival: FloatArray, steps: FloatArray, slots: int) -> FloatArray:
    """When each request gets a slot, first come, first served [replicas, requests]; `arrival`
    [replicas or 1, requests].
    """
    replicas, count = steps.shape
    free = np.zeros((replicas, slots))
    start = np.empty((replicas, count))
    row = np.arange(replicas)
    for i in range(count):
        place = free.argmin(axis=1)
        start[:, i] = np.maximum(free[row, place], arrival[:, i])
        free[row, place] = start[:, i] + steps[:, i]
    return start
