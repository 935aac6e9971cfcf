"""Calibrating on an NVIDIA GPU, small: times that are times, a file that its check accepts."""

from pathlib import Path

import pytest
import torch

from focus_bench.core.curve_samples import Sample
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.gpu_profile_file import load_gpu_calibration, save_gpu_calibration
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.op_curves import STEP_MODES, GpuCalibration, curves_of_model
from focus_bench.core.profile_check import profile_problems

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

# Its larger matrices do not fit into the L2 cache together; four heads per KV head.
SPEC = ModelSpec(
    name="wide",
    num_layers=6,
    hidden_size=2048,
    num_q_heads=8,
    num_kv_heads=2,
    head_dim=128,
    intermediate_size=8192,
    vocab_size=8192,
    mask_token_id=8191,
    dtype="bfloat16",
)
# A dense layer, then experts; half of each head is rotated.
EXPERTS = SPEC.replace(
    name="wide-llada2",
    family="llada2",
    rotary_share=0.5,
    experts=ExpertSpec(
        num_experts=64,
        experts_per_token=8,
        expert_size=512,
        shared_size=512,
        num_dense_layers=1,
        router="sigmoid",
        has_router_bias=True,
        num_groups=8,
        num_kept_groups=4,
        routed_scale=2.5,
    ),
)


@pytest.fixture(scope="module", params=[SPEC, EXPERTS], ids=lambda spec: spec.name)
def calibrated(request: pytest.FixtureRequest) -> tuple[GpuCalibration, list[Sample]]:
    from focus_bench.engine.calibrate_gpu import Scale, measure_operations
    from focus_bench.engine.op_timer import GraphTimer
    from focus_bench.engine.weights import dummy_model

    model = dummy_model(request.param, seed=0, device=torch.device("cuda"))
    scale = Scale(rows=2048, cache_tokens=1 << 16, gemm_rows=2048, batches=(1, 4))
    return measure_operations(model, timer=GraphTimer(), seconds=0.0, scale=scale)


def test_every_curve_and_every_mode_is_there(
    calibrated: tuple[GpuCalibration, list[Sample]], tmp_path: Path
) -> None:
    calibration, samples = calibrated
    experts = calibration.experts
    spec = None if experts is None else experts.spec
    assert list(calibration.curves) == list(curves_of_model(spec))
    assert {sample.curve for sample in samples} == set(calibration.curves)
    assert all(sample.seconds > 0 for sample in samples)
    assert {mode: calibration.steps[mode].kind for mode in STEP_MODES} == dict.fromkeys(
        STEP_MODES, "gpu"
    )
    path = tmp_path / "profile.json"
    save_gpu_calibration(calibration, path)
    # Few points lie far apart, products of other sizes may take another kernel, and other tests may
    # run beside this one; no more.
    may_be = ("held_out_p50", "and the noise less", "spread")
    found = profile_problems(load_gpu_calibration(path))
    assert [line for line in found if not any(part in line for part in may_be)] == []


def test_times_follow_the_work(calibrated: tuple[GpuCalibration, list[Sample]]) -> None:
    curves, experts = calibrated[0].curves, calibrated[0].experts
    for name in ("finish", "gate_up", "head", "silu_mul", "layer_sustained"):
        assert curves[name].seconds[-1] > curves[name].seconds[0]
    # What lies in sequence takes about what its parts take.

    def at_2048(name: str) -> float:
        curve = curves[name]
        return float(curve.seconds[curve.axis("rows") == 2048][0])

    dense = ("o", "rms_norm", "gate_up", "silu_mul", "down")
    strung = {"finish": dense}
    if experts is not None:
        strung = {"finish": ("o", "rms_norm", "route", "experts"), "dense_finish": dense}
    for whole, parts in strung.items():
        assert 0.5 < at_2048(whole) / sum(at_2048(name) for name in parts) < 2.0, whole
    # A graph is launched in less time than its kernels one by one.
    assert curves["replay_later"].seconds[-1] < curves["launch_later"].seconds[-1]


def test_tokens_are_counted_by_expert(calibrated: tuple[GpuCalibration, list[Sample]]) -> None:
    experts = calibrated[0].experts
    if experts is None:
        pytest.skip("dense")
    load = experts.load
    assert load.rows == tuple(calibrated[0].curves["experts"].axis("rows"))
    assert (load.touched[0], load.largest_share[0]) == (8.0, 0.125)
    assert load.touched[-1] == pytest.approx(64.0, abs=1.0)
    # One row reads an eighth of the experts.
    of_one, *_, of_all = calibrated[0].curves["experts"].seconds
    assert of_one < 0.8 * of_all


def test_a_timer_agrees_with_events_around_many_calls() -> None:
    from focus_bench.engine.op_timer import GraphTimer

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    timer = GraphTimer()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    in_graphs, in_turn = [], []
    for _ in range(8):  # whatever else runs on the device makes neither faster
        in_graphs += timer.device_s([lambda: torch.mm(a, a)])
        begin.record()
        for _ in range(50):
            torch.mm(a, a)
        end.record()
        end.synchronize()
        in_turn.append(begin.elapsed_time(end) * 1e-3 / 50)
    assert min(in_graphs) == pytest.approx(min(in_turn), rel=0.3)
    assert max(timer.host_s(lambda: None)) < 1e-3
