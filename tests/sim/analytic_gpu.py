"""A GPU whose every operation's time is a formula, to calibrate on and to hold predictions against.

Its formulas are not those of the model under test: products run in tiles of 128 rows with an
efficiency that grows with the tiles, attention in waves over 132 processors, and a step is put
together here anew.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sim_cases import make_point, make_workload

from focus_bench.core.calibration import (
    TIMED_PARTS,
    CalibrationSamples,
    StepCounts,
    dimensions_of,
    samples_of,
)
from focus_bench.core.config import SchedulerConfig
from focus_bench.core.costs import StepShape
from focus_bench.core.expert_load import UNIFORM_LOAD, MeasuredLoad, TouchedExperts
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.op_curves import (
    CURVES,
    GpuCalibration,
    MeasuredExperts,
    OpCurve,
    curves_of_model,
)
from focus_bench.core.records import StepTiming
from focus_bench.core.token_buckets import (
    MAX_GRAPH_CHUNKS,
    captured_buckets,
    prefill_buckets,
    token_bucket,
)
from focus_bench.engine.calibration_grid import PlannedPoint
from focus_bench.sim.simulate import simulate_point

PROCESSORS = 132


@dataclass(kw_only=True)
class AnalyticGpu:
    """`noise` and `run_noise`: standard deviations of a step's time and of a run's, over them;
    `load`: how tokens spread over experts, `unlike`: how many of a sequence's tokens choose theirs
    for themselves in a step.
    """

    spec: ModelSpec
    flops_per_s: float = 9.0e14
    bytes_per_s: float = 4.2e12
    noise: float = 0.0
    run_noise: float = 0.0
    host_step_s: float = 4e-4
    seed: int = 0
    cuda_graphs: str = "auto"
    capacity: int = 0
    load: TouchedExperts = UNIFORM_LOAD
    unlike: float = np.inf
    label: str = "analytic"

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.run_factor = 1.0
        self.steps: list[tuple[StepCounts, dict[str, float]]] | None = None

    # -- operations --------------------------------------------------------------------------------

    def product(self, rows: float, inner: int, outer: int) -> float:
        tiles = -(-rows // 128) if rows > 64 else 0.5
        efficiency = 0.80 * tiles * outer / (tiles * outer + 4096.0)
        compute = 2.0 * tiles * 128 * inner * outer / (self.flops_per_s * efficiency)
        memory = 2.0 * (inner * outer + rows * (inner + outer)) / (0.88 * self.bytes_per_s)
        return (compute**4 + memory**4) ** 0.25 + 1.5e-6

    def move(self, num_bytes: float) -> float:
        return num_bytes / (0.75 * self.bytes_per_s) + 1.8e-6

    def route(self, rows: float) -> float:
        assert self.spec.experts is not None
        return 2.0 * self.product(rows, self.spec.hidden_size, self.spec.experts.num_experts)

    def mix(self, experts: ExpertSpec, rows: float, choices: float | None = None) -> float:
        """Touched experts are read, each with its share of the rows in tiles of 16."""
        choices = rows if choices is None else choices
        touched = max(1e-9, self.load.expected_touched(experts, choices))
        each = rows * experts.experts_per_token / touched
        tiled = touched * 16.0 * max(1.0, each / 16.0)
        weight = 3.0 * self.spec.hidden_size * experts.expert_size
        memory = 2.0 * touched * weight / (0.7 * self.bytes_per_s)
        compute = 2.0 * tiled * weight / (0.5 * self.flops_per_s)
        moved = self.move(4.0 * rows * (experts.experts_per_token + 2) * self.spec.hidden_size)
        shared = 0.0
        if experts.shared_size:
            shared = self.product(rows, self.spec.hidden_size, 3 * experts.shared_size)
        return (memory**4 + compute**4) ** 0.25 + moved + shared + 8e-6

    def op(self, name: str, *at: float) -> float:
        s = self.spec
        h, q, kv, wide = s.hidden_size, s.q_size, s.kv_size, s.intermediate_size
        if name == "project":
            return sum(self.op(n, *at) for n in ("rms_norm", "qkv", "qk_norm_rope"))
        if name == "finish" and s.experts is not None:
            return sum(self.op(n, *at) for n in ("o", "rms_norm", "route", "experts"))
        if name in ("finish", "dense_finish"):
            names = ("o", "rms_norm", "gate_up", "silu_mul", "down")
            return sum(self.op(n, *at) for n in names)
        if name in ("route", "experts"):
            assert s.experts is not None
            return self.route(*at) if name == "route" else self.mix(s.experts, *at)
        if name == "layer_sustained":
            return self.op("project", *at) + self.op("finish", *at)
        if name == "attention_decode":
            n = int(at[0])
            return self.attention(np.full(n, at[1]), np.full(n, at[2]))
        if name == "attention_longest":
            n = int(at[0])
            return self.attention(np.full(n, 10.0), np.append(at[1], np.full(n - 1, 256.0)))
        if name == "attention_ragged":
            spread = np.linspace(0.2, 1.8, int(at[0])) if at[0] > 1 else np.ones(1)
            return self.attention(at[1] * np.roll(spread, len(spread) // 3), at[2] * spread)
        if name == "attention_prefill":
            n = int(at[0])
            keys = at[2] + 0.5 * at[1]
            return self.attention(np.full(n, at[1]), np.full(n, keys))
        formulas = {
            "qkv": lambda r: self.product(r, h, q + 2 * kv),
            "o": lambda r: self.product(r, q, h),
            "gate_up": lambda r: self.product(r, h, 2 * wide),
            "down": lambda r: self.product(r, wide, h),
            "rms_norm": lambda r: self.move(4.0 * r * h),
            "qk_norm_rope": lambda r: self.move(4.0 * r * (q + 2 * kv)),
            "silu_mul": lambda r: self.move(6.0 * r * wide),
            "embed_rope": lambda r: self.move(4.0 * r * h),
            "head": lambda r: self.product(r, h, s.vocab_size) + self.move(4.0 * r * h),
            "importance": lambda n, m: 8e-6 + n * (m * 2e-9 + m * m * 4e-11),
            "selection": lambda n: 6e-6 + 1e-8 * n,
            "compaction": lambda n, fed, kept: self.move(4.0 * n * kept * (h + q)) + 2e-9 * n * fed,
            "swap_out": lambda t: 3e-5 + t * s.kv_bytes_per_token / 5e10,
            "swap_in": lambda t: 2e-5 + t * s.kv_bytes_per_token / 5.5e10,
            "launch_first": lambda r: 2.2e-4,
            "launch_later": lambda r: 1.0e-4 * s.num_layers,
            "launch_prefill": lambda r: 1.1e-4 * s.num_layers,
            "launch_eviction": lambda n: 9e-5,
            "launch_head": lambda r: 4e-5,
            "replay_first": lambda r: 1.2e-5,
            "replay_later": lambda r: 1.6e-5,
            "host_readback": lambda n: 2.5e-5,
            "host_step_eager": lambda n: self.host_step_s + 3e-6 * n,
            "host_step_graph": lambda n: 0.8 * self.host_step_s + 3e-6 * n,
        }
        return float(formulas[name](*at))

    def attention(self, queries: np.ndarray, keys: np.ndarray) -> float:
        """Each sequence's work, in pieces spread over the processors; the longest one ends last."""
        s = self.spec
        loads = 4.0 * keys * s.kv_size / (0.7 * self.bytes_per_s) * PROCESSORS
        pairs = 4.0 * queries * keys * s.q_size / (0.35 * self.flops_per_s) * PROCESSORS
        work = np.maximum(loads, pairs) + 4e-6 * s.num_kv_heads
        longest = float(work.max()) / (s.num_kv_heads * 4)
        return float(max(work.sum() / PROCESSORS, longest)) + 3e-6

    # -- steps -------------------------------------------------------------------------------------

    def _stage(self, tokens: int) -> tuple[int, bool]:
        bucket = token_bucket(max(1, tokens))
        captured = captured_buckets(
            self.cuda_graphs, self.capacity, experts=self.spec.experts is not None
        )
        return (bucket, True) if bucket in captured else (tokens, False)

    def finishes(
        self, layers: range, rows: float, tokens: float, choices: float | None = None
    ) -> float:
        """Layers of which those with experts route nothing of the rows beyond the tokens."""
        s, seconds = self.spec, 0.0
        for layer in layers:
            if s.experts is None or layer < s.num_dense_layers:
                seconds += self.op("finish" if s.experts is None else "dense_finish", rows)
            else:
                seconds += self.op("finish", rows)
                seconds += self.mix(s.experts, tokens, choices) - self.op("experts", rows)
        return seconds

    def step_timing(self, shape: StepShape) -> StepTiming:
        layers = self.spec.num_layers
        parts = dict.fromkeys(TIMED_PARTS, 0.0)
        prefill = shape.prefill
        if shape.swapped_pages:
            tokens = shape.swapped_pages * shape.page_size
            parts["swap"] = 0.5 * (self.op("swap_out", tokens) + self.op("swap_in", tokens))
        if prefill.num_chunks:
            tokens = float(prefill.length.sum())
            rows, graph = tokens, False
            captured = prefill_buckets(self.cuda_graphs, 32, experts=self.spec.experts is not None)
            if prefill.num_chunks <= MAX_GRAPH_CHUNKS and token_bucket(int(tokens)) in captured:
                rows, graph = float(token_bucket(int(tokens))), True
            attention = self.attention(prefill.length, prefill.start + 0.5 * prefill.length)
            parts["prefill"] = self.op("embed_rope", rows) + layers * self.op("project", rows)
            parts["prefill"] += (layers - 1) * attention
            parts["prefill"] += self.finishes(range(layers - 1), rows, tokens)
            launches = self.op("replay_later" if graph else "launch_prefill", 32)
            parts["prefill"] = max(parts["prefill"], launches)
        graph = False
        for f in shape.forwards:
            n = len(f.fed)
            rows, graph = self._stage(int(f.fed.sum()))
            first = self.op("embed_rope", rows) + 2 * self.op("project", rows)
            first += self.finishes(range(1), rows, float(f.fed.sum()))
            first += self.attention(f.fed, f.first_keys)
            host = self.op("replay_first" if graph else "launch_first", rows)
            now = max(first, host)
            parts["prefix"] = now
            if f.masked_fed.any():
                masked = f.masked_fed[f.masked_fed > 0]
                evict = self.op("importance", len(masked), 0.0) + float(
                    (masked * 2e-9 + masked**2 * 4e-11).sum()
                )
                evict += self.op("selection", n)
                evict += self.op("compaction", n, f.fed.mean(), f.kept.mean())
                host += self.op("launch_eviction", n)
                end = max(now + evict, host)
                parts["eviction"], now = end - now, end
                host = max(host, now) + self.op("host_readback", n)
            rows, replayed = self._stage(int(f.kept.sum()))
            later = (layers - 2) * self.op("project", rows)
            choices = float(np.minimum(f.kept, self.unlike).sum())
            later += self.finishes(range(1, layers), rows, float(f.kept.sum()), choices)
            if f.kept.any():
                later += (layers - 1) * self.attention(f.kept, f.later_keys)
            start = max(now, host)
            host += self.op("replay_later" if replayed else "launch_later", rows)
            end = max(start + later, host)
            parts["suffix"], now = end - now, end
            if f.head_rows:
                start = max(now, host)
                host += self.op("launch_head", 1)
                end = max(start + self.op("head", f.head_rows), host)
                parts["head"] = end - now
        rows = len(shape.forwards[0].fed) if shape.forwards else 1
        parts["host"] = self.op("host_step_graph" if graph else "host_step_eager", rows)
        factor = self.run_factor
        if self.noise:
            factor *= 1.0 + self.noise * self.rng.standard_normal()
        parts = {name: seconds * factor for name, seconds in parts.items()}
        if self.steps is not None:
            self.steps.append((StepCounts.of(shape), parts))
        return StepTiming(
            duration_s=sum(parts.values()),
            **{f"{name}_s": seconds for name, seconds in parts.items()},
        )


