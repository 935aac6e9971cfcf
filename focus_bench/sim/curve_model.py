"""The time model of a GPU whose operations were measured one by one: curves strung into steps.

Does what engine.device_step does, stage by stage, with the seconds of core.op_curves. Knows neither
scheduling nor what a stage computes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from focus_bench.core.calibration import dimensions_of
from focus_bench.core.costs import DecodeShape, IntArray, PrefillShape, StepShape
from focus_bench.core.errors import UsageError
from focus_bench.core.expert_load import UNIFORM_LOAD, ExpertLoad, TouchedExperts
from focus_bench.core.hardware import Hardware, sheet_of_device
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.op_curves import CURVES, GpuCalibration, curves_of_model
from focus_bench.core.records import StepTiming
from focus_bench.core.token_buckets import (
    token_bucket,
)
from focus_bench.sim.attention_cost import AttentionCost
from focus_bench.sim.corrections import NO_CORRECTIONS, Corrections
from focus_bench.sim.cost_model import CostModel
from focus_bench.sim.curves import CurveFunction, Tally, is_whole
from focus_bench.sim.op_work import Peaks, WorkShape
from focus_bench.sim.roofline import arithmetic_caveat
from focus_bench.sim.step_capacity import StepCapacity

FloatArray = npt.NDArray[np.float64]

# How long a GPU that was idle takes to lower its clock to what its power limit allows (a time
# constant): on an H200 most of it is gone 0.2 s after a run begins. See layer_sustained.
SETTLING_S = 0.15


@dataclass(kw_only=True)
class _Timeline:
    """Host and device side by side: the host launches ahead, a stage ends when both are through."""

    host_s: float = 0.0
    device_s: float = 0.0

    def stage(self, device_s: float, launch_s: float) -> float:
        """Run a stage; what an event behind it shows since the event before it."""
        begun_s, before_s = self.host_s, self.device_s
        self.host_s += launch_s
        self.device_s = max(self.host_s, max(before_s, begun_s) + device_s)
        return self.device_s - before_s

    def read_back(self, seconds: float) -> None:
        """The host waits for the device and reads from it."""
        self.host_s = max(self.host_s, self.device_s) + seconds


@dataclass(frozen=True, kw_only=True)
class CurveModel:
    """Seconds of steps of `spec` on `hardware` (None: the GPU that was measured).

    A step is its stages (prefix, eviction, suffix, head), each as long as the device is busy with
    it or the host with launching it, whichever ends later, plus what the host takes around them.
    In graphs, tokens are padded to their bucket. Attention is summed over the sequences, each at
    its own queries and keys: a sequence costs its share of a step in which all are like it, and no
    step is shorter than its longest sequence alone. Rows of products beyond one `row_tile` are
    rounded up to it. Rows of padding go to no experts. `expert_load`: how tokens spread over them
    (None: as those that were measured). `distinct_per_block`: the tokens of a block, most of them
    masked, go to no more experts than that many unrelated tokens. `tally` collects what the seconds
    rest on. `shared`: the `curves` of a model of the same calibration, spec, hardware and load,
    which remember what either was asked for; None: made anew.

    Raises UsageError for a model of a kind whose curves the calibration lacks.
    """

    spec: ModelSpec
    calibration: GpuCalibration
    capacity: StepCapacity
    hardware: Hardware | None = None
    corrections: Corrections = NO_CORRECTIONS
    row_tile: int = 1
    distinct_per_block: float = math.inf
    expert_load: ExpertLoad | None = None
    tally: Tally = field(default_factory=Tally)
    shared: Mapping[str, CurveFunction] | None = field(default=None, repr=False, compare=False)
    _slower: dict[float, float] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.calibration.covers(self.spec):
            raise UsageError(
                "--gpu",
                f"operations of {self.calibration.model} on {self.calibration.device}",
                f"a data sheet, or operations of a model with layers as {self.spec.name} has",
            )

    @property
    def label(self) -> str:
        """Names the measurement, and what it was carried over to."""
        measured = self.calibration
        label = f"calibrated on {measured.device} ({measured.date}, {measured.model})"
        to = []
        if self.hardware is not None and self.hardware != sheet_of_device(measured.device):
            to.append(self.hardware.full_name)
        if not measured.is_of(self.spec):
            sizes = dict(measured.dimensions) | {"dtype": self.spec.dtype}
            is_same = sizes == dimensions_of(self.spec)
            to.append(f"{self.spec.dtype} numbers" if is_same else self.spec.name)
        label = f"{label}, efficiencies carried over to {' and '.join(to)}" if to else label
        return label + arithmetic_caveat(self.spec)

    @cached_property
    def curves(self) -> Mapping[str, CurveFunction]:
        """The measured curves for `spec` on `hardware`, by name."""
        if self.shared is not None:
            return self.shared
        measured = self.calibration
        here, there = WorkShape.of(self.spec, self._load), _shape_of(measured)
        measured_peaks = Peaks(
            flops_per_s=measured.ceilings["gemm_flops_per_s"],
            bytes_per_s=measured.ceilings["copy_bytes_per_s"],
        )
        peaks = measured_peaks
        sheet = sheet_of_device(measured.device)
        if self.hardware is not None and sheet is not None and self.hardware != sheet:
            # What a device reaches of its data sheet is taken to be what the measured one does.
            peaks = Peaks(
                flops_per_s=measured_peaks.flops_per_s
                * self.hardware.dense_16bit_flops
                / sheet.dense_16bit_flops,
                bytes_per_s=measured_peaks.bytes_per_s
                * self.hardware.memory_bandwidth
                / sheet.memory_bandwidth,
            )
        # The least that a kernel takes: a norm of very few rows.
        norms = measured.curves.get("rms_norm")
        latency_s = 0.0 if norms is None else float(norms.seconds.min())
        return {
            name: CurveFunction.of(
                curve,
                shape=here,
                peaks=peaks,
                measured_shape=there,
                measured_peaks=measured_peaks,
                latency_s=latency_s,
            )
            for name, curve in measured.curves.items()
            if name in CURVES
        }

    @property
    def _load(self) -> TouchedExperts:
        """The load that is predicted for."""
        if self.expert_load is not None:
            return self.expert_load
        own, measured = self.spec.experts, self.calibration.experts
        if own is None or measured is None:
            return UNIFORM_LOAD
        sizes = [(of.num_experts, of.experts_per_token) for of in (own, measured.spec)]
        return measured.load if sizes[0] == sizes[1] else UNIFORM_LOAD

    @cached_property
    def _layers_ratio(self) -> float:
        """Layers here over layers measured: what launching all of them scales with."""
        return self.spec.num_layers / int(self.calibration.dimensions["num_layers"])

    # -- operations ------------------------------------------------------------------------------

    def _rows(self, name: str, rows: float, times: float = 1.0) -> float:
        """`times` calls of a curve with one axis."""
        if rows <= 0 or times == 0:
            return 0.0
        seconds, inside, dense = self.curves[name].at_rows(rows)
        self.tally.add(seconds * times, inside, dense)
        return seconds * times

    def _whole_tiles(self, rows: float) -> float:
        return -(-rows // self.row_tile) * self.row_tile if rows > self.row_tile else rows

    def _products(
        self,
        rows: float,
        tokens: float,
        projects: int,
        finishes: range,
        *,
        distinct: float,
        settled: float,
    ) -> float:
        """Products and norms of layers, slower on a GPU that has been busy for long.

        `rows`: `tokens` and their padding; `projects`: how many layers are projected, `finishes`:
        which ones are finished; `distinct`: tokens that choose their experts for themselves;
        `settled`: how far the GPU has lowered its clock, 0 to 1.
        """
        rows = self._whole_tiles(rows)
        seconds = self._rows("project", rows, projects)
        if self.spec.experts is None:
            seconds += self._rows("finish", rows, len(finishes))
        else:
            dense = len(range(finishes.start, min(finishes.stop, self.spec.num_dense_layers)))
            seconds += self._rows("dense_finish", rows, dense)
            seconds += self._expert_finishes(rows, tokens, distinct, len(finishes) - dense)
        return seconds * (1.0 + settled * (self._sustained(rows) - 1.0))

    def _expert_finishes(self, rows: float, tokens: float, distinct: float, times: int) -> float:
        """`times` layers with experts: those that `distinct` of the `tokens` of the rows choose."""
        if rows <= 0 or times <= 0:
            return 0.0
        seconds, inside, dense = self.curves["finish"].at_rows(rows)
        if min(tokens, distinct) != rows:
            of_rows = self.curves["experts"].at_rows(rows)[0]
            chosen = self.curves["experts"].at_choices(max(1.0, tokens), max(1.0, distinct))
            seconds = max(seconds - of_rows + chosen, chosen)
        self.tally.add(seconds * times, inside, dense)
        return seconds * times

    def _sustained(self, rows: float) -> float:
        curves = self.curves
        if rows <= 0 or "layer_sustained" not in curves:
            return 1.0
        if curves["project"].is_carried:
            return 1.0  # power limits are not carried over
        found = self._slower.get(rows)
        if found is None:
            (inside,) = curves["layer_sustained"].grid.clamp((rows,))
            names = ("project", "finish", "layer_sustained")  # all as measured, nothing carried
            project_s, finish_s, layer_s = (
                float(curves[n].grid.at((float(inside),))[0]) for n in names
            )
            found = self._slower[rows] = max(1.0, layer_s / (project_s + finish_s))
        return found

    @cached_property
    def _attention(self) -> AttentionCost:
        return AttentionCost(curves=self.curves, tally=self.tally)

    # -- stages ----------------------------------------------------------------------------------

    def step_timing(self, shape: StepShape) -> StepTiming:
        """Seconds of the next step of a run, split into its parts."""
        return self.step_timing_after(self.tally.total_s, shape)

    def step_timing_after(self, busy_s: float, shape: StepShape) -> StepTiming:
        """Seconds of a step once the GPU has been busy for `busy_s`."""
        settled = 1.0 - math.exp(-busy_s / SETTLING_S)
        parts = dict.fromkeys(("swap", "prefill", "prefix", "eviction", "suffix", "head"), 0.0)
        if shape.swapped_pages:
            tokens = float(shape.swapped_pages * shape.page_size)
            parts["swap"] = 0.5 * (self._rows("swap_out", tokens) + self._rows("swap_in", tokens))
        if shape.prefill.num_chunks:
            parts["prefill"] = self._prefill(shape.prefill, settled)
        host_s = 0.0
        for forward in shape.forwards:
            for part, seconds in self._forward(forward, settled).items():
                parts[part] += seconds
            mode = "graph" if self._padded(int(_sum(forward.fed)))[1] else "eager"
            host_s = max(host_s, self._rows(f"host_step_{mode}", float(forward.num_rows)))
        if not shape.forwards:
            host_s = self._rows("host_step_eager", 1.0)
        sequences = float(sum(forward.num_rows for forward in shape.forwards))
        fixed = {part: self.corrections.of(part, s, sequences) for part, s in parts.items()}
        host_s = self.corrections.of("host", host_s, sequences)
        return StepTiming(
            duration_s=sum(fixed.values()) + host_s,
            **{f"{part}_s": seconds for part, seconds in fixed.items()},
            host_s=host_s,
        )

    def _padded(self, tokens: int) -> tuple[int, bool]:
        """Rows of a stage's products, and whether the stage is a graph."""
        bucket = token_bucket(max(1, tokens))
        return (bucket, True) if bucket in self.capacity.buckets else (tokens, False)

    def _prefill(self, shape: PrefillShape, settled: float) -> float:
        """Chunks are prefilled in all layers in one stage, as a graph or kernel by kernel."""
        tokens, layers = float(shape.length.sum()), self.spec.num_layers
        bucket = self.capacity.prefill_bucket(shape)
        rows = tokens if bucket is None else float(bucket)
        device_s = (
            self._rows("embed_rope", rows)
            + self._products(
                rows, tokens, layers, range(layers - 1), distinct=tokens, settled=settled
            )
            + self._prefill_attention(shape) * (layers - 1)
        )
        launch_s = self._launch("launch_prefill" if bucket is None else "replay_later", rows)
        return max(device_s, launch_s)

    def _prefill_attention(self, shape: PrefillShape) -> float:
        """One layer's attention of all chunks: their shares, or the longest one alone."""
        curve, n = self.curves["attention_prefill"], float(shape.num_chunks)
        length, start = shape.length, shape.start
        found, inside, dense = curve.mean_of_sequences(n, length, start)
        if n > 1:
            longest = int((length * (start + 0.5 * length)).argmax())
            found = max(found, curve.of_one(float(length[longest]), float(start[longest])))
        layers = self.spec.num_layers - 1
        self.tally.add(found * layers, inside, dense)
        return found

    def _launch(self, name: str, rows: float) -> float:
        """Host seconds of starting a stage; of one of all layers, for as many as there are."""
        ratio = self._layers_ratio if name.endswith(("_later", "_prefill")) else 1.0
        return self.curves[name].at_rows(rows)[0] * ratio

    def _forward(self, shape: DecodeShape, settled: float) -> dict[str, float]:
        """One forward of decode rows, as the engine strings it together."""
        layers = self.spec.num_layers
        fed, kept = int(_sum(shape.fed)), int(_sum(shape.kept))
        shallow = min(2, layers)
        line = _Timeline()
        rows, in_graph = self._padded(fed)
        prefix = (
            self._rows("embed_rope", rows)
            + self._products(
                rows, fed, shallow, range(1), distinct=self._distinct(shape.fed), settled=settled
            )
            + self._attention.seconds(shape.fed, shape.first_keys, 1)
        )
        launch = self._launch("replay_first" if in_graph else "launch_first", rows)
        parts = {"prefix": line.stage(prefix, launch)}
        if shape.masked_fed.any():
            parts["eviction"] = line.stage(
                self._eviction(shape), self._launch("launch_eviction", float(shape.num_rows))
            )
            line.read_back(self._rows("host_readback", float(shape.num_rows)))
        rows, in_graph = self._padded(kept)
        suffix = self._products(
            rows,
            kept,
            layers - shallow,
            range(1, layers),
            distinct=self._distinct(shape.kept),
            settled=settled,
        )
        suffix += self._attention.seconds(shape.kept, shape.later_keys, layers - 1)
        launch = self._launch("replay_later" if in_graph else "launch_later", rows)
        parts["suffix"] = line.stage(suffix, launch)
        if shape.head_rows:
            head_rows = float(shape.head_rows)
            head_s = self._rows("head", self._whole_tiles(head_rows))
            parts["head"] = line.stage(head_s, self._launch("launch_head", head_rows))
        return parts

    def _distinct(self, tokens: IntArray) -> float:
        """Of the tokens of every sequence [sequences], those that choose experts for themselves."""
        if self.spec.experts is None:
            return 0.0
        if math.isinf(self.distinct_per_block):
            return _sum(tokens)
        return _sum(np.minimum(tokens, self.distinct_per_block))

    def _eviction(self, shape: DecodeShape) -> float:
        """Importance of the sequences that evict, selection and compaction of all."""
        masked = shape.masked_fed[shape.masked_fed > 0]
        if not is_whole(masked):
            masked = np.rint(masked).astype(np.int64)
        n, curves = float(shape.num_rows), self.curves
        found = (
            curves["importance"].mean_of_masked(float(len(masked)), masked),
            curves["compaction"].rounded(n, _sum(shape.fed) / n, _sum(shape.kept) / n),
        )
        for seconds, inside, dense in found:
            self.tally.add(seconds, inside, dense)
        return sum(seconds for seconds, _, _ in found) + self._rows("selection", n)


