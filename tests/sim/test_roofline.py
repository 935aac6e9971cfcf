"""The roofline's arithmetic, on operations whose times are known."""

import numpy as np
import pytest

from focus_bench.core.costs import DecodeShape, OpCost, Phase, PrefillShape, StepShape
from focus_bench.core.errors import UsageError
from focus_bench.core.hardware import Hardware, get_hardware
from focus_bench.core.model_spec import PRESETS
from focus_bench.sim.roofline import Efficiency, RooflineModel

HARDWARE = Hardware(
    name="round",
    full_name="Round Numbers",
    dense_16bit_flops=1e12,
    memory_bandwidth=1e10,
    memory_bytes=10**9,
    host_link_bandwidth=1e9,
    tdp_w=100.0,
    source="a test",
)
EFFICIENCY = Efficiency(
    gemm=0.5,
    attention=0.25,
    bandwidth=0.5,
    host_link=0.5,
    launch_s=1e-3,
    host_step_s=0.5,
    host_row_s=0.1,
)
MODEL = RooflineModel(spec=PRESETS["sdar-8b"], hardware=HARDWARE, efficiency=EFFICIENCY)


def op(name: str, flops: int, num_bytes: int, launches: int = 0) -> OpCost:
    return OpCost(
        name=name, phase=Phase.SUFFIX, flops=flops, num_bytes=num_bytes, launches=launches
    )


def test_an_operation_takes_the_longer_of_compute_and_memory() -> None:
    assert MODEL.op_s(op("qkv", 10**12, 0)) == pytest.approx(2.0)
    assert MODEL.op_s(op("qkv", 10**12, 10**9)) == pytest.approx(2.0)
    assert MODEL.op_s(op("qkv", 10**12, 2 * 10**10)) == pytest.approx(4.0)
    assert MODEL.op_s(op("attention_scores", 10**12, 0)) == pytest.approx(4.0)
    assert MODEL.op_s(op("norms", 0, 0, launches=7)) == pytest.approx(7e-3)


def shape(rows: int, kept: int = 32, swapped_pages: int = 0, prefill: int = 0) -> StepShape:
    def full(value: int) -> np.ndarray:
        return np.full(rows, value, dtype=np.int64)

    chunk = np.array([prefill] if prefill else [], dtype=np.int64)
    return StepShape(
        prefill=PrefillShape(start=0 * chunk, length=chunk, block_length=32),
        forwards=(
            DecodeShape(
                fed=full(32),
                kept=full(kept),
                masked_fed=full(30 if kept < 32 else 0),
                first_keys=full(232),
                later_keys=full(200 + kept),
                head_rows=rows * kept,
            ),
        ),
        swapped_pages=swapped_pages,
        page_size=64,
    )


def test_parts_add_up_and_belong_where_they_should() -> None:
    timing = MODEL.step_timing(shape(4, kept=8, swapped_pages=3, prefill=64))
    parts = (
        timing.prefill_s,
        timing.prefix_s,
        timing.eviction_s,
        timing.suffix_s,
        timing.head_s,
        timing.swap_s,
        timing.host_s,
    )
    assert timing.duration_s == pytest.approx(sum(parts))
    assert min(parts) > 0
    assert timing.host_s == pytest.approx(0.5 + 4 * 0.1)
    assert timing.swap_s == pytest.approx(3 * 64 * 147_456 / 0.5e9)
    whole = MODEL.step_timing(shape(4))
    assert (whole.eviction_s, whole.swap_s, whole.prefill_s) == (0.0, 0.0, 0.0)


def test_small_batches_read_weights_and_large_ones_compute() -> None:
    model = RooflineModel(spec=PRESETS["sdar-8b"], hardware=get_hardware("h200"))
    one, two, many, twice = (model.step_timing(shape(rows)).duration_s for rows in (1, 2, 128, 256))
    assert two < 1.2 * one  # 64 tokens: the weights' bytes
    assert twice == pytest.approx(2 * many, rel=0.05)  # thousands: FLOPs


def test_eviction_pays_where_compute_is_the_limit() -> None:
    model = RooflineModel(spec=PRESETS["sdar-8b"], hardware=get_hardware("h200"))
    saved = [
        model.step_timing(shape(rows)).duration_s / model.step_timing(shape(rows, 8)).duration_s
        for rows in (1, 256)
    ]
    assert saved[0] < 1.1
    assert saved[1] > 3.0


def test_an_efficiency_outside_its_range_is_refused() -> None:
    with pytest.raises(UsageError, match=r"efficiency gemm: 1\.5"):
        Efficiency(gemm=1.5)
    with pytest.raises(UsageError, match="efficiency launch_s"):
        Efficiency(launch_s=-1.0)
