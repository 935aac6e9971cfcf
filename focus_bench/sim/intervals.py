"""Intervals of a prediction's figures: the same steps at other costs, and at other seeds.

Where scheduling does not depend on time, steps that were simulated once are costed anew, not
simulated again. Knows no model of costs; what they may be off by comes as an Uncertainty.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.core.costs import StepShape
from focus_bench.core.intervals import LEVEL, Interval
from focus_bench.core.records import RunRecord, StepTiming
from focus_bench.core.rng import generator
from focus_bench.sim.cost_model import CostModel
from focus_bench.sim.seed_spread import seed_ratios
from focus_bench.sim.uncertainty import Uncertainty, parts_of

FloatArray = npt.NDArray[np.float64]

REPLICAS = 200
_FAILURES = ("error", "aborted")
_LATENCIES = ("ttft", "tpot", "e2e")
_PERCENTILES = (50, 90, 99)

# Simulates the point again, with all costs times a factor.
Rerun = Callable[[float], RunRecord]


@dataclass(frozen=True, kw_only=True)
class ScaledModel:
    """A time model whose every step takes `factor` times as long as `inner` says."""

    inner: CostModel
    factor: float

    @property
    def label(self) -> str:
        """The inner model's."""
        return self.inner.label

    def step_timing(self, shape: StepShape) -> StepTiming:
        """Seconds of one step."""
        timing = self.inner.step_timing(shape)
        return StepTiming(**{name: self.factor * s for name, s in vars(timing).items()})


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A record as arrays: seconds of every part of every step, and times of finished requests."""

    parts: FloatArray
    ends: FloatArray
    duration_s: float
    arrival: FloatArray
    first: FloatArray
    finished: FloatArray
    tokens: FloatArray

    @classmethod
    def of(cls, record: RunRecord) -> "_Run":
        """Of a simulated record."""
        done = [r for r in record.requests if r.finish_reason not in _FAILURES]
        first = [np.nan if r.first_token_s is None else r.first_token_s for r in done]
        return cls(
            parts=np.array([parts_of(s.timing) for s in record.steps]).reshape(-1, 7),
            ends=np.array([s.start_s + s.timing.duration_s for s in record.steps]),
            duration_s=record.duration_s,
            arrival=np.array([r.arrival_s for r in done]),
            first=np.array(first, dtype=np.float64),
            finished=np.array([r.finished_s for r in done]),
            tokens=np.array([r.output_tokens for r in done], dtype=np.float64),
        )

    def figures(self) -> dict[str, float]:
        """The figures as recorded."""
        times = (self.arrival, self.first, self.finished)
        found = self._figures(
            tuple(t[None] for t in times), np.array([self.duration_s]), self.parts.sum(axis=1)[None]
        )
        return {name: float(values[0]) for name, values in found.items()}

    def figures_with(self, durations: FloatArray) -> dict[str, FloatArray]:
        """The figures [replicas] of a run without idle time at other step durations [replicas,
        steps].
        """
        # Every time in such a record is the start of the run or the end of a step.
        old = np.append(0.0, self.ends)
        new = np.zeros((len(durations), len(old)))
        np.cumsum(durations, axis=1, out=new[:, 1:])
        times = tuple(_moved(t, old, new) for t in (self.arrival, self.first, self.finished))
        return self._figures(times, new[:, -1], durations)

    def _figures(
        self, times: tuple[FloatArray, ...], duration_s: FloatArray, step_s: FloatArray
    ) -> dict[str, FloatArray]:
        """Of arrivals, first tokens and ends [replicas, requests], with durations of the run
        [replicas] and of its steps [replicas, steps].
        """
        arrival, first, finished = times
        many = self.tokens > 1
        latencies = {
            "ttft": first - arrival,
            "tpot": (finished - first)[:, many] / (self.tokens[many] - 1),
            "e2e": finished - arrival,
        }
        figures = {"output_throughput": float(self.tokens.sum()) / np.maximum(duration_s, 1e-12)}
        if step_s.shape[1]:
            figures["step_time_mean_s"] = step_s.mean(axis=1)
        for name in _LATENCIES:
            # (What has no time in one replica has none in any.)
            values = latencies[name][:, ~np.isnan(latencies[name][0])]
            if values.shape[1]:
                found = np.percentile(values, _PERCENTILES, axis=1)
                figures |= {f"{name}_p{p}_s": v for p, v in zip(_PERCENTILES, found, strict=True)}
        return figures


def _moved(times: FloatArray, old: FloatArray, new: FloatArray) -> FloatArray:
    """Times [n] by a clock that shows `new` [replicas, k] where the old one showed `old` [k]."""
    place = np.minimum(old.searchsorted(times), len(old) - 1)
    if (np.diff(old) > 0.0).all() and ((old[place] == times) | np.isnan(times)).all():
        return np.where(np.isnan(times), np.nan, new[:, place])
    return np.array([np.interp(times, old, replica) for replica in new])


def figures_of(record: RunRecord) -> dict[str, float]:
    """The figures that have intervals, of any run."""
    return _Run.of(record).figures()


def intervals_of(
    record: RunRecord,
    uncertainty: Uncertainty,
    *,
    seed: int,
    slots: int,
    is_open: bool,
    depends_on_time: bool,
    depends_on_seed: bool,
    request_rate: float | None = None,
    rerun: Rerun,
) -> dict[str, Interval]:
    """The interval of every figure in which LEVEL of the runs lie, by bootstrap.

    Replicas draw what costs are off by (Uncertainty.draw) and, where the decoding is drawn, what
    another seed would make of it (seed_ratios, which says what `slots`, `is_open` and
    `request_rate` are).
    `depends_on_time`: requests arrive at given times; their point is then simulated twice more,
    slower and faster, and replicas lie between. Deterministic for a `seed`.
    """
    run = _Run.of(record)
    figures = run.figures()
    if not len(run.ends) or not len(run.tokens):
        return {}
    rng = generator(seed, "prediction intervals")
    factors = uncertainty.draw(rng, REPLICAS, num_steps=len(run.ends))
    if depends_on_time:
        replicas = _between(figures, run, factors, rerun)
    else:
        replicas = run.figures_with(np.array([run.parts @ factor for factor in factors]))
    if depends_on_seed:
        ratios = seed_ratios(
            record, rng, REPLICAS, slots=slots, is_open=is_open, request_rate=request_rate
        )
        replicas = {name: values * ratios.get(name, 1.0) for name, values in replicas.items()}
    tails = 50.0 * (1.0 - LEVEL)
    ends = {name: np.percentile(v, [tails, 100.0 - tails]) for name, v in replicas.items()}
    return {name: Interval(low=float(e[0]), high=float(e[1])) for name, e in ends.items()}


def _between(
    figures: Mapping[str, float],
    run: _Run,
    factors: FloatArray,
    rerun: Callable[[float], RunRecord],
) -> dict[str, FloatArray]:
    """Replicas' figures, straight lines between those of three speeds (in logarithms)."""
    speeds = (factors @ run.parts.sum(axis=0)) / run.parts.sum()
    outer = np.percentile(speeds, [5.0, 95.0])
    knots = [(float(f), _Run.of(rerun(float(f))).figures()) for f in outer]
    knots = sorted([*knots, (1.0, dict(figures))], key=lambda knot: knot[0])
    x = np.array([np.log(factor) for factor, _ in knots])
    replicas = {}
    for name in figures:
        y = np.log([max(values.get(name, figures[name]), 1e-12) for _, values in knots])
        replicas[name] = np.exp(np.interp(np.log(speeds), x, y))
    return replicas
