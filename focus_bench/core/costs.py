"""FLOPs and bytes of every operation of one engine step, from shapes alone.

The one account of work that the simulator and the reports use. Counts are exact for the layers of
`ModelSpec`: grouped-query widths and SwiGLU's three matrices, 6 * d_ff * h FLOPs a token, of each
of its experts where there are experts, whose router is a product of its own. (The paper's 8 h^2 for
the projections holds only where query and KV widths equal h, and its 4 * d_ff * h only for a
feed-forward of two matrices; SDAR-8B has 5 h^2 and 6 * d_ff * h.)

One multiply-add is 2 FLOPs; products are counted, element-wise work only as bytes. Bytes assume
fused kernels: an operand is read once, a result written once, weights read once per forward, of
experts those that are expected to be touched (core.expert_load).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from focus_bench.core.expert_load import UNIFORM_LOAD, ExpertLoad
from focus_bench.core.expert_spec import ROUTER_BYTES, ExpertSpec
from focus_bench.core.model_spec import ModelSpec

IntArray = npt.NDArray[np.int64]


class Phase(StrEnum):
    """Parts of a step, as StepTiming splits it."""

    PREFILL = "prefill"
    PREFIX = "prefix"
    EVICTION = "eviction"
    SUFFIX = "suffix"
    HEAD = "head"


@dataclass(frozen=True, kw_only=True)
class DecodeShape:
    """The decode rows of one forward: arrays [n], one entry a sequence, in tokens.

    `fed`: positions fed at layers 0 and 1; `kept`: those that go on past layer 1's K/V write;
    `masked_fed`: masked among the fed where importance is computed, 0 elsewhere. `first_keys`: keys
    attended to in layer 0 (history + B); `later_keys`: in layers >= 1 (history + progress + 1).
    `head_rows`: kept masked positions of all rows, whose logits are computed, and, where logits are
    shifted, the last one of each commit pass.
    """

    fed: IntArray
    kept: IntArray
    masked_fed: IntArray
    first_keys: IntArray
    later_keys: IntArray
    head_rows: int

    @property
    def num_rows(self) -> int:
        """Sequences."""
        return len(self.fed)


@dataclass(frozen=True, kw_only=True)
class PrefillShape:
    """The prefill chunks of one step: `start[c]` tokens already cached, `length[c]` tokens now.

    Both are multiples of `block_length`; a block attends to all keys up to its own end.
    """

    start: IntArray
    length: IntArray
    block_length: int

    @property
    def num_chunks(self) -> int:
        """Chunks."""
        return len(self.start)

    @property
    def query_key_pairs(self) -> int:
        """Sum over queries of the keys they attend to, in one layer."""
        blocks = self.length // self.block_length
        # Block j of a chunk has B queries and start + (j + 1) B keys.
        triangle = self.block_length**2 * blocks * (blocks + 1) // 2
        return int((self.length * self.start + triangle).sum())


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """What one step computes: its prefill chunks, and its forwards of decode rows in order.

    There is one forward, or none; policy `ideal` runs two. `swapped_pages` are copied between host
    and device, of `page_size` tokens each.
    """

    prefill: PrefillShape
    forwards: tuple[DecodeShape, ...]
    swapped_pages: int
    page_size: int


class OpCost(NamedTuple):
    """One operation, all its layers together.

    `flops`: of matrix products; `num_bytes`: moved from and to device memory; `launches`: kernels
    of a fused implementation. (A tuple: some thirty are made for every simulated step, each in a
    third of the time that a frozen dataclass takes.)
    """

    name: str
    phase: Phase
    flops: int
    num_bytes: int
    launches: int


def total_flops(ops: tuple[OpCost, ...]) -> int:
    """FLOPs of all operations."""
    return sum(op.flops for op in ops)


def total_bytes(ops: tuple[OpCost, ...]) -> int:
    """Bytes of all operations."""
    return sum(op.num_bytes for op in ops)


def step_ops(
    spec: ModelSpec, shape: StepShape, load: ExpertLoad = UNIFORM_LOAD
) -> tuple[OpCost, ...]:
    """Every operation of one step; `load`: how tokens spread over experts, if there are any."""
    ops: list[OpCost] = []
    if shape.prefill.num_chunks:
        ops += prefill_ops(spec, shape.prefill, load)
    for forward in shape.forwards:
        ops += decode_ops(spec, forward, load)
    return tuple(ops)


def swap_bytes(spec: ModelSpec, shape: StepShape) -> int:
    """Bytes that cross the host link for preempted requests."""
    return shape.swapped_pages * shape.page_size * spec.kv_bytes_per_token


def prefill_ops(
    spec: ModelSpec, shape: PrefillShape, load: ExpertLoad = UNIFORM_LOAD
) -> list[OpCost]:
    """One forward of all chunks: the K/V of every layer, whose last output nobody needs."""
    tokens = int(shape.length.sum())
    keys = int((shape.start + shape.length).sum())
    layers, phase = spec.num_layers, Phase.PREFILL
    return [
        _embedding(spec, phase, tokens),
        *_project(spec, phase, tokens, layers),
        *_attend(spec, phase, tokens, shape.query_key_pairs, keys, layers - 1),
        *_finish(spec, phase, tokens, range(layers - 1), load),
    ]


def decode_ops(
    spec: ModelSpec, shape: DecodeShape, load: ExpertLoad = UNIFORM_LOAD
) -> list[OpCost]:
    """One forward of the decode rows: prefix, eviction, suffix, head (algorithm 2, "Effects")."""
    fed, kept = int(shape.fed.sum()), int(shape.kept.sum())
    first_pairs = int((shape.fed * shape.first_keys).sum())
    first_keys = int(shape.first_keys.sum())
    prefix, suffix = Phase.PREFIX, Phase.SUFFIX
    shallow = min(2, spec.num_layers)
    ops = [
        _embedding(spec, prefix, fed),
        *_project(spec, prefix, fed, shallow),
        *_attend(spec, prefix, fed, first_pairs, first_keys, 1),
        *_finish(spec, prefix, fed, range(1), load),
    ]
    if shape.masked_fed.any():
        ops += _evict(spec, shape, kept)
    if spec.num_layers > 1:
        later_pairs = int((shape.kept * shape.later_keys).sum())
        later_keys = int(shape.later_keys.sum())
        ops += [
            *_project(spec, suffix, kept, spec.num_layers - shallow),
            *_attend(spec, suffix, kept, later_pairs, later_keys, spec.num_layers - 1),
            *_finish(spec, suffix, kept, range(1, spec.num_layers), load),
        ]
    if shape.head_rows:
        ops += _head(spec, shape.head_rows)
    return ops


def _embedding(spec: ModelSpec, phase: Phase, tokens: int) -> OpCost:
    num_bytes = 2 * tokens * spec.hidden_size * spec.dtype_bytes
    return OpCost(name="embedding", phase=phase, flops=0, num_bytes=num_bytes, launches=1)


def _matrix(
    spec: ModelSpec, name: str, phase: Phase, *, rows: int, inner: int, outer: int, layers: int
) -> OpCost:
    """`layers` products of [rows, inner] by a weight [inner, outer]."""
    elements = inner * outer + rows * (inner + outer)
    return OpCost(
        name=name,
        phase=phase,
        flops=2 * rows * inner * outer * layers,
        num_bytes=elements * spec.dtype_bytes * layers,
        launches=layers,
    )


def _elementwise(
    spec: ModelSpec, name: str, phase: Phase, *, elements: int, layers: int, launches: int = 1
) -> OpCost:
    """`layers` times `elements` numbers read or written, without products."""
    return OpCost(
        name=name,
        phase=phase,
        flops=0,
        num_bytes=elements * spec.dtype_bytes * layers,
        launches=launches * layers,
    )


def _project(spec: ModelSpec, phase: Phase, tokens: int, layers: int) -> list[OpCost]:
    """Input norm, fused query-key-value product, QK norm and rotary embedding, K/V write."""
    h, qkv = spec.hidden_size, spec.q_size + 2 * spec.kv_size
    rotated = spec.q_size + spec.kv_size
    return [
        _elementwise(spec, "norms", phase, elements=2 * tokens * h, layers=layers),
        _matrix(spec, "qkv", phase, rows=tokens, inner=h, outer=qkv, layers=layers),
        _elementwise(spec, "qk_norm_rope", phase, elements=2 * tokens * rotated, layers=layers),
        _elementwise(spec, "kv_write", phase, elements=4 * tokens * spec.kv_size, layers=layers),
    ]


def _attend(
    spec: ModelSpec, phase: Phase, tokens: int, pairs: int, keys: int, layers: int
) -> list[OpCost]:
    """Scores and weighted values over the cache, one fused kernel a layer.

    The keys of a sequence are read once by the scores, its values once by the second product.
    """
    half_bytes = (keys * spec.kv_size + tokens * spec.q_size) * spec.dtype_bytes * layers
    flops = 2 * pairs * spec.q_size * layers
    return [
        OpCost(
            name="attention_scores",
            phase=phase,
            flops=flops,
            num_bytes=half_bytes,
            launches=layers,
        ),
        OpCost(
            name="attention_values",
            phase=phase,
            flops=flops,
            num_bytes=half_bytes,
            launches=0,
        ),
    ]


def _finish(
    spec: ModelSpec, phase: Phase, tokens: int, layers: range, load: ExpertLoad
) -> list[OpCost]:
    """Output projection, post norm and feed-forward of the layers, with both residuals."""
    h, count = spec.hidden_size, len(layers)
    dense = len(range(layers.start, min(layers.stop, spec.num_dense_layers)))
    ops = [
        _matrix(spec, "o", phase, rows=tokens, inner=spec.q_size, outer=h, layers=count),
        _elementwise(spec, "norms", phase, elements=4 * tokens * h, layers=count),
    ]
    if dense:
        ops += _swiglu(spec, "", phase, tokens, spec.intermediate_size, dense)
    if spec.experts is not None and count > dense:
        ops += _experts(spec, spec.experts, phase, tokens, count - dense, load)
    return ops


def _swiglu(
    spec: ModelSpec, prefix: str, phase: Phase, tokens: int, wide: int, layers: int
) -> list[OpCost]:
    """A feed-forward of width `wide` that all tokens go through."""
    h = spec.hidden_size
    return [
        _matrix(
            spec, f"{prefix}gate_up", phase, rows=tokens, inner=h, outer=2 * wide, layers=layers
        ),
        _elementwise(spec, f"{prefix}silu_mul", phase, elements=3 * tokens * wide, layers=layers),
        _matrix(spec, f"{prefix}down", phase, rows=tokens, inner=wide, outer=h, layers=layers),
    ]


def _experts(
    spec: ModelSpec, experts: ExpertSpec, phase: Phase, tokens: int, layers: int, load: ExpertLoad
) -> list[OpCost]:
    """Router, choice and sort, grouped products of the touched experts, their sum, shared expert.

    The first product reads a token once, however many experts it goes to, and ends in SiLU and
    multiplication; outputs are written expert by expert, and `expert_combine` adds them up.
    """
    h, size, pairs = spec.hidden_size, spec.dtype_bytes, tokens * experts.experts_per_token
    touched = load.expected_touched(experts, tokens)
    router_bytes = ROUTER_BYTES * (experts.router_params(h) + tokens * experts.num_experts)
    choice_bytes = ROUTER_BYTES * tokens * experts.num_experts + 8 * pairs  # ids and weights

    def grouped(name: str, *, weight: int, moved: int) -> OpCost:
        return OpCost(
            name=name,
            phase=phase,
            flops=2 * pairs * weight * layers,
            num_bytes=(round(touched * weight) + moved) * size * layers,
            launches=layers,
        )

    wide = experts.expert_size
    ops = [
        OpCost(
            name="router",
            phase=phase,
            flops=2 * tokens * h * experts.num_experts * layers,
            num_bytes=(router_bytes + tokens * h * size) * layers,
            launches=layers,
        ),
        OpCost(
            name="expert_choice",
            phase=phase,
            flops=0,
            num_bytes=choice_bytes * layers,
            launches=2 * layers,
        ),
        grouped("expert_gate_up", weight=2 * h * wide, moved=tokens * h + pairs * wide),
        grouped("expert_down", weight=h * wide, moved=pairs * (wide + h)),
        _elementwise(spec, "expert_combine", phase, elements=(pairs + tokens) * h, layers=layers),
    ]
    if experts.shared_size:
        ops += _swiglu(spec, "shared_", phase, tokens, experts.shared_size, layers)
    return ops


def _evict(spec: ModelSpec, shape: DecodeShape, kept: int) -> list[OpCost]:
    """Importance in layers 0 and 1 (scores of masked fed positions), then compaction."""
    masked = shape.masked_fed
    compacted = 2 * kept * (spec.hidden_size + spec.q_size)  # hidden states and queries
    return [
        OpCost(
            name="importance",
            phase=Phase.EVICTION,
            flops=2 * 2 * spec.q_size * int((masked**2).sum()),
            num_bytes=2 * int(masked.sum()) * (spec.q_size + spec.kv_size) * spec.dtype_bytes,
            launches=2,
        ),
        _elementwise(spec, "compaction", Phase.EVICTION, elements=compacted, layers=1, launches=3),
    ]


def _head(spec: ModelSpec, rows: int) -> list[OpCost]:
    """Final norm, vocabulary product and sampling, for the rows whose logits are needed."""
    h, vocabulary, phase = spec.hidden_size, spec.vocab_size, Phase.HEAD
    logits_bytes = 4 * rows * vocabulary  # float32: written by the product, read by the sampler
    return [
        _elementwise(spec, "norms", phase, elements=2 * rows * h, layers=1),
        OpCost(
            name="head",
            phase=phase,
            flops=2 * rows * h * vocabulary,
            num_bytes=(vocabulary * h + rows * h) * spec.dtype_bytes + logits_bytes,
            launches=1,
        ),
        OpCost(name="sampling", phase=phase, flops=0, num_bytes=logits_bytes, launches=2),
    ]
