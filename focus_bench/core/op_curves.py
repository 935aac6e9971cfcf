"""Measured operations of one GPU as named curves: what `calibrate` hands to the simulator.

Knows names, axes and units (CURVES), and the file: profiles of schema 2. (Those of a CPU, schema 1,
hold fitted steps: core/calibration.py.) Neither how an operation is timed nor how steps add up.

Seconds are those of one call on an otherwise idle device. "device": GPU time of the kernels without
their launches, taken in CUDA graphs, with weights, keys and states rotated so that the L2 cache
does not serve what a real step reads from memory. "host": CPU time. A point of a curve has one
value an axis: `rows` and `tokens` are those of all sequences together; `sequences` their number;
`queries`, `context` (keys attended to), `history` (keys cached before a prefill chunk), `bound`,
`masked`, `fed` and `kept` are tokens of each sequence.

A model has the curves of its kind (`curves_of_model`): one with experts those of its feed-forward,
and those of a dense one only if some of its layers have it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from focus_bench.core.calibration import CalibrationSamples, dimensions_of
from focus_bench.core.expert_load import MeasuredLoad
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.step_fits import StepsFit

PROFILE_SCHEMA_VERSION = 2
FloatArray = npt.NDArray[np.float64]

# Decode attention is launched for BLOCK_LENGTH queries a sequence at most, and for page tables of
# TABLE_TOKENS tokens a sequence, or for the queries and the context where these are more.
BLOCK_LENGTH = 32
TABLE_TOKENS = 4096
# Queries of every sequence in attention_longest, and the context of all but one.
LONGEST_QUERIES, SHORT_CONTEXT = 10, 256


@dataclass(frozen=True, kw_only=True)
class CurveKind:
    """One of CURVES: its axes, whose time it is ("device" or "host"), and what one call does."""

    axes: tuple[str, ...]
    clock: str
    call: str


def _device(call: str, *axes: str) -> CurveKind:
    return CurveKind(axes=axes, clock="device", call=call)


def _host(call: str, *axes: str) -> CurveKind:
    return CurveKind(axes=axes, clock="host", call=call)


CURVES: Mapping[str, CurveKind] = {
    # One layer's products and what lies between them.
    "qkv": _device("query, key and value product", "rows"),
    "o": _device("output projection, residual added", "rows"),
    "gate_up": _device("gate and up product", "rows"),
    "down": _device("down product, residual added", "rows"),
    "rms_norm": _device("one norm of hidden states", "rows"),
    "qk_norm_rope": _device("head norms, rotary embedding, K/V write", "rows"),
    "silu_mul": _device("activation between gate_up and down", "rows"),
    # The same as the engine strings them together; what these take is not the sum of the parts'.
    "project": _device("rms_norm, qkv, qk_norm_rope", "rows"),
    "finish": _device("o, rms_norm, gate_up, silu_mul, down; or route and experts", "rows"),
    # Of models with experts: their feed-forward, and `finish` of those layers that have a dense
    # one. How the tokens spread over the experts is MeasuredExperts.load.
    "route": _device("router product in float32, choice of experts", "rows"),
    "experts": _device(
        "shared expert, sort by expert, grouped products, weighted sum and residual", "rows"
    ),
    "dense_finish": _device("o, rms_norm, gate_up, silu_mul, down", "rows"),
    # A GPU that is busy for long may lower its clock to keep its power limit. All other curves are
    # taken in bursts; the ratio of this one to project + finish says by how much.
    "layer_sustained": _device("project and finish, after a second of nothing else", "rows"),
    # Once a forward.
    "embed_rope": _device("embedding and rotary tables", "rows"),
    "head": _device("gather, final norm, logits, token and confidence", "rows"),
    # One layer's attention over the paged cache.
    "attention_decode": _device("sequences all alike", "sequences", "queries", "context"),
    "attention_ragged": _device(
        "queries and contexts spread over a factor of 9, means given",
        *("sequences", "queries", "context"),
    ),
    "attention_longest": _device(
        "one sequence of `context` keys among others of SHORT_CONTEXT", "sequences", "context"
    ),
    "attention_prefill": _device("block-causal", "sequences", "queries", "history"),
    # Once a step that evicts.
    "importance": _device("layers 0 and 1 together", "sequences", "masked"),
    "selection": _device("budget, ranking, constraints", "sequences"),
    "compaction": _device("hidden states, queries, tables", "sequences", "fed", "kept"),
    # Preemption: K/V of all layers.
    "swap_out": _host("whole pages from device to host, waited for", "tokens"),
    "swap_in": _host("whole pages from host to device, waited for", "tokens"),
    # What the host takes to start a stage: kernel by kernel, or as a captured graph.
    "launch_first": _host("embedding, layer 0, project of layer 1", "rows"),
    "launch_later": _host("all layers' rest", "rows"),
    "launch_prefill": _host("a prefill of one chunk, all layers", "rows"),
    "launch_eviction": _host("importance, selection, compaction", "sequences"),
    "launch_head": _host("the head", "rows"),
    "replay_first": _host("launch_first as a graph", "rows"),
    "replay_later": _host("launch_later as a graph", "rows"),
    "host_readback": _host("reading kept positions once they are there", "sequences"),
    # What a step takes beside its device phases, scheduling included: medians of real steps.
    "host_step_eager": _host("a step without graphs", "sequences"),
    "host_step_graph": _host("a step with graphs", "sequences"),
}
_OF_EXPERTS = frozenset({"route", "experts", "dense_finish"})
_OF_DENSE_LAYERS = frozenset({"gate_up", "down", "silu_mul", "dense_finish"})


def curves_of_model(experts: ExpertSpec | None) -> tuple[str, ...]:
    """The names of CURVES that a model has (`experts` None: a dense one), in their order."""
    if experts is None:
        return tuple(name for name in CURVES if name not in _OF_EXPERTS)
    if experts.num_dense_layers:
        return tuple(CURVES)
    return tuple(name for name in CURVES if name not in _OF_DENSE_LAYERS)


# Rates of a large copy within the device's memory (bytes read and bytes written, both counted) and
# of a large 16-bit matrix product.
CEILINGS = ("copy_bytes_per_s", "gemm_flops_per_s")
EAGER, GRAPH = STEP_MODES = ("eager", "graph")


@dataclass(frozen=True, kw_only=True)
class OpCurve:
    """Seconds of one operation at n points.

    `points` [n, len(axes)], ascending, the last axis fastest; `seconds` [n], medians of the
    samples; `spread` [n], half the distance of their 16th and 84th percentiles over their median (a
    relative standard deviation that outliers leave alone). `held_out_p50` and `held_out_max`:
    relative errors of points that are interpolated from their neighbours instead (None where no
    point has neighbours on both sides).
    """

    name: str
    axes: tuple[str, ...]
    points: FloatArray
    seconds: FloatArray
    spread: FloatArray
    held_out_p50: float | None
    held_out_max: float | None

    @property
    def num_points(self) -> int:
        """Measured points."""
        return len(self.seconds)

    def axis(self, name: str) -> FloatArray:
        """The points' values on one axis [n]."""
        return self.points[:, self.axes.index(name)]