def _sum(values: npt.NDArray[np.generic]) -> float:
    """Without the checks of numpy's method, which take as long as a batch's sum."""
    return float(np.add.reduce(values))


def as_new(model: CostModel) -> CostModel:
    """The model as before its first step: a CurveModel's seconds depend on how long a run has been
    busy (see SETTLING_S), so each run needs one of its own.
    """
    if not isinstance(model, CurveModel):
        return model
    return replace(model, tally=Tally(), shared=model.curves)


def missing_curves(calibration: GpuCalibration) -> tuple[str, ...]:
    """Curves that the model needs and a calibration lacks."""
    optional: Iterable[str] = ("attention_ragged", "attention_longest", "layer_sustained")
    parts = ("qkv", "o", "gate_up", "down", "rms_norm", "qk_norm_rope", "silu_mul", "route")
    experts = None if calibration.experts is None else calibration.experts.spec
    needed = set(curves_of_model(experts)) - set(optional) - set(parts)
    return tuple(sorted(needed - set(calibration.curves)))


def _shape_of(calibration: GpuCalibration) -> WorkShape:
    dimensions, experts = calibration.dimensions, calibration.experts
    values = {name: int(value) for name, value in dimensions.items() if name != "dtype"}
    return WorkShape(
        hidden=values["hidden_size"],
        q=values["num_q_heads"] * values["head_dim"],
        kv=values["num_kv_heads"] * values["head_dim"],
        wide=values["intermediate_size"] if experts is None else experts.dense_width,
        vocabulary=values["vocab_size"],
        layers=values["num_layers"],
        element={"float32": 4}.get(str(dimensions["dtype"]), 2),
        experts=None if experts is None else experts.spec,
        load=UNIFORM_LOAD if experts is None else experts.load,
    )
