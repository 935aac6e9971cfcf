"""Costs against counts made another way: per token, per pair, per parameter."""

import numpy as np
import pytest

from focus_bench.core.costs import (
    DecodeShape,
    OpCost,
    Phase,
    PrefillShape,
    StepShape,
    decode_ops,
    prefill_ops,
    step_ops,
    swap_bytes,
    total_bytes,
    total_flops,
)
from focus_bench.core.model_spec import PRESETS

SPEC = PRESETS["sdar-8b"]
TINY = PRESETS["dummy-tiny"]


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def whole_block(rows: int, history: int, block_length: int = 32) -> DecodeShape:
    """Every position fed and kept, all masked, nothing evicted."""
    fed = np.full(rows, block_length)
    keys = np.full(rows, history + block_length)
    return DecodeShape(
        fed=fed,
        kept=fed,
        masked_fed=np.zeros(rows, dtype=np.int64),
        first_keys=keys,
        later_keys=keys,
        head_rows=rows * block_length,
    )


def flops_of(ops: list[OpCost], *names: str) -> int:
    return sum(op.flops for op in ops if op.name in names)


def test_projections_of_sdar_8b_are_five_h_squared_multiply_adds() -> None:
    # Query and output widths are h, key and value h / 4 each: 2.5 h^2 multiply-adds a token, 5 h^2
    # FLOPs. The paper's 8 h^2 would hold for key and value of width h.
    ops = decode_ops(SPEC, whole_block(1, 0))
    tokens = 32 * SPEC.num_layers
    assert flops_of(ops, "qkv", "o") == 5 * SPEC.hidden_size**2 * tokens
    feed_forward = 6 * SPEC.intermediate_size * SPEC.hidden_size * tokens
    assert flops_of(ops, "gate_up", "down") == feed_forward


def test_a_step_without_context_costs_two_flops_per_parameter_and_token() -> None:
    ops = decode_ops(SPEC, whole_block(3, 0))
    matrices = SPEC.num_layers * (SPEC.layer_params - 2 * SPEC.hidden_size - 2 * SPEC.head_dim) + (
        SPEC.vocab_size * SPEC.hidden_size
    )
    attention = flops_of(ops, "attention_scores", "attention_values")
    assert total_flops(tuple(ops)) - attention == 2 * matrices * 3 * 32
    assert attention == 4 * SPEC.q_size * 3 * 32 * 32 * SPEC.num_layers


def test_weights_are_read_once_however_many_tokens() -> None:
    one, many = (total_bytes(tuple(decode_ops(SPEC, whole_block(n, 0)))) for n in (1, 5))
    per_row = (many - one) / 4
    weights = one - per_row
    # Norm weights (4 per 10,000 bytes) are left out, the embedding is read by the row.
    embedding = SPEC.vocab_size * SPEC.hidden_size * SPEC.dtype_bytes
    assert weights == pytest.approx(SPEC.weight_bytes - embedding, rel=1e-3)


def test_prefill_pairs_equal_a_count_block_by_block() -> None:
    shape = PrefillShape(start=array(0, 64, 8), length=array(24, 8, 40), block_length=8)
    pairs = 0
    for start, length in zip(shape.start, shape.length, strict=True):
        for position in range(start, start + length):
            pairs += (position // 8 + 1) * 8
    assert shape.query_key_pairs == pairs


def test_prefill_needs_no_output_of_the_last_layer() -> None:
    shape = PrefillShape(start=array(0), length=array(16), block_length=8)
    ops = prefill_ops(TINY, shape)
    h, layers = TINY.hidden_size, TINY.num_layers
    qkv = 2 * 16 * h * (TINY.q_size + 2 * TINY.kv_size)
    rest = 2 * 16 * h * (TINY.q_size + 3 * TINY.intermediate_size)
    attention = 4 * TINY.q_size * (8 * 8 + 8 * 16)
    assert total_flops(tuple(ops)) == layers * qkv + (layers - 1) * (rest + attention)
    assert {op.phase for op in ops} == {Phase.PREFILL}


def test_prefilling_in_two_chunks_costs_the_same_flops() -> None:
    whole = PrefillShape(start=array(0), length=array(48), block_length=8)
    first = PrefillShape(start=array(0), length=array(16), block_length=8)
    second = PrefillShape(start=array(16), length=array(32), block_length=8)
    chunks = prefill_ops(TINY, first) + prefill_ops(TINY, second)
    assert total_flops(tuple(prefill_ops(TINY, whole))) == total_flops(tuple(chunks))
    # Only the weights are read twice, and the second chunk reads the first one's keys.
    assert total_bytes(tuple(prefill_ops(TINY, whole))) < total_bytes(tuple(chunks))


def test_eviction_saves_all_but_two_layers() -> None:
    whole = decode_ops(SPEC, whole_block(8, 500))
    kept = np.full(8, 8)
    evicting = DecodeShape(
        fed=np.full(8, 32),
        kept=kept,
        masked_fed=np.full(8, 30),
        first_keys=np.full(8, 532),
        later_keys=np.full(8, 508),
        head_rows=8 * 6,
    )
    evicted = decode_ops(SPEC, evicting)
    importance = [op for op in evicted if op.name == "importance"]
    assert [op.flops for op in importance] == [2 * (2 * SPEC.q_size * 30 * 30 * 8)]
    assert {op.phase for op in importance} == {Phase.EVICTION}
    assert Phase.EVICTION not in {op.phase for op in whole}

    def of_phase(ops: list[OpCost], phase: Phase) -> int:
        return sum(op.flops for op in ops if op.phase is phase)

    assert of_phase(evicted, Phase.PREFIX) == of_phase(whole, Phase.PREFIX)
    # Products shrink to a quarter, attention to a quarter of 508 / 532.
    shrunk = flops_of(whole, "qkv", "o", "gate_up", "down") - of_phase(whole, Phase.PREFIX)
    assert shrunk > 0
    ratio = of_phase(evicted, Phase.SUFFIX) / of_phase(whole, Phase.SUFFIX)
    assert 0.25 * 508 / 532 < ratio < 0.25


def test_a_step_adds_prefill_forwards_and_swaps() -> None:
    empty = PrefillShape(start=array(), length=array(), block_length=32)
    forward = whole_block(2, 64)
    once = StepShape(prefill=empty, forwards=(forward,), swapped_pages=3, page_size=64)
    twice = StepShape(prefill=empty, forwards=(forward, forward), swapped_pages=0, page_size=64)
    assert total_flops(step_ops(SPEC, twice)) == 2 * total_flops(step_ops(SPEC, once))
    assert swap_bytes(SPEC, once) == 3 * 64 * 147_456
    nothing = StepShape(prefill=empty, forwards=(), swapped_pages=0, page_size=64)
    assert step_ops(SPEC, nothing) == ()
