"""The least time that an operation of a curve can take on a GPU, by its data sheet.

FLOPs of matrix products, and bytes that must come from the device's memory: weights (of experts
those that tokens went to), and keys and values. Activations may lie in the L2 cache, so their bytes
do not count. Knows no measurement.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from focus_bench.core.expert_spec import ROUTER_BYTES
from focus_bench.core.hardware import Hardware
from focus_bench.core.model_spec import DTYPE_BYTES
from focus_bench.core.op_curves import (
    BLOCK_LENGTH,
    LONGEST_QUERIES,
    SHORT_CONTEXT,
    MeasuredExperts,
)

# No kernel of a GPU takes less, launched from a graph.
LEAST_DEVICE_S = 2e-7


@dataclass(frozen=True, kw_only=True)
class Widths:
    """A model's sizes that the work of an operation depends on; `feed_forward`: of dense layers."""

    num_layers: int
    hidden: int
    q: int
    kv: int
    feed_forward: int
    vocab: int
    dtype_bytes: int
    experts: MeasuredExperts | None = None

    @classmethod
    def of(
        cls, dimensions: Mapping[str, int | str], experts: MeasuredExperts | None = None
    ) -> "Widths":
        """From core.calibration.dimensions_of, or a profile's."""
        wide = int(dimensions["intermediate_size"]) if experts is None else experts.dense_width
        head_dim = int(dimensions["head_dim"])
        return cls(
            num_layers=int(dimensions["num_layers"]),
            hidden=int(dimensions["hidden_size"]),
            q=int(dimensions["num_q_heads"]) * head_dim,
            kv=int(dimensions["num_kv_heads"]) * head_dim,
            feed_forward=wide,
            vocab=int(dimensions["vocab_size"]),
            dtype_bytes=DTYPE_BYTES[str(dimensions["dtype"])],
            experts=experts,
        )


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one call must do: FLOPs, bytes of device memory, bytes over the host link."""

    flops: float = 0.0
    memory_bytes: float = 0.0
    link_bytes: float = 0.0


def floor_s(curve: str, point: tuple[int, ...], widths: Widths, hardware: Hardware) -> float:
    """Seconds of one call at the data sheet's peaks; 0 for the host's own work."""
    work_of = _WORK.get(curve)
    if work_of is None:
        return 0.0
    work = work_of(widths, *point)
    return max(
        work.flops / hardware.dense_16bit_flops,
        work.memory_bytes / hardware.memory_bandwidth,
        work.link_bytes / hardware.host_link_bandwidth,
        0.0 if work.link_bytes else LEAST_DEVICE_S,
    )


def _product(w: Widths, rows: int, inner: int, outer: int) -> Work:
    return Work(flops=2.0 * rows * inner * outer, memory_bytes=float(inner * outer * w.dtype_bytes))


def _sum(*parts: Work) -> Work:
    return Work(
        flops=sum(part.flops for part in parts),
        memory_bytes=sum(part.memory_bytes for part in parts),
    )


def _qkv(w: Widths, rows: int) -> Work:
    return _product(w, rows, w.hidden, w.q + 2 * w.kv)


def _o(w: Widths, rows: int) -> Work:
    return _product(w, rows, w.q, w.hidden)


def _gate_up(w: Widths, rows: int) -> Work:
    return _product(w, rows, w.hidden, 2 * w.feed_forward)


def _down(w: Widths, rows: int) -> Work:
    return _product(w, rows, w.feed_forward, w.hidden)


def _dense_finish(w: Widths, rows: int) -> Work:
    return _sum(_o(w, rows), _gate_up(w, rows), _down(w, rows))


def _finish(w: Widths, rows: int) -> Work:
    if w.experts is None:
        return _dense_finish(w, rows)
    return _sum(_o(w, rows), _route(w, rows), _experts(w, rows))


def _route(w: Widths, rows: int) -> Work:
    if w.experts is None:
        return Work()
    num_experts = w.experts.spec.num_experts
    return Work(
        flops=2.0 * rows * w.hidden * num_experts,
        memory_bytes=float(ROUTER_BYTES * w.hidden * num_experts),
    )


def _experts(w: Widths, rows: int) -> Work:
    if w.experts is None:
        return Work()
    spec, matrices = w.experts.spec, 3 * w.hidden
    touched = w.experts.load.expected_touched(spec, rows)
    weights = matrices * (touched * spec.expert_size + spec.shared_size)
    return Work(
        flops=2.0 * rows * matrices * spec.token_width, memory_bytes=weights * w.dtype_bytes
    )


def _attention(w: Widths, sequences: int, queries: int, context: int) -> Work:
    return Work(
        flops=4.0 * sequences * queries * context * w.q,
        memory_bytes=2.0 * sequences * context * w.kv * w.dtype_bytes,
    )


def _prefill(w: Widths, sequences: int, queries: int, history: int) -> Work:
    blocks = queries // BLOCK_LENGTH
    pairs = queries * history + BLOCK_LENGTH**2 * blocks * (blocks + 1) // 2
    return Work(
        flops=4.0 * sequences * pairs * w.q,
        memory_bytes=2.0 * sequences * (history + queries) * w.kv * w.dtype_bytes,
    )


def _pages(w: Widths, tokens: int) -> Work:
    return Work(link_bytes=2.0 * w.num_layers * w.kv * w.dtype_bytes * tokens)


def _light(_: Widths, *__: int) -> Work:
    return Work()


_WORK: Mapping[str, Callable[..., Work]] = {
    "qkv": _qkv,
    "o": _o,
    "gate_up": _gate_up,
    "down": _down,
    "project": _qkv,
    "finish": _finish,
    "route": _route,
    "experts": _experts,
    "dense_finish": _dense_finish,
    "layer_sustained": lambda w, rows: _sum(_qkv(w, rows), _finish(w, rows)),
    "head": lambda w, rows: _product(w, rows, w.hidden, w.vocab),
    "attention_decode": _attention,
    "attention_longest": lambda w, sequences, context: _sum(
        _attention(w, 1, LONGEST_QUERIES, context),
        _attention(w, sequences - 1, LONGEST_QUERIES, SHORT_CONTEXT),
    ),
    "attention_prefill": _prefill,
    **dict.fromkeys(
        (
            "rms_norm",
            "qk_norm_rope",
            "silu_mul",
            "embed_rope",
            "attention_ragged",
            "importance",
            "selection",
            "compaction",
        ),
        _light,
    ),
    "swap_out": _pages,
    "swap_in": _pages,
}
