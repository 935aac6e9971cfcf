"""Arithmetic and traffic of the measured operations (core.op_curves), for rooflines of them.

A curve's call is one or more kernels; each is bound by its FLOPs or by its bytes. Knows no seconds.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from focus_bench.core.expert_load import UNIFORM_LOAD, TouchedExperts
from focus_bench.core.expert_spec import ROUTER_BYTES, ExpertSpec
from focus_bench.core.model_spec import DTYPE_BYTES, ModelSpec
from focus_bench.core.op_curves import SHORT_CONTEXT

FloatArray = npt.NDArray[np.float64]
Number = float | FloatArray

_MASK_BYTES = 256.0  # what selection reads and writes of one sequence, about
_PAIR_BYTES = 8  # of a chosen expert: its id and its weight
# Rows, sixteen an octave, between which those of equal intensity are looked up where experts are
# read: how many grows with the rows, by no formula that could be solved.
_ROWS = 2.0 ** np.arange(0.0, 18.0, 1.0 / 16.0)


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """What a device reaches at best: 16-bit FLOP/s of products, bytes/s of its memory."""

    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which both limits meet."""
        return self.flops_per_s / self.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class RowsWork:
    """A kernel over r rows: `flops` * r FLOPs; `fixed_bytes` + `row_bytes` * r bytes, and
    `expert_bytes` for each expert that the rows go to.
    """

    flops: float
    fixed_bytes: float
    row_bytes: float
    expert_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WorkShape:
    """The widths of a model that work depends on; `wide`: of dense layers.

    `load` says how many experts rows go to. It is left out of comparisons: only curves whose
    kernels read experts depend on it (`reads_experts`).
    """

    hidden: int
    q: int
    kv: int
    wide: int
    vocabulary: int
    layers: int
    element: int
    experts: ExpertSpec | None = None
    load: TouchedExperts = field(default=UNIFORM_LOAD, compare=False)

    @classmethod
    def of(cls, spec: ModelSpec, load: TouchedExperts = UNIFORM_LOAD) -> "WorkShape":
        """Of a model, in its number format."""
        return cls(
            hidden=spec.hidden_size,
            q=spec.q_size,
            kv=spec.kv_size,
            wide=spec.intermediate_size,
            vocabulary=spec.vocab_size,
            layers=spec.num_layers,
            element=DTYPE_BYTES[spec.dtype],
            experts=spec.experts,
            load=load,
        )

    def touched(self, rows: Number) -> Number:
        """Experts of a layer that rows go to."""
        experts = self.experts
        if experts is None:
            return 0.0
        if np.ndim(rows) == 0:
            return self.load.expected_touched(experts, float(rows))
        each = [self.load.expected_touched(experts, float(r)) for r in np.ravel(rows)]
        return np.array(each).reshape(np.shape(rows))


@lru_cache(maxsize=256)
def rows_kernels(name: str, shape: WorkShape) -> tuple[RowsWork, ...]:
    """The kernels of a curve over `rows`; empty for other curves."""
    h, q, kv, wide, e = shape.hidden, shape.q, shape.kv, shape.wide, shape.element

    def product(inner: int, outer: int, *, extra: int = 0) -> RowsWork:
        return RowsWork(
            flops=2.0 * inner * outer,
            fixed_bytes=float(e * inner * outer),
            row_bytes=float(e * (inner + outer + extra)),
        )

    def moves(elements: int) -> RowsWork:
        return RowsWork(flops=0.0, fixed_bytes=0.0, row_bytes=float(e * elements))

    norm, rope = moves(2 * h), moves(2 * (q + kv) + 2 * kv)
    qkv, gate_up = product(h, q + 2 * kv), product(h, 2 * wide)
    o, down = product(q, h, extra=h), product(wide, h, extra=h)  # residuals are read
    silu = moves(3 * wide)
    kernels = {
        "qkv": (qkv,),
        "o": (o,),
        "gate_up": (gate_up,),
        "down": (down,),
        "rms_norm": (norm,),
        "qk_norm_rope": (rope,),
        "silu_mul": (silu,),
        "project": (norm, qkv, rope),
        "finish": (o, norm, gate_up, silu, down),
        "dense_finish": (o, norm, gate_up, silu, down),
        "embed_rope": (moves(2 * h),),
        "head": (norm, product(h, shape.vocabulary)),
    }
    if shape.experts is not None:
        route, mix = _expert_kernels(shape, shape.experts)
        kernels |= {"route": route, "experts": mix, "finish": (o, norm, *route, *mix)}
    return kernels.get(name, ())


def _expert_kernels(
    shape: WorkShape, experts: ExpertSpec
) -> tuple[tuple[RowsWork, ...], tuple[RowsWork, ...]]:
    """Router and choice; shared expert, sort, grouped products, and the sum of their outputs."""
    h, e, each, wide = shape.hidden, shape.element, experts.experts_per_token, experts.expert_size
    scores, pairs = ROUTER_BYTES * experts.num_experts, float(_PAIR_BYTES * each)

    def grouped(weight: int, moved: int) -> RowsWork:
        return RowsWork(
            flops=2.0 * each * weight,
            fixed_bytes=0.0,
            row_bytes=float(e * moved),
            expert_bytes=float(e * weight),
        )

    def shared(weight: int, moved: int) -> RowsWork:
        return RowsWork(
            flops=2.0 * weight, fixed_bytes=float(e * weight), row_bytes=float(e * moved)
        )

    route = (
        RowsWork(
            flops=2.0 * h * experts.num_experts,
            fixed_bytes=float(ROUTER_BYTES * experts.router_params(h)),
            row_bytes=float(e * h + scores),
        ),
        RowsWork(flops=0.0, fixed_bytes=0.0, row_bytes=scores + pairs),
    )
    mix: tuple[RowsWork, ...] = (
        RowsWork(flops=0.0, fixed_bytes=0.0, row_bytes=pairs),
        grouped(2 * h * wide, h + each * wide),
        grouped(h * wide, each * (wide + h)),
        RowsWork(flops=0.0, fixed_bytes=0.0, row_bytes=float(e * (each + 2) * h)),
    )
    size = experts.shared_size
    if size:
        own = (shared(2 * h * size, h + 2 * size), shared(h * size, size + h))
        silu = RowsWork(flops=0.0, fixed_bytes=0.0, row_bytes=float(3 * e * size))
        mix = (own[0], silu, own[1], *mix)
    return route, mix