ROWS = (
    *(1, 8, 16, 32, 48, 64),
    *range(128, 1024 + 1, 64),
    *range(1152, 2048 + 1, 128),
    *range(2304, 8192 + 1, 256),
)
SEQUENCES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
CONTEXTS = (64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0)
AXES = {
    "rows": tuple(float(r) for r in ROWS),
    "sequences": SEQUENCES,
    "queries": (1.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0),
    "context": CONTEXTS,
    "history": (0.0, 512.0, 2048.0),
    "masked": (1.0, 8.0, 16.0, 24.0, 32.0),
    "fed": (8.0, 32.0),
    "kept": (1.0, 8.0, 32.0),
    "tokens": (64.0, 1024.0, 4096.0),
}
PREFILL_AXES = {"sequences": (1.0, 2.0, 8.0, 32.0), "queries": (32.0, 128.0, 512.0, 1024.0, 2048.0)}

RAGGED_AXES = {
    "sequences": (16.0, 64.0, 256.0),
    "queries": (5.0, 10.0, 16.0),
    "context": (320.0, 640.0, 2048.0),
}


def measured_curve(gpu: AnalyticGpu, name: str, axes: dict[str, tuple[float, ...]]) -> OpCurve:
    names = CURVES[name].axes
    grid = np.meshgrid(*(np.array(axes[a]) for a in names), indexing="ij")
    points = np.stack([g.ravel() for g in grid], axis=1)
    seconds = np.array([gpu.op(name, *point) for point in points])
    seconds = seconds * (1.0 + 0.3 * gpu.noise * gpu.rng.standard_normal(len(seconds)))
    return OpCurve(
        name=name,
        axes=names,
        points=points,
        seconds=seconds,
        spread=np.full(len(seconds), gpu.noise),
        held_out_p50=None,
        held_out_max=None,
    )


