"""Calibrating models with experts: what each call does, how tokens spread, the whole procedure."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from calibration_fakes import FakeTimer, Kernels, Products, replace_launchers

from focus_bench.core.curve_samples import Point
from focus_bench.core.errors import UsageError
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.gpu_profile_file import load_gpu_calibration, save_gpu_calibration
from focus_bench.core.model_spec import PRESETS, ModelSpec
from focus_bench.core.op_curves import curves_of_model
from focus_bench.core.profile_check import profile_problems
from focus_bench.engine import calibrate_gpu, measured_states
from focus_bench.engine.calibrate_gpu import Scale, measure_operations
from focus_bench.engine.calibration_grid import EXPERT_ROWS, Limits, PlannedPoint, planned_points
from focus_bench.engine.models.experts import ExpertWeights
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.weights import dummy_model

SCALE = Scale(rows=256, cache_tokens=8192, copy_bytes=4096, gemm_rows=16, batches=(1, 2))
HIDDEN, Q, KV, WIDE, SIZE, SHARED = 64, 128, 64, 96, 32, 48
# LLaDA2's layers: half of each head is rotated, the first layer is dense, one expert is shared.
LLADA2 = PRESETS["dummy-tiny"].replace(
    name="tiny-llada2",
    family="llada2",
    rotary_share=0.5,
    num_layers=5,
    hidden_size=HIDDEN,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=WIDE,
    dtype="bfloat16",
    experts=ExpertSpec(
        num_experts=16,
        experts_per_token=3,
        expert_size=SIZE,
        shared_size=SHARED,
        num_dense_layers=1,
        router="sigmoid",
        has_router_bias=True,
        num_groups=4,
        num_kept_groups=2,
        routed_scale=2.5,
    ),
)
SDAR_MOE = LLADA2.replace(
    name="tiny-sdar-moe",
    family="sdar",
    rotary_share=1.0,
    experts=ExpertSpec(num_experts=16, experts_per_token=3, expert_size=SIZE),
)
CPU = torch.device("cpu")
MODELS = {spec.name: dummy_model(spec, seed=0, device=CPU) for spec in (LLADA2, SDAR_MOE)}
each_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return replace_launchers(monkeypatch)


def model_of(name: str) -> MoeModel:
    model = MODELS[name]
    assert isinstance(model, MoeModel)
    return model


def sample(
    name: str, kernels: Kernels, curve: str, *point: int
) -> tuple[FakeTimer, list[tuple[int, int, int]]]:
    """Measure one point; the log holds what the timed calls took only."""

    class Logging(FakeTimer):
        def device_s(self, calls):  # type: ignore[no-untyped-def]
            kernels.log.clear()
            products.shapes.clear()
            return super().device_s(calls)

    timer = Logging(kernels)
    measured = calibrate_gpu._Operations(model_of(name), timer, SCALE, seed=0)
    with torch.inference_mode(), Products() as products:
        measured.sampled(PlannedPoint(curve=curve, point=point, coarse=True), 0)
    return timer, products.shapes


ROUTED = ["route", "experts"]


@each_model
def test_calls_are_the_engines_own(name: str, kernels: Kernels) -> None:
    shared = name == "tiny-llada2"
    of_shared = ["silu_mul"] if shared else []
    expected = {
        "route": (["route"], [(64, HIDDEN, 16)]),
        "experts": (
            [*of_shared, "experts"],
            [(64, HIDDEN, 2 * SHARED), (64, SHARED, HIDDEN)] if shared else [],
        ),
    }
    expected["finish"] = (
        ["rms_norm", *expected["route"][0], *expected["experts"][0]],
        [(64, Q, HIDDEN), *expected["experts"][1], *expected["route"][1]],
    )
    if shared:
        dense = [(64, HIDDEN, 2 * WIDE), (64, WIDE, HIDDEN)]
        expected["dense_finish"] = (["rms_norm", "silu_mul"], [(64, Q, HIDDEN), *dense])
        expected["gate_up"], expected["down"] = ([], dense[:1]), ([], dense[1:])
        expected["silu_mul"] = (["silu_mul"], [])
    for curve, (launched, products) in expected.items():
        timer, found = sample(name, kernels, curve, 64)
        (calls,) = timer.lengths
        assert calls == (1 if curve == "silu_mul" else 2)
        assert sorted(kernels.names) == sorted(launched * calls), curve
        assert sorted(found) == sorted(products * calls), curve
    # Layers in turn, none of them the dense one.
    sample(name, kernels, "finish", 64)
    layers = [model_of(name).layers[i].feed_forward for i in ((1, 2) if shared else (0, 1))]
    assert all(isinstance(weights, ExpertWeights) for weights in layers)
    assert [e[2:] for e in kernels.log if e[0] == "experts"] == [
        (weights.gate_up.data_ptr(), shared) for weights in layers
    ]


def test_so_many_layers_are_taken_in_turn_as_outgrow_the_cache(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_expert = 2 * 3 * HIDDEN * SIZE
    monkeypatch.setattr(measured_states, "_l2_bytes", lambda _: 2 * one_expert)
    # One row reads 3 experts: 3 layers are needed for 4 times the cache. Many read all 16: 2.
    for rows, layers in ((1, 3), (200, 2)):
        timer, _ = sample("tiny-llada2", kernels, "experts", rows)
        assert timer.lengths == [layers], rows
    down = 2 * HIDDEN * WIDE
    monkeypatch.setattr(measured_states, "_l2_bytes", lambda _: down)
    timer, _ = sample("tiny-llada2", kernels, "down", 64)
    assert timer.lengths == [4]  # copies of the one dense layer


def test_copies_of_the_dense_layer_lie_apart_and_are_equal() -> None:
    from focus_bench.engine.measured_finish import _dense_copies
    from focus_bench.engine.measured_states import MeasuredStates

    model = model_of("tiny-llada2")
    copies = _dense_copies(model, MeasuredStates(model))
    first = model.layers[0]
    assert copies.spec.num_layers == len(copies.layers) == 2
    for field, own in (("out", first.out), ("down", first.feed_forward.down)):
        tensors = [own, *(getattr(layer, field) for layer in copies.layers)]
        assert len({tensor.data_ptr() for tensor in tensors}) == 3
        assert all(torch.equal(tensor, own) for tensor in tensors)


def test_what_is_planned_is_what_the_model_has() -> None:
    limits = Limits(cache_tokens=800_000, sequence_tokens=32_768, page_size=64)
    for spec in (None, LLADA2.experts, SDAR_MOE.experts):
        planned = planned_points(limits, spec)
        measured = {point.curve for point in planned}
        assert {c for c in curves_of_model(spec) if not c.startswith("host_step")} <= measured
        assert measured <= set(curves_of_model(spec))
        if spec is not None:
            for curve in ("finish", "experts"):
                rows = sorted(p.point[0] for p in planned if p.curve == curve)
                assert rows == list(EXPERT_ROWS)


@each_model
def test_every_curve_is_measured_with_the_load_and_survives_its_file(
    name: str, kernels: Kernels, tmp_path: Path
) -> None:
    spec = model_of(name).spec
    calibration, samples = measure_operations(
        MODELS[name],
        timer=FakeTimer(kernels),
        seconds=0.0,
        scale=SCALE,
        only=lambda point: point.coarse,
    )
    assert list(calibration.curves) == list(curves_of_model(spec.experts))
    assert {s.curve for s in samples} == set(calibration.curves)
    experts = calibration.experts
    assert experts is not None
    assert (experts.spec, experts.dense_width) == (spec.experts, WIDE)
    # Token t goes to experts t, t + 1 and t + 2 of 16.
    load = experts.load
    assert [[float(rows)] for rows in load.rows] == calibration.curves["experts"].points.tolist()
    assert load.rows[0] == 1
    for rows, touched, share in zip(load.rows, load.touched, load.largest_share, strict=True):
        assert touched == min(16, rows + 2)
        ids = (np.arange(rows)[:, None] + np.arange(3)) % 16
        assert share == pytest.approx(np.bincount(ids.ravel()).max() / (3 * rows))
    path = tmp_path / "profile.json"
    save_gpu_calibration(calibration, path)
    again = load_gpu_calibration(path)
    assert again.is_of(spec)
    assert again.experts == replace(
        experts,
        load=replace(
            load, largest_share=tuple(float(f"{share:.6g}") for share in load.largest_share)
        ),
    )
    assert [p for p in profile_problems(again) if not p.startswith("settings cuda")] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled; tests/gpu runs them")
@each_model
@pytest.mark.parametrize(
    ("curve", "point"),
    [
        ("route", (3,)),
        ("experts", (3,)),
        ("finish", (2,)),
        ("dense_finish", (2,)),
        ("qk_norm_rope", (5,)),
        ("project", (2,)),
        ("attention_decode", (2, 3, 40)),
        ("importance", (3, 8)),
        ("compaction", (3, 8, 4)),
        ("launch_first", (2,)),
        ("launch_prefill", (32,)),
    ],
)
def test_the_real_launchers_take_what_is_measured(name: str, curve: str, point: Point) -> None:
    """Interpreted: shapes, types and layouts pass their checks."""
    spec = model_of(name).spec
    if curve not in curves_of_model(spec.experts):
        pytest.skip("no layer is dense")
    timer = FakeTimer(Kernels())
    few = replace(SCALE, rows=64, cache_tokens=128)  # so few calls in turn
    operations = calibrate_gpu._Operations(MODELS[name], timer, few, seed=0)
    with torch.inference_mode():
        operations.sampled(PlannedPoint(curve=curve, point=point, coarse=True), 0)
    assert timer.device_calls + timer.host_calls == 1
    if curve == "experts":
        measured = operations.experts
        assert measured is not None
        assert measured.load.rows == (3,)
        assert 3.0 <= measured.load.touched[0] <= 9.0


def test_a_model_of_dense_layers_alone_is_refused() -> None:
    assert LLADA2.experts is not None
    spec: ModelSpec = LLADA2.replace(experts=LLADA2.experts.replace(num_dense_layers=5))
    with pytest.raises(UsageError, match="some layers have experts"):
        calibrate_gpu._Operations(
            dummy_model(spec, seed=0, device=CPU), FakeTimer(Kernels()), SCALE, seed=0
        )
