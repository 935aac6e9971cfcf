"""Arithmetic and traffic of the measured operations (core.op_curves), for rooflines of them.

A curve's call is one or more kernels; each is bound by its FLOPs or by its bytes. Knows no seconds.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from focus_bench.core.model_spec import DTYPE_BYTES, ModelSpec

FloatArray = npt.NDArray[np.float64]
Number = float | FloatArray

_MASK_BYTES = 256.0  # what selection reads and writes of one sequence, about


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
    """A kernel over r rows: `flops` * r FLOPs; `fixed_bytes` + `row_bytes` * r bytes."""

    flops: float
    fixed_bytes: float
    row_bytes: float


@dataclass(frozen=True, kw_only=True)
class WorkShape:
    """The widths of a model that work depends on."""

    hidden: int
    q: int
    kv: int
    wide: int
    vocabulary: int
    layers: int
    element: int

    @classmethod
    def of(cls, spec: ModelSpec) -> "WorkShape":
        """Of a model, in its number format."""
        return cls(
            hidden=spec.hidden_size,
            q=spec.q_size,
            kv=spec.kv_size,
            wide=spec.intermediate_size,
            vocabulary=spec.vocab_size,
            layers=spec.num_layers,
            element=DTYPE_BYTES[spec.dtype],
        )


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
        "embed_rope": (moves(2 * h),),
        "head": (norm, product(h, shape.vocabulary)),
    }
    return kernels.get(name, ())


def roofline_s(
    name: str, shape: WorkShape, peaks: Peaks, coordinates: tuple[Number, ...]
) -> Number:
    """Seconds of one call at best, for the coordinates of the curve's axes, in order.

    Curves of the host have no roofline: 1.
    """
    kernels = rows_kernels(name, shape)
    if kernels:
        rows = coordinates[0]
        total: Number = 0.0
        for kernel in kernels:
            flops_s = rows * (kernel.flops / peaks.flops_per_s)
            bytes_s = (kernel.fixed_bytes + rows * kernel.row_bytes) / peaks.bytes_per_s
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
    if name == "attention_bound":
        return 0.0, 2.0 * e * kv * n * coordinates[1]
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
    intensity = flops * rows / (fixed + per_row * rows) * (on_peaks.ridge / peaks.ridge)
    flops, fixed, per_row = _summed(rows_kernels(name, on_shape))
    slack = np.maximum(flops - intensity * per_row, 0.0)
    with np.errstate(divide="ignore"):
        found: FloatArray = np.divide(intensity * fixed, slack)
    return found


def _summed(kernels: tuple[RowsWork, ...]) -> tuple[float, float, float]:
    return (
        sum(k.flops for k in kernels),
        sum(k.fixed_bytes for k in kernels),
        sum(k.row_bytes for k in kernels),
    )