def calibrate(gpu: AnalyticGpu, *, most_rows: float = 8192.0) -> GpuCalibration:
    """The calibration that a measurement of this GPU would give, of no more than `most_rows`."""
    axes = AXES | {"rows": tuple(r for r in AXES["rows"] if r <= most_rows)}
    own = {"attention_prefill": PREFILL_AXES, "attention_ragged": RAGGED_AXES}
    names = curves_of_model(gpu.spec.experts)
    curves = {name: measured_curve(gpu, name, axes | own.get(name, {})) for name in names}
    return GpuCalibration(
        device="NVIDIA H200",
        date="2026-01-02",
        settings={"page_size": "64"},
        model=gpu.spec.name,
        dimensions=dimensions_of(gpu.spec),
        kernel_revision="0",
        duration_s=1.0,
        curves=curves,
        ceilings={
            "copy_bytes_per_s": 0.9 * gpu.bytes_per_s,
            "gemm_flops_per_s": 0.8 * gpu.flops_per_s,
        },
        steps={},
        experts=measured_experts(gpu, axes["rows"]),
    )


def measured_experts(gpu: AnalyticGpu, rows: Sequence[float]) -> MeasuredExperts | None:
    """What counting at these rows would give."""
    experts = gpu.spec.experts
    if experts is None:
        return None
    load = MeasuredLoad(
        rows=tuple(int(n) for n in rows),
        touched=tuple(gpu.load.expected_touched(experts, n) for n in rows),
        largest_share=tuple(1.0 / experts.experts_per_token for _ in rows),
    )
    return MeasuredExperts(spec=experts, dense_width=gpu.spec.intermediate_size, load=load)


