"""One prediction with what it rests on: the simulated record, its domain, its intervals.

Puts simulation, cost models and intervals together; knows no names of hardware.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from focus_bench.core.config import PointConfig
from focus_bench.core.intervals import (
    COSTS,
    COSTS_AND_SEEDS,
    COVERS,
    DOMAIN,
    interval_settings,
)
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Workload
from focus_bench.scheduling.recorder import Recorder
from focus_bench.sim.calibration import Profile, ProfileModel
from focus_bench.sim.cost_model import CostModel
from focus_bench.sim.curve_model import CurveModel, as_new
from focus_bench.sim.domain import EXTRAPOLATED, Shares, domain_note, domain_of, shares_text
from focus_bench.sim.gpu_profile import GpuProfile
from focus_bench.sim.intervals import ScaledModel, intervals_of
from focus_bench.sim.simulate import simulate_point
from focus_bench.sim.uncertainty import Uncertainty


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is predicted, and with what costs.

    `model` gives the costs, `wrap` what another host makes of them; `source`: the profile that the
    model comes from, None for a data sheet.
    """

    point: PointConfig
    workload: Workload
    spec: ModelSpec
    num_pages: int
    model: CostModel
    wrap: Callable[[CostModel], CostModel] | None = None
    source: Profile | GpuProfile | None = None


def predict(
    asked: Prediction,
    *,
    interval: bool,
    other_seeds: bool,
    on_progress: Callable[[Recorder], None] | None = None,
) -> RunRecord:
    """Simulate; the record's notes and settings say what its costs rest on.

    `interval`: and its settings hold the intervals of its figures, if costs were calibrated.
    `other_seeds`: they allow for what other seeds would decode, where the decoding is drawn; else
    for costs alone, as suits a run of the very seed.
    """
    record = _simulated(asked, 1.0, on_progress)
    shares = _shares(asked, record)
    settings: dict[str, str] = {DOMAIN: EXTRAPOLATED}
    notes: tuple[str, ...] = ()
    if shares is not None:
        settings = {DOMAIN: domain_of(shares), f"{DOMAIN} by time": shares_text(shares)}
        notes = (domain_note(shares),)
    uncertainty = _uncertainty(asked) if interval else None
    if uncertainty is not None:
        workload, scheduler = asked.workload, asked.point.scheduler
        rate = asked.point.workload.request_rate
        slots = min(scheduler.batch_size, workload.max_concurrency or scheduler.batch_size)
        is_wide = other_seeds and asked.point.acceptance.kind != "replay"
        found = intervals_of(
            record,
            uncertainty,
            seed=asked.point.seed,
            slots=slots,
            is_open=workload.max_concurrency is None,
            depends_on_time=any(request.arrival_s > 0.0 for request in workload.requests),
            depends_on_seed=is_wide,
            request_rate=rate if math.isfinite(rate) else None,
            rerun=lambda factor: _simulated(asked, factor, None),
        )
        covers = COSTS_AND_SEEDS if is_wide else COSTS
        settings |= {COVERS: covers, **interval_settings(found)}
    return dataclasses.replace(
        record,
        notes=(*record.notes, *notes),
        settings={**record.settings, **settings},
    )


def _simulated(
    asked: Prediction, factor: float, on_progress: Callable[[Recorder], None] | None
) -> RunRecord:
    # (The first run's own model says afterwards what its seconds rest on.)
    inner = asked.model if factor == 1.0 else as_new(asked.model)
    model = inner if asked.wrap is None else asked.wrap(inner)
    if factor != 1.0:
        model = ScaledModel(inner=model, factor=factor)
    return simulate_point(
        asked.point,
        asked.workload,
        asked.spec,
        cost_model=model,
        num_pages=asked.num_pages,
        on_progress=on_progress,
    )


def _shares(asked: Prediction, record: RunRecord) -> Shares | None:
    """What the costs rest on; None for a data sheet."""
    if isinstance(asked.model, CurveModel):
        return asked.model.tally.shares
    if isinstance(asked.model, ProfileModel):
        return _shares_of_steps(asked.model, record)
    return None


def _shares_of_steps(model: ProfileModel, record: RunRecord) -> Shares:
    """Of fitted steps: steps no larger than those measured count as measured."""
    if model.is_extrapolated:
        return (0.0, 0.0, 1.0)
    counts = model.profile.samples.counts
    most = [int(counts[name].max(initial=0)) for name in ("rows", "fed", "prefill_tokens")]
    inside_s = total_s = 0.0
    for step in record.steps:
        total_s += step.timing.duration_s
        sizes = (step.num_rows, step.fed_tokens, step.prefill_tokens)
        if all(size <= limit for size, limit in zip(sizes, most, strict=True)):
            inside_s += step.timing.duration_s
    inside = float(np.divide(inside_s, total_s)) if total_s else 1.0
    return (inside, 0.0, 1.0 - inside)


def _uncertainty(asked: Prediction) -> Uncertainty | None:
    if isinstance(asked.source, GpuProfile) and isinstance(asked.model, CurveModel):
        return asked.source.uncertainty_of(asked.model)
    if isinstance(asked.source, Profile):
        return asked.source.uncertainty
    return None
