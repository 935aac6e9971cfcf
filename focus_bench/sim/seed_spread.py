"""What another seed of the decoding makes of a run's figures, without simulating it again.

Resamples how many decode steps each request takes and lets requests take slots in their order, as
the scheduler does. Knows no costs: the run's n-th step takes as long as it did, or, where requests
arrive over time, a request's steps do.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.core.records import RequestRecord, RunRecord

FloatArray = npt.NDArray[np.float64]

_PERCENTILES = (50, 90, 99)
_ROWS = "rows"  # sequences that decode, in the mean over time
_LEAST_S = 1e-6
_LAST = 20  # steps, as which a run would go on
_SAME_S = 1e-9  # between times that are the same


@dataclass(frozen=True, kw_only=True)
class _Requests:
    """Finished requests in the order of their arrival; times by a clock of the run's steps, or in
    seconds.

    `prefill`: from admission to the first decode step, which no seed changes; `step`: their mean
    decode step; `steps`: how many they take, `offset`: up to the first visible token; `decoded`:
    positions unmasked; `tokens`: in the output. `seconds`: when each step of the clock begins and
    the last one ends, None if times are in seconds; `waited` for a slot; `to_first_s`: from
    admission to the first token.
    """

    arrival: FloatArray
    prefill: FloatArray
    step: FloatArray
    steps: FloatArray
    offset: FloatArray
    decoded: FloatArray
    tokens: FloatArray
    seconds: FloatArray | None
    waited: npt.NDArray[np.bool_]
    to_first_s: FloatArray

    def in_seconds(self, times: FloatArray) -> FloatArray:
        """Times, those after the run as if its last steps went on."""
        if self.seconds is None:
            return times
        last = len(self.seconds) - 1
        each = (self.seconds[-1] - self.seconds[-1 - min(_LAST, last)]) / min(_LAST, last)
        # (In place: of all replicas' requests every copy takes milliseconds.)
        beyond: FloatArray = times - last
        np.maximum(beyond, 0.0, out=beyond)
        beyond *= each
        beyond += np.interp(times, np.arange(last + 1), self.seconds)
        return beyond


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
    of it; other seeds draw residuals, and the steps up to the first token, from all requests.
    `slots`: sequences that run at once; `is_open`: requests arrive on their own, not one for
    another (closed loop). `request_rate`: a second, of arrivals that another seed draws as well
    (from the gaps between those of the run).
    """
    done = [r for r in record.requests if _is_usable(r)]
    if not done or not any(s.num_rows for s in record.steps):
        return {}
    starts = np.array([*(s.start_s for s in record.steps), record.duration_s])
    requests = _requests_of(done, starts, is_open=is_open)
    slope = requests.steps.sum() / requests.decoded.sum()
    root = np.sqrt(requests.decoded)
    residual = (requests.steps - slope * requests.decoded) / root
    count = len(done)
    donors = rng.integers(0, count, (replicas, count))
    # The run at hand is one draw itself: its steps per decoded position are not the mean's.
    # (Few requests do not tell well how far others are: Student's distribution is that much wider.)
    residual = residual * np.sqrt((count - 1) / (count - 3) if count > 4 else 2.0)
    error = residual.std() * np.sqrt(requests.decoded.sum()) / requests.decoded.sum()
    slopes = slope + error * rng.standard_normal((replicas, 1))
    steps = np.maximum(1.0, slopes * requests.decoded + root * residual[donors])
    offset = np.minimum(requests.offset[donors], steps)
    slots = min(slots, count)
    arrival = requests.arrival[None]
    if request_rate is not None and requests.arrival[-1] > 0.0:
        gaps = np.diff(requests.arrival)  # whose mean is a draw itself
        gaps = gaps / gaps.mean() / request_rate
        arrival = np.zeros((1 + replicas, count))
        arrival[0] = requests.arrival
        drawn = gaps[rng.integers(0, count - 1, (replicas, count - 1))]
        np.cumsum(drawn, axis=1, out=arrival[1:, 1:])
    # The run itself first, so that its figures come with those of its replicas.
    all_steps = np.concatenate([requests.steps[None], steps])
    all_offsets = np.concatenate([requests.offset[None], offset])
    figures = _figures(requests, arrival, all_steps, all_offsets, slots, is_open=is_open)
    # (Where all tokens become visible at once, nothing follows the first.)
    ratios = {
        name: values[1:] / values[0] if values[0] > _LEAST_S else np.ones(replicas)
        for name, values in figures.items()
    }
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