@dataclass(frozen=True, kw_only=True)
class MeasuredExperts:
    """The experts of a measured model, the width of its dense layers (whether there are any or
    not), and how the tokens of `experts` spread over the experts of a layer.
    """

    spec: ExpertSpec
    dense_width: int
    load: MeasuredLoad


@dataclass(frozen=True, kw_only=True)
class GpuCalibration:
    """Everything that was measured of one model's operations on one GPU.

    `device` is PyTorch's name of the GPU; `settings` names driver, cuda, torch, triton, python and
    page_size; `dimensions` as core.calibration.dimensions_of gives them; `kernel_revision`: a hash
    of the kernels' sources; `date`: ISO, UTC; `duration_s`: what measuring took.

    `curves` by name, at least those of `curves_of_model`; `ceilings`: those of CEILINGS. `steps`:
    real steps of short runs, by mode (STEP_MODES), for checking a model of whole steps against.
    `experts`: None of a dense model. `fits`: what was fitted to the steps of a mode; one that is
    not there is fitted when a prediction needs it.
    """

    device: str
    date: str
    settings: Mapping[str, str]
    model: str
    dimensions: Mapping[str, int | str]
    kernel_revision: str
    duration_s: float
    curves: Mapping[str, OpCurve]
    ceilings: Mapping[str, float]
    steps: Mapping[str, CalibrationSamples]
    experts: MeasuredExperts | None = None
    fits: Mapping[str, StepsFit] = field(default_factory=dict)

    def is_of(self, spec: ModelSpec) -> bool:
        """Whether it was measured on a model of this very shape."""
        measured = None if self.experts is None else self.experts.spec
        return dict(self.dimensions) == dimensions_of(spec) and measured == spec.experts

    def covers(self, spec: ModelSpec) -> bool:
        """Whether it has the curves of models of this kind: dense ones, those of which all layers
        have experts, or those of which some are dense.
        """
        if spec.experts is None or self.experts is None:
            return spec.experts is None and self.experts is None
        return not spec.experts.num_dense_layers or "dense_finish" in self.curves
