"""Calibrating a GPU, by a timer that does not time and kernels that say what they were given.

The procedure runs whole on a CPU; tests/gpu runs it with the real ones.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calibration_fakes import FakeTimer, Kernels, Products, replace_launchers

from focus_bench.core.calibration import CalibrationSamples
from focus_bench.core.config import EngineConfig
from focus_bench.core.curve_samples import Point
from focus_bench.core.errors import CapacityError, UsageError
from focus_bench.core.gpu_profile_file import load_gpu_calibration, save_gpu_calibration
from focus_bench.core.op_curves import CURVES, STEP_MODES, curves_of_model
from focus_bench.core.profile_check import profile_problems
from focus_bench.engine import calibrate_gpu, measured_states
from focus_bench.engine.calibrate_gpu import PAGE_SIZE, Scale, measure_operations
from focus_bench.engine.calibration_grid import PlannedPoint, planned_points
from focus_bench.engine.gpu_facts import driver_version, kernel_revision
from focus_bench.engine.models import fused_base
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.weights import load_model

SCALE = Scale(rows=256, cache_tokens=1024, copy_bytes=4096, gemm_rows=16, batches=(1, 2))
WHOLE = replace(SCALE, cache_tokens=8192)  # room for a point of every curve
LAYERS, HIDDEN, Q, KV, WIDE = 8, 256, 256, 64, 768  # of dummy-tiny


@pytest.fixture(scope="module")
def model() -> BlockDiffusionModel:
    config = EngineConfig(model="dummy-tiny", load_format="dummy", device="cpu", dtype="bfloat16")
    return load_model(config, seed=0)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return replace_launchers(monkeypatch)


def operations(model: BlockDiffusionModel, timer: FakeTimer) -> calibrate_gpu._Operations:
    return calibrate_gpu._Operations(model, timer, SCALE, seed=0)


def sample(
    model: BlockDiffusionModel, kernels: Kernels, curve: str, *point: int
) -> tuple[FakeTimer, list[tuple[int, int, int]]]:
    """Measure one point; the log holds what that took only."""
    timer = FakeTimer(kernels)
    measured = operations(model, timer)
    kernels.log.clear()
    with torch.inference_mode(), Products() as products:
        samples = measured.sampled(PlannedPoint(curve=curve, point=point, coarse=True), 2)
    assert {(s.curve, s.point, s.round) for s in samples} == {(curve, point, 2)}
    assert [s.sample for s in samples] == list(range(len(samples)))
    return timer, products.shapes


PRODUCT_SHAPES = {
    "qkv": (HIDDEN, Q + 2 * KV),
    "o": (Q, HIDDEN),
    "gate_up": (HIDDEN, 2 * WIDE),
    "down": (WIDE, HIDDEN),
}


@pytest.mark.parametrize("curve", PRODUCT_SHAPES)
@pytest.mark.parametrize("rows", [1, 32, 33, 64])
def test_a_product_is_the_engines_own(
    model: BlockDiffusionModel, kernels: Kernels, curve: str, rows: int
) -> None:
    timer, products = sample(model, kernels, curve, rows)
    inner, outer = PRODUCT_SHAPES[curve]
    calls = timer.lengths[0]
    assert calls >= 2
    if curve != "qkv" and rows <= fused_base.MAX_SKINNY_ROWS:
        assert kernels.log == [("skinny_linear", rows, outer, inner)] * calls
        assert products == []
    else:
        assert kernels.log == []
        assert products == [(rows, inner, outer)] * calls


def test_weights_are_taken_in_turn_until_they_outgrow_the_cache(
    model: BlockDiffusionModel, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    down_bytes = WIDE * HIDDEN * 2
    for l2_bytes, layers in ((0, 2), (down_bytes, 4), (10**9, LAYERS)):
        monkeypatch.setattr(measured_states, "_l2_bytes", lambda _, size=l2_bytes: size)
        timer, _ = sample(model, kernels, "down", 64)
        assert timer.lengths == [layers]


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ("rms_norm", ["rms_norm"]),
        ("silu_mul", ["silu_mul"]),
        ("qk_norm_rope", ["qk_norm_rope"] * LAYERS),
        ("project", ["rms_norm", "qk_norm_rope"] * 2),
        ("finish", ["rms_norm", "silu_mul"] * 2),
        ("embed_rope", []),
        ("head", ["rms_norm", "unmask_head"]),
    ],
)
def test_what_lies_between_products(
    model: BlockDiffusionModel, kernels: Kernels, curve: str, expected: list[str]
) -> None:
    timer, _ = sample(model, kernels, curve, 128)
    assert kernels.names == expected
    assert all(entry[1] == 128 for entry in kernels.log)
    assert (timer.device_calls, timer.sustained_calls, timer.host_calls) == (1, 0, 0)


def test_a_lasting_load_is_whole_layers(model: BlockDiffusionModel, kernels: Kernels) -> None:
    timer, products = sample(model, kernels, "layer_sustained", 64)
    assert (timer.device_calls, timer.sustained_calls) == (0, 1)
    assert kernels.names == ["rms_norm", "qk_norm_rope", "rms_norm", "silu_mul"]
    assert products == [(64, *PRODUCT_SHAPES[name]) for name in ("qkv", "o", "gate_up", "down")]


def attended(kernels: Kernels) -> list[Any]:
    assert set(kernels.names) == {"attention"}
    return [entry[1] for entry in kernels.log]


def test_decode_attention_has_the_bounds_of_a_step(
    model: BlockDiffusionModel, kernels: Kernels
) -> None:
    sample(model, kernels, "attention_decode", 4, 12, 100)
    layouts = attended(kernels)
    for layout in layouts:
        assert layout.cu_queries.tolist() == [0, 12, 24, 36, 48]
        assert layout.num_keys.tolist() == [100] * 4
        assert layout.page_table.shape == (4, 4096 // PAGE_SIZE)
        assert (layout.max_queries, layout.max_keys) == (32, 4096)
        assert layout.block_length is None
        pages = layout.page_table[:, :2].flatten().tolist()
        assert len(set(pages)) == 8
        assert max(pages) < 1024 // PAGE_SIZE
    # The cache of 16 pages holds two sets of 8, each in both layers; no set shares a page.
    tables = {tuple(layout.page_table[:, :2].flatten().tolist()) for layout in layouts}
    assert len(layouts) == 4
    assert len(set().union(*tables)) == sum(len(table) for table in tables) == 16
    assert len({entry[3].data_ptr() for entry in kernels.log}) == 2
    assert all(entry[2].shape == (48, 8, 32) for entry in kernels.log)


def test_one_sequence_may_be_longer_than_all_others(
    model: BlockDiffusionModel, kernels: Kernels
) -> None:
    sample(model, kernels, "attention_longest", 3, 512)
    for layout in attended(kernels):
        assert layout.cu_queries.tolist() == [0, 10, 20, 30]
        assert layout.num_keys.tolist() == [256, 512, 256]
        assert layout.max_keys == 4096


def test_ragged_sequences_keep_their_means(model: BlockDiffusionModel, kernels: Kernels) -> None:
    sample(model, kernels, "attention_ragged", 8, 10, 50)
    for layout in attended(kernels):
        queries = layout.cu_queries.diff()
        assert queries.sum() == 80
        assert sorted(queries.tolist()) == [2, 4, 7, 9, 11, 13, 16, 18]
        assert layout.num_keys.sum() == pytest.approx(400, abs=4)
        assert (layout.num_keys.min(), layout.num_keys.max()) == (10, 90)
        assert layout.max_queries == 32


def test_prefill_is_block_causal_behind_its_history(
    model: BlockDiffusionModel, kernels: Kernels
) -> None:
    sample(model, kernels, "attention_prefill", 2, 128, 192)
    for layout in attended(kernels):
        assert layout.cu_queries.tolist() == [0, 128, 256]
        assert layout.query_start.tolist() == [192, 192]
        assert layout.num_keys.tolist() == [320, 320]
        assert (layout.max_queries, layout.max_keys, layout.block_length) == (128, 320, 32)
        assert layout.page_table.shape == (2, 5)


def test_parts_of_eviction(model: BlockDiffusionModel, kernels: Kernels) -> None:
    sample(model, kernels, "importance", 3, 8)
    name, tokens, heads, head_dim, masked = kernels.log[0]
    assert (name, tokens, heads, head_dim) == ("importance", 24, 8, 32)
    assert masked.cu_masked.tolist() == [0, 8, 16, 24]
    assert masked.column.tolist() == list(range(8)) * 3
    sample(model, kernels, "selection", 5)
    assert kernels.log == [("select", 5, 32, "top")]
    sample(model, kernels, "compaction", 4, 16, 8)
    assert kernels.log == [("compact", 4, 64, 32)]


def test_launches_are_whole_stages_on_the_hosts_clock(
    model: BlockDiffusionModel, kernels: Kernels
) -> None:
    project = ["rms_norm", "qk_norm_rope"]
    finish = ["attention", "rms_norm", "silu_mul"]
    later = [*finish, *(project + finish) * (LAYERS - 2)]
    stages = {
        "launch_first": [*project, *finish, *project],
        "replay_first": [*project, *finish, *project],
        "launch_prefill": [*(project + finish) * (LAYERS - 1), *project],
        "launch_eviction": ["importance", "select", "compact"],
        "launch_head": ["rms_norm", "unmask_head"],
        "host_readback": [],
        "swap_out": [],
        "swap_in": [],
    }
    for curve, expected in stages.items():
        timer, _ = sample(model, kernels, curve, 64)
        assert kernels.names == expected, curve
        assert (timer.device_calls, timer.host_calls) == (0, 1)
        assert timer.num_captured == (curve == "replay_first")
    for curve in ("launch_later", "replay_later"):  # after the first layers, which make their input
        sample(model, kernels, curve, 64)
        assert kernels.names == [*stages["launch_first"], *later], curve


def test_every_curve_is_measured_and_survives_its_file(
    model: BlockDiffusionModel, kernels: Kernels, tmp_path: Path
) -> None:
    timer = FakeTimer(kernels)
    calibration, samples = measure_operations(
        model, timer=timer, seconds=0.0, scale=WHOLE, only=lambda point: point.coarse
    )
    assert list(calibration.curves) == list(curves_of_model(None))
    assert calibration.experts is None
    assert timer.sustained_calls == 1 + calibration.curves["layer_sustained"].num_points
    for name, curve in calibration.curves.items():
        assert curve.axes == CURVES[name].axes
        points = [tuple(point) for point in curve.points.tolist()]
        assert points == sorted(set(points))
        assert {s.point for s in samples if s.curve == name} == {
            tuple(int(v) for v in point) for point in points
        }
        if CURVES[name].clock == "device" and name != "layer_sustained":
            assert curve.seconds.tolist() == [3e-5] * curve.num_points
            assert curve.spread == pytest.approx([0.34 / 1.5] * curve.num_points)
    for mode in STEP_MODES:
        steps = calibration.steps[mode]
        counts = steps.counts
        alike = {b: (counts["rows"] == b) & (counts["prefill_tokens"] == 0) for b in (1, 2)}
        curve = calibration.curves[f"host_step_{mode}"]
        assert curve.points.tolist() == [[1.0], [2.0]]
        for batch, seconds in zip((1, 2), curve.seconds, strict=True):
            assert seconds == pytest.approx(
                sorted(steps.seconds["host"][alike[batch]])[alike[batch].sum() // 2], rel=0.5
            )
    assert calibration.ceilings == {
        "copy_bytes_per_s": pytest.approx(2 * 4096 / 3e-5),
        "gemm_flops_per_s": pytest.approx(2 * 16**3 / 5e-5),
    }
    path = tmp_path / "profile.json"
    save_gpu_calibration(calibration, path)
    again = load_gpu_calibration(path)
    assert again.curves["project"].points.tolist() == calibration.curves["project"].points.tolist()
    assert dict(again.dimensions) == dict(calibration.dimensions)
    assert again.steps["graph"].num_steps == calibration.steps["graph"].num_steps
    # A CPU has no driver and no CUDA; nothing else is wrong with it.
    assert [p for p in profile_problems(again) if not p.startswith("settings cuda")] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled; tests/gpu runs them")
@pytest.mark.parametrize(
    ("curve", "point"),
    [
        ("qk_norm_rope", (5,)),
        ("project", (2,)),
        ("finish", (2,)),
        ("head", (3,)),
        ("attention_prefill", (2, 32, 64)),
        ("importance", (3, 8)),
        ("selection", (3,)),
        ("compaction", (3, 8, 4)),
        ("launch_eviction", (2,)),
    ],
)
def test_the_real_launchers_take_what_is_measured(
    model: BlockDiffusionModel, curve: str, point: Point
) -> None:
    """Interpreted: shapes, types and layouts pass their checks."""
    timer = FakeTimer(Kernels())
    with torch.inference_mode():
        operations(model, timer).sampled(PlannedPoint(curve=curve, point=point, coarse=True), 0)
    assert timer.device_calls + timer.host_calls == 1


def ticking(step_s: float) -> Callable[[], float]:
    now = [0.0]

    def clock() -> float:
        now[0] += step_s
        return now[0]

    return clock


def test_time_left_is_used_and_kept(
    model: BlockDiffusionModel, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coarse points come first; the limit ends the others, or all again."""
    monkeypatch.setattr(calibrate_gpu, "_steps", no_steps(model))
    wanted = {"rms_norm", "selection"}

    def measured(seconds: float) -> list[tuple[int, str, Point]]:
        _, samples = measure_operations(
            model,
            timer=FakeTimer(kernels),
            seconds=seconds,
            scale=SCALE,
            clock=ticking(1.0),
            only=lambda point: point.curve in wanted,
        )
        return [(s.round, s.curve, s.point) for s in samples if s.sample == 0 and s.curve in wanted]

    plan = [p for p in planned_points(operations(model, FakeTimer(kernels)).limits)]
    plan = [p for p in plan if p.curve in wanted]
    coarse = [(0, p.curve, p.point) for p in plan if p.coarse]
    rest = [(0, p.curve, p.point) for p in plan if not p.coarse]
    assert coarse
    assert rest
    assert measured(0.0) == coarse
    assert measured(6.0) == [*coarse, *rest[:2]]
    again = [(1, p.curve, p.point) for p in plan]
    assert measured(4.0 + len(rest) + 3) == [*coarse, *rest, *again[:3]]