def reads_experts(name: str, shape: WorkShape) -> bool:
    """Whether a curve's time depends on how many experts its rows go to."""
    return any(kernel.expert_bytes for kernel in rows_kernels(name, shape))


def roofline_s(
    name: str,
    shape: WorkShape,
    peaks: Peaks,
    coordinates: tuple[Number, ...],
    *,
    choices: Number | None = None,
) -> Number:
    """Seconds of one call at best, for the coordinates of the curve's axes, in order.

    `choices`: rows that choose experts for themselves, where others follow them (None: all). Curves
    of the host have no roofline: 1.
    """
    kernels = rows_kernels(name, shape)
    if kernels:
        rows = coordinates[0]
        total: Number = 0.0
        choices = rows if choices is None else choices
        touched = shape.touched(choices) if reads_experts(name, shape) else 0.0
        for kernel in kernels:
            flops_s = rows * (kernel.flops / peaks.flops_per_s)
            num_bytes = kernel.fixed_bytes + rows * kernel.row_bytes
            if kernel.expert_bytes:
                num_bytes = num_bytes + touched * kernel.expert_bytes
            bytes_s = num_bytes / peaks.bytes_per_s
            total = total + np.maximum(flops_s, bytes_s)
        return total
    work = _sequence_work(name, shape, coordinates)
    if work is None:
        return 1.0
    flops, num_bytes = work
    seconds: FloatArray = np.maximum(flops / peaks.flops_per_s, num_bytes / peaks.bytes_per_s)
    return seconds


def _sequence_work(
    name: str, shape: WorkShape, coordinates: tuple[Number, ...]
) -> tuple[Number, Number] | None:
    """FLOPs and bytes of the curves over sequences."""
    q, kv, e = shape.q, shape.kv, shape.element
    n = coordinates[0]
    if name in ("attention_decode", "attention_ragged"):
        _, queries, context = coordinates
        return 4.0 * q * n * queries * context, 2.0 * e * n * (context * kv + queries * q)
    if name == "attention_longest":
        return 0.0, 2.0 * e * kv * (coordinates[1] + (n - 1.0) * SHORT_CONTEXT)
    if name == "attention_prefill":
        _, queries, history = coordinates
        keys = history + queries
        pairs = queries * (history + 0.5 * queries)
        return 4.0 * q * n * pairs, 2.0 * e * n * (keys * kv + queries * q)
    if name == "importance":
        masked = coordinates[1]
        return 4.0 * q * n * masked**2, 2.0 * e * n * masked * (q + kv)
    if name == "selection":
        return 0.0, _MASK_BYTES * n
    if name == "compaction":
        return 0.0, 2.0 * e * n * coordinates[2] * (shape.hidden + q)
    if name in ("swap_out", "swap_in"):
        return 0.0, n * float(2 * e * kv * shape.layers)
    return None


def same_intensity_rows(
    name: str,
    rows: Number,
    shape: WorkShape,
    peaks: Peaks,
    *,
    on_shape: WorkShape,
    on_peaks: Peaks,
) -> Number:
    """Rows at which the curve, on another model and device, is as far from its ridge point.

    Arithmetic intensity over the device's ridge says whether an operation waits for memory or for
    arithmetic, so efficiency is carried over at equal values of it. Operations without products
    keep their rows; beyond the other side's largest intensity the rows are infinite.
    """
    if shape == on_shape and peaks.ridge == on_peaks.ridge:
        return rows
    flops, fixed, per_row = _summed(rows_kernels(name, shape))
    if flops == 0.0:
        return rows
    if reads_experts(name, shape) or reads_experts(name, on_shape):
        wanted = _intensity(name, shape, rows) * (on_peaks.ridge / peaks.ridge)
        return np.interp(wanted, _intensity(name, on_shape, _ROWS), _ROWS, right=np.inf)
    intensity = flops * rows / (fixed + per_row * rows) * (on_peaks.ridge / peaks.ridge)
    flops, fixed, per_row = _summed(rows_kernels(name, on_shape))
    slack = np.maximum(flops - intensity * per_row, 0.0)
    with np.errstate(divide="ignore"):
        found: FloatArray = np.divide(intensity * fixed, slack)
    return found


def _intensity(name: str, shape: WorkShape, rows: Number) -> Number:
    """FLOPs a byte of a curve over rows."""
    kernels = rows_kernels(name, shape)
    flops, fixed, per_row = _summed(kernels)
    experts = sum(kernel.expert_bytes for kernel in kernels) * shape.touched(rows)
    return flops * rows / (fixed + per_row * rows + experts)


def _summed(kernels: tuple[RowsWork, ...]) -> tuple[float, float, float]:
    return (
        sum(k.flops for k in kernels),
        sum(k.fixed_bytes for k in kernels),
        sum(k.row_bytes for k in kernels),
    )
