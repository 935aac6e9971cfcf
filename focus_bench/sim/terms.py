"""The terms of the fitted time model: what a step's seconds are a sum of, operation by operation.

Fit and prediction both use `design`; it knows neither coefficients nor measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.core.calibration import TIMED_PARTS

FloatArray = npt.NDArray[np.float64]
Counts = Mapping[str, npt.NDArray[np.int64]]

# Each coefficient is the seconds that one unit of the term takes.
TERMS = {
    "layer_call": "one layer of one forward",
    "sequence_call": "attention of one sequence in one layer",
    "block_call": "attention of one prefill block in one layer",
    "decode_pair": "one query-key pair and query channel of decode attention",
    "prefill_pair": "one query-key pair and query channel of prefill attention",
    "key_channel": "one channel of a key (and its value) gathered from the cache",
    "evict_call": "importance and selection of one step",
    "evict_group": "importance of the sequences with equally many masked positions",
    "evict_row": "one sequence that evicts",
    "evict_channel": "one query channel of one masked position in the importance",
    "evict_pair": "one pair of masked positions and query channel in the importance",
    "rule_row": "one sequence in the rules between prefix and suffix",
    "head_call": "logits and sampling of one step",
    "head_flop": "one FLOP of the vocabulary product, sampling included",
    "head_row": "one sequence in the rules after the head",
    "host_step": "scheduling and bookkeeping of one step",
    "host_row": "scheduling and bookkeeping of one sequence",
    "host_chunk": "scheduling of one prefill chunk",
    "swap_byte": "one byte copied between device and host",
}


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """The widths of a model that terms scale with, from `core.calibration.dimensions_of`."""

    num_layers: int
    hidden_size: int
    q_size: int
    kv_size: int
    intermediate_size: int
    vocab_size: int
    kv_bytes_per_token: int

    @property
    def project_flops(self) -> int:
        """FLOPs of one token's query-key-value product in one layer."""
        return 2 * self.hidden_size * (self.q_size + 2 * self.kv_size)

    @property
    def finish_flops(self) -> int:
        """FLOPs of one token's output projection and feed-forward in one layer."""
        return 2 * self.hidden_size * (self.q_size + 3 * self.intermediate_size)


def gemm_terms(knots: tuple[float, ...]) -> tuple[str, ...]:
    """Names of the terms of the matrix products: one a knot of the curve."""
    return tuple(f"gemm_flop_at_{knot:g}_rows" for knot in knots)


def gemm_weights(rows: npt.NDArray[np.int64], knots: tuple[float, ...]) -> FloatArray:
    """Weights [n, knots] that interpolate seconds per FLOP linearly in the logarithm of the rows.

    Beyond the outer knots the curve is flat.
    """
    log_knots = np.log(np.array(knots))
    x = np.clip(np.log(np.maximum(rows, 1)), log_knots[0], log_knots[-1])
    unit = np.eye(len(knots))
    return np.stack([np.interp(x, log_knots, column) for column in unit], axis=-1)


def design(
    counts: Counts, dims: Dimensions, knots: tuple[float, ...]
) -> dict[str, dict[str, FloatArray]]:
    """Units of every term in every timed part: part -> term -> array over steps.

    Terms that a part does not have are left out of it. Layers are those of the forward: layer 0 and
    layer 1's projection are the prefix, the rest is the suffix, and prefill leaves out all but the
    projection of its last layer (see core.costs).
    """
    c = {name: values.astype(np.float64) for name, values in counts.items()}
    layers, q, kv = dims.num_layers, dims.q_size, dims.kv_size
    shallow = min(2, layers)

    def products(
        rows: npt.NDArray[np.int64], projects: int, finishes: int
    ) -> dict[str, FloatArray]:
        flops = rows * float(projects * dims.project_flops + finishes * dims.finish_flops)
        weights = gemm_weights(rows, knots)
        return {name: flops * weights[:, i] for i, name in enumerate(gemm_terms(knots))}

    evicts = (counts["evicting_rows"] > 0).astype(np.float64)
    return {
        "prefill": products(counts["prefill_tokens"], layers, layers - 1)
        | {
            "layer_call": np.where(counts["prefill_tokens"] > 0, float(layers), 0.0),
            "sequence_call": c["prefill_chunks"] * (layers - 1),
            "block_call": c["prefill_blocks"] * (layers - 1),
            "prefill_pair": c["prefill_pairs"] * q * (layers - 1),
            "key_channel": c["prefill_keys"] * kv * (layers - 1),
        },
        "prefix": products(counts["fed"], shallow, 1)
        | {
            "layer_call": c["forwards"] * 0.5 * (shallow + 1),
            "sequence_call": c["rows"],
            "decode_pair": c["first_pairs"] * q,
            "key_channel": c["first_keys"] * kv,
        },
        "eviction": {
            "evict_call": evicts,
            "evict_group": c["importance_groups"],
            "evict_row": c["evicting_rows"],
            "evict_channel": c["importance_masked"] * q,
            "evict_pair": c["importance_pairs"] * q,
            "rule_row": c["rows"],
        },
        "suffix": products(counts["kept"], layers - shallow, layers - 1)
        | {
            "layer_call": c["forwards"] * (layers - 0.5 * (shallow + 1)),
            "sequence_call": c["rows"] * (layers - 1),
            "decode_pair": c["later_pairs"] * q * (layers - 1),
            "key_channel": c["later_keys"] * kv * (layers - 1),
        },
        "head": {
            "head_call": (counts["head_rows"] > 0).astype(np.float64),
            "head_flop": c["head_rows"] * 2 * dims.hidden_size * dims.vocab_size,
            "head_row": c["rows"],
        },
        "swap": {"swap_byte": c["swapped_tokens"] * dims.kv_bytes_per_token},
        "host": {
            "host_step": np.ones(len(evicts)),
            "host_row": c["rows"],
            "host_chunk": c["prefill_chunks"],
        },
    }


def predicted_seconds(
    counts: Counts,
    dims: Dimensions,
    knots: tuple[float, ...],
    coefficients: Mapping[str, float],
) -> dict[str, FloatArray]:
    """Seconds of every timed part, arrays over steps."""
    parts = design(counts, dims, knots)
    zero = np.zeros(len(counts["rows"]))
    return {
        part: sum((coefficients[term] * units for term, units in parts[part].items()), zero)
        for part in TIMED_PARTS
    }