@pytest.mark.parametrize(("seconds", "times_a_mode"), [(0.0, 1), (40.0, 2)])
def test_of_steps_measured_twice_the_faster_count(
    model: BlockDiffusionModel,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    times_a_mode: int,
) -> None:
    """Time is kept for a second pass, where the host was slow in other steps."""
    clock = ticking(1.0)
    measured: list[CalibrationSamples] = []
    first = calibrate_gpu._steps(model, "graph", Scale(batches=(1,)), 0)

    def steps(*_: Any) -> CalibrationSamples:
        for _ in range(5):
            clock()
        slow = np.arange(first.num_steps) % 2 == len(measured) // len(STEP_MODES)
        host_s = np.where(slow, 2.0, 1.0)
        measured.append(replace(first, seconds={**first.seconds, "host": host_s}))
        return measured[-1]

    monkeypatch.setattr(calibrate_gpu, "_steps", steps)
    calibration, _ = measure_operations(
        model,
        timer=FakeTimer(kernels),
        seconds=seconds,
        scale=replace(SCALE, batches=(1,)),
        clock=clock,
        only=lambda point: point.curve == "selection",
    )
    assert len(measured) == times_a_mode * len(STEP_MODES)
    assert calibration.duration_s <= max(seconds, 15.0) + 1.0
    slowest = {1: 2.0, 2: 1.0}[times_a_mode]
    for of_mode in calibration.steps.values():
        assert of_mode.num_steps > 2
        assert of_mode.seconds["host"].max() == slowest
        assert of_mode.seconds["suffix"].tolist() == first.seconds["suffix"].tolist()