def _requests_of(done: list[RequestRecord], starts: FloatArray, *, is_open: bool) -> _Requests:
    """`starts` [steps + 1]: when each step of the run began and the last one ended, in seconds."""
    done = sorted(done, key=lambda r: (r.arrival_s, r.request_id))
    admitted, first, finished = (
        np.array([getattr(r, name) for r in done], dtype=np.float64)
        for name in ("admitted_s", "first_token_s", "finished_s")
    )
    steps = np.array([(r.decode_steps or 0) + (r.commit_passes or 0) for r in done], float)
    # Of the run's steps from the one that admits a request, the last ones decode it.
    begin, shown, end = (
        np.searchsorted(starts, time - _SAME_S) for time in (admitted, first, finished)
    )
    place = np.clip(end - steps.astype(np.int64), begin, shown - 1)
    arrival = np.array([r.arrival_s if is_open else 0.0 for r in done])
    over_time = bool(arrival[-1] > 0.0)
    decoding = starts[place]
    return _Requests(
        arrival=arrival,
        prefill=decoding - admitted if over_time else (place - begin).astype(np.float64),
        step=(finished - decoding) / steps if over_time else np.ones(len(done)),
        steps=steps,
        offset=(shown - place).astype(np.float64),
        decoded=np.array([r.decoded_tokens or 0 for r in done], float),
        tokens=np.array([r.output_tokens for r in done], float),
        seconds=None if over_time else starts,
        waited=begin > 0,
        to_first_s=first - admitted,
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
    """Figures [replicas], for when each request comes and the decode steps that it takes, in all
    and up to its first token [replicas or 1, requests].
    """
    decoding, shown = steps * requests.step, offset * requests.step
    start = _starts(arrival, requests.prefill + decoding, slots)
    first, finish = start + requests.prefill + shown, start + requests.prefill + decoding
    rows = decoding.sum(axis=1) / finish.max(axis=1)
    start, first, finish = (requests.in_seconds(times) for times in (start, first, finish))
    if requests.seconds is not None:
        # Who waited for a slot is prefilled then, whatever the clock's steps did at that time.
        share = (requests.prefill + shown) / (requests.prefill + requests.offset)
        own = start + requests.to_first_s * share
        first = np.minimum(np.where(requests.waited, own, first), finish)
    arrival = arrival if is_open else start
    figures = {"output_throughput": requests.tokens.sum() / finish.max(axis=1), _ROWS: rows}
    many = requests.tokens > 1
    latencies = {"ttft": first - arrival, "e2e": finish - arrival}
    if many.any():
        latencies["tpot"] = (finish - first)[:, many] / (requests.tokens[many] - 1.0)
    for name, values in latencies.items():
        found = np.percentile(values, _PERCENTILES, axis=1)
        for percentile, line in zip(_PERCENTILES, found, strict=True):
            figures[f"{name}_p{percentile}_s"] = np.maximum(line, _LEAST_S)
    return figures


def _starts(arrival: FloatArray, service: FloatArray, slots: int) -> FloatArray:
    """When each request gets a slot, first come, first served [replicas, requests]; `arrival`
    [replicas or 1, requests].
    """
    replicas, count = service.shape
    free = np.zeros((replicas, slots))
    slot = free.reshape(-1)  # all of them, in a row
    first = np.arange(replicas) * slots
    start = np.empty((count, replicas))
    for begins, takes, comes in zip(start, np.ascontiguousarray(service.T), arrival.T, strict=True):
        place = first + free.argmin(axis=1)
        np.maximum(slot[place], comes, out=begins)
        slot[place] = begins + takes
    return np.ascontiguousarray(start.T)