def calibrate_at(gpu: AnalyticGpu, planned: Sequence[PlannedPoint]) -> GpuCalibration:
    """The same at the points that the engine's calibration measures."""
    calibration = calibrate(gpu)
    curves = dict(calibration.curves)
    for name, curve in calibration.curves.items():
        points = sorted(p.point for p in planned if p.curve == name and p.point)
        if points:
            curves[name] = dataclasses.replace(
                curve,
                points=np.array(points, dtype=np.float64),
                seconds=np.array([gpu.op(name, *(float(x) for x in point)) for point in points]),
                spread=np.full(len(points), gpu.noise),
            )
    return dataclasses.replace(calibration, curves=curves)


def with_steps(
    calibration: GpuCalibration, mode: str, steps: list[tuple[StepCounts, dict[str, float]]]
) -> GpuCalibration:
    """With measured steps of a mode."""
    counts, seconds = samples_of(steps)
    samples = CalibrationSamples(
        device=calibration.device,
        kind="gpu",
        date=calibration.date,
        settings={},
        model=calibration.model,
        dimensions=calibration.dimensions,
        counts=counts,
        seconds=seconds,
    )
    return dataclasses.replace(calibration, steps={**calibration.steps, mode: samples})


def run_steps(
    gpu: AnalyticGpu, policy: str, batch: int, *, cuda_graphs: str = "auto", seed: int = 0
) -> list[tuple[StepCounts, dict[str, float]]]:
    """Measured steps of a short run on the GPU, as calibration takes them."""
    rng = np.random.default_rng([seed, batch, len(policy)])
    steps: list[tuple[StepCounts, dict[str, float]]] = []
    gpu.cuda_graphs, gpu.capacity, gpu.steps = cuda_graphs, batch * 32, steps
    gpu.run_factor = 1.0 + gpu.run_noise * gpu.rng.standard_normal()
    point = make_point(policy, scheduler=SchedulerConfig(batch_size=batch), seed=seed)
    prompts = rng.integers(20, 900, size=batch + batch // 4 + 1)
    simulate_point(
        point,
        make_workload(list(prompts), 40),
        gpu.spec,
        cost_model=gpu,
        num_pages=100_000,
    )
    gpu.steps = None
    return steps