def no_steps(model: BlockDiffusionModel) -> Callable[..., Any]:
    scale = Scale(batches=(1,))
    steps = calibrate_gpu._steps(model, "graph", scale, 0)
    return lambda *_: steps


def test_what_cannot_be_calibrated_is_refused(
    model: BlockDiffusionModel, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = FakeTimer(kernels)
    with pytest.raises(UsageError, match="--seconds"):
        measure_operations(model, timer=timer, seconds=math.nan)
    monkeypatch.setattr(calibrate_gpu, "memory_budget_bytes", lambda *_: 1 << 19)
    with pytest.raises(CapacityError, match="524,288 bytes had"):
        measure_operations(model, timer=timer, seconds=1.0, scale=SCALE)


def test_the_kernels_revision_follows_their_sources(tmp_path: Path) -> None:
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "kernel.py").write_text("x = 1\n")
    (tmp_path / "norm" / "benchmark.py").write_text("slow = True\n")
    before = kernel_revision(tmp_path)
    (tmp_path / "norm" / "benchmark.py").write_text("slow = False\n")
    assert kernel_revision(tmp_path) == before
    (tmp_path / "norm" / "kernel.py").write_text("x = 2\n")
    assert kernel_revision(tmp_path) != before
    assert len(kernel_revision()) == 12


def test_the_drivers_version_is_read_from_the_system(tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert driver_version(file) == "unknown"
    file.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    assert driver_version(file) == "580.159.04"
