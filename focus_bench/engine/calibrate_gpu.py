"""Measures a model's operations on a GPU, one by one and in short runs, within a limit of time.

Puts grid, operations and timer together; knows nothing of what is predicted from the figures.
"""

import dataclasses
import datetime
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from focus_bench.core.calibration import CalibrationSamples, dimensions_of
from focus_bench.core.curve_samples import Point, Sample, curves_of
from focus_bench.core.errors import CapacityError, check_range
from focus_bench.core.op_curves import CURVES, STEP_MODES, GpuCalibration, MeasuredExperts
from focus_bench.engine.calibrate import ShortRun, measure, spread
from focus_bench.engine.calibration_grid import (
    CACHE_TOKENS,
    MAX_ROWS,
    Limits,
    PlannedPoint,
    planned_points,
)
from focus_bench.engine.device import device_name
from focus_bench.engine.gpu_facts import gpu_settings, kernel_revision
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.measured_attention import MeasuredAttention
from focus_bench.engine.measured_eviction import MeasuredEviction
from focus_bench.engine.measured_host import MeasuredHost
from focus_bench.engine.measured_layers import MeasuredLayers
from focus_bench.engine.memory import memory_budget_bytes
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.op_timer import Call, OpTimer

PAGE_SIZE = 64
# Attention is measured over this many layers' keys in turn.
_ATTENTION_LAYERS = 2
_MEMORY_SHARE = 0.8
_GRAPHS_OF_MODE = {"eager": "off", "graph": "auto"}
_POLICIES = ("baseline", "delayed-cache-neighbor", "focus")
# Steps of wide batches take long and differ less. Of dense models only FOCUS's have few enough rows
# for graphs; of models with experts nothing is launched kernel by kernel unless it is asked for.
_WIDE = 128
_WIDE_POLICIES = {
    "dense": {"eager": ("baseline", "focus"), "graph": ("focus",)},
    "experts": {"eager": ("focus",), "graph": ("baseline", "focus")},
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured; tests take less.

    `rows`: most tokens of a call, `cache_tokens` of the attention's cache; the ceilings' copy in
    bytes and product in rows; the short runs' batches.
    """

    rows: int = MAX_ROWS
    cache_tokens: int = CACHE_TOKENS
    copy_bytes: int = 1 << 30
    gemm_rows: int = 8192
    batches: tuple[int, ...] = (1, 16, 64, 256)


@torch.inference_mode()
def measure_operations(
    model: BlockDiffusionModel,
    *,
    timer: OpTimer,
    seconds: float,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
    scale: Scale | None = None,
    only: Callable[[PlannedPoint], bool] = lambda _: True,
) -> tuple[GpuCalibration, list[Sample]]:
    """Curves, ceilings and steps of a model on its device, and every sample of the curves.

    The coarse points of all curves and the short runs are always measured; then the other points,
    and all of them again, until `seconds` are over but for what the short runs take, which come
    last once more. `only` leaves points out. Raises UsageError for a model whose layers cannot be
    measured, CapacityError for a device without room for the caches.
    """
    check_range("--seconds", seconds, low=0.0)
    scale = scale or Scale()
    begin = clock()
    operations = _Operations(model, timer, scale, seed)
    plan = [point for point in planned_points(operations.limits, model.spec.experts) if only(point)]
    coarse = [point for point in plan if point.coarse]
    ceilings = _ceilings(model, timer, scale)
    samples = [sample for point in coarse for sample in operations.sampled(point, 0)]
    steps_begin = clock()
    steps = {mode: _steps(model, mode, scale, seed) for mode in STEP_MODES}
    steps_s = clock() - steps_begin
    rest = (point for point in plan if not point.coarse)
    for round_, point in itertools.chain(((0, p) for p in rest), _again(plan)):
        if clock() - begin >= seconds - steps_s:
            break
        samples += operations.sampled(point, round_)
    if clock() - begin < seconds:
        again = {mode: _steps(model, mode, scale, seed) for mode in STEP_MODES}
        steps = {mode: _faster(steps[mode], again[mode]) for mode in STEP_MODES}
    for mode in STEP_MODES:
        samples += _host_samples(steps[mode], f"host_step_{mode}", scale.batches)
    calibration = GpuCalibration(
        device=device_name(model.device),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        settings=gpu_settings(model, page_size=PAGE_SIZE),
        model=model.spec.name,
        dimensions=dimensions_of(model.spec),
        kernel_revision=kernel_revision(),
        duration_s=clock() - begin,
        curves=curves_of(samples),
        ceilings=ceilings,
        steps=steps,
        experts=operations.experts,
    )
    return calibration, samples


def _again(plan: Sequence[PlannedPoint]) -> Iterable[tuple[int, PlannedPoint]]:
    """The plan from round 1 on, without end."""
    return ((round_, point) for round_ in itertools.count(1) for point in plan) if plan else ()


class _Operations:
    """Every curve's calls, over two caches: of all layers for products, of long contexts."""

    def __init__(self, model: BlockDiffusionModel, timer: OpTimer, scale: Scale, seed: int) -> None:
        spec, self._timer = model.spec, timer
        budget = memory_budget_bytes(model.device, _MEMORY_SHARE)
        # (Keys and values do not depend on the feed-forward.)
        layers = min(_ATTENTION_LAYERS, spec.num_layers)
        attention_spec = spec.replace(num_layers=layers, experts=None)
        left = budget - spec.kv_bytes_per_token * scale.rows
        tokens = min(scale.cache_tokens, left // attention_spec.kv_bytes_per_token)
        if tokens < scale.rows:
            raise CapacityError(
                "memory for calibrating",
                f"{budget:,} bytes had beside the weights of {spec.name}",
                "a GPU with more memory, or a smaller model",
            )
        whole, long = (
            PagedKVCache(
                of,
                num_pages=count // PAGE_SIZE,
                page_size=PAGE_SIZE,
                device=model.device,
                dtype=model.dtype,
            )
            for of, count in ((spec, scale.rows), (attention_spec, tokens))
        )
        self.limits = Limits(
            cache_tokens=tokens,
            sequence_tokens=spec.max_position_embeddings,
            page_size=PAGE_SIZE,
            rows=scale.rows,
        )
        eviction = MeasuredEviction(model)
        self._layers = MeasuredLayers(model, whole, max_rows=scale.rows)
        self._attention = MeasuredAttention(long, num_q_heads=spec.num_q_heads, seed=seed)
        self._eviction = eviction
        self._host = MeasuredHost(
            model, whole, eviction, max_rows=scale.rows, captured=timer.captured
        )

    @property
    def experts(self) -> MeasuredExperts | None:
        """The experts of what was measured so far; None of a dense model."""
        return self._layers.experts

    def sampled(self, planned: PlannedPoint, round_: int) -> list[Sample]:
        """Samples of one point."""
        curve, point = planned.curve, planned.point
        calls = self._calls(curve, point)
        if CURVES[curve].clock == "host":
            times = self._timer.host_s(calls[0])
        elif curve == "layer_sustained":
            times = self._timer.sustained_s(calls)
        else:
            times = self._timer.device_s(calls)
        return [
            Sample(curve=curve, point=point, round=round_, sample=index, seconds=seconds)
            for index, seconds in enumerate(times)
        ]

    def _calls(self, curve: str, point: Point) -> Sequence[Call]:
        for group in (self._layers, self._attention, self._eviction, self._host):
            if curve in group:
                return group.calls(curve, point)
        raise AssertionError(f"no operation is called {curve}")


def _ceilings(model: BlockDiffusionModel, timer: OpTimer, scale: Scale) -> dict[str, float]:
    """Rates of CEILINGS; the product's after a second of it, when the clock has settled."""
    device, rows = model.device, scale.gemm_rows
    # By a kernel: a copy in a graph is left to the copy engines (2.7 of 4.2 TB/s on an H200).
    source = torch.randn(scale.copy_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    copy_s = timer.device_s([lambda: torch.neg(source, out=target)])
    a, b = (torch.randn((rows, rows), device=device, dtype=model.dtype) for _ in range(2))
    gemm_s = timer.sustained_s([lambda: torch.mm(a, b)])
    return {
        "copy_bytes_per_s": 2.0 * scale.copy_bytes / float(np.median(copy_s)),
        "gemm_flops_per_s": 2.0 * rows**3 / float(np.median(gemm_s)),
    }


def _steps(model: BlockDiffusionModel, mode: str, scale: Scale, seed: int) -> CalibrationSamples:
    """Steps of short runs at every batch, each measured once."""
    wide = _WIDE_POLICIES["dense" if model.spec.experts is None else "experts"][mode]
    runs = [
        ShortRun(
            policy=policy,
            batch_size=batch,
            prompts=spread(batch, 64, 400),
            output_tokens=32 if batch > 1 else 64,
            cuda_graphs=_GRAPHS_OF_MODE[mode],
        )
        for batch in scale.batches
        for policy in (_POLICIES if batch < _WIDE else wide)
    ]
    return measure(model, seconds=0.0, seed=seed, runs=runs)


def _faster(first: CalibrationSamples, second: CalibrationSamples) -> CalibrationSamples:
    """Of every step, measured twice, the faster: what disturbs a host lasts for seconds only."""
    is_second = sum(second.seconds.values()) < sum(first.seconds.values())
    seconds = {
        part: np.where(is_second, second.seconds[part], s) for part, s in first.seconds.items()
    }
    return dataclasses.replace(first, seconds=seconds)


def _host_samples(steps: CalibrationSamples, curve: str, batches: Sequence[int]) -> list[Sample]:
    """What the host takes in steps of a whole batch that prefill nothing."""
    counts, host_s = steps.counts, steps.seconds["host"]
    samples = []
    for batch in batches:
        alike = (counts["rows"] == batch) & (counts["prefill_tokens"] == 0) & (host_s > 0)
        samples += [
            Sample(curve=curve, point=(batch,), round=0, sample=index, seconds=float(seconds))
            for index, seconds in enumerate(host_s[alike])
        ]
    return samples
