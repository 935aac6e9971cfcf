"""Contract 2 and 4 for Fast-dLLM v2: the simulator makes the engine's plans, and counts the FLOPs
that PyTorch counts, with shifted logits on its own family and without them on SDAR's.
"""

import dataclasses
from pathlib import Path

import pytest
import test_costs
from test_costs import counted_steps
from test_engine_and_simulator import (
    SPEC,
    assert_same_steps,
    ends_of,
    make_point,
    measure,
    predict,
)

from focus_bench.core.config import AcceptanceConfig, DecodeConfig, PointConfig
from focus_bench.core.costs import step_ops, total_flops
from focus_bench.core.model_spec import ModelSpec

SHIFTED = SPEC.replace(family="fast-dllm-v2")
every_model = pytest.mark.parametrize("spec", [SPEC, SHIFTED], ids=["sdar", "shifted"])
every_policy = pytest.mark.parametrize("policy", ["baseline", "fast-dllm-v2"])


def point_of(policy: str, num_pages: int, **changes: object) -> PointConfig:
    point = make_point(policy, num_pages=num_pages, **changes)
    # Two sub-blocks, the second shorter.
    return dataclasses.replace(point, decode=dataclasses.replace(point.decode, block_length=12))


@every_policy
@every_model
@pytest.mark.parametrize("num_pages", [60, 12])
def test_a_replayed_trace_gives_the_engines_plans(
    policy: str, spec: ModelSpec, num_pages: int, tmp_path: Path
) -> None:
    point = point_of(policy, num_pages)
    engine, measured, trace = measure(point, spec)
    trace.save(tmp_path / "trace.npz")
    replay = AcceptanceConfig(kind="replay", path=str(tmp_path / "trace.npz"))
    simulator, predicted = predict(dataclasses.replace(point, acceptance=replay), spec)
    assert_same_steps(engine, simulator)
    assert ends_of(predicted) == ends_of(measured)
    assert {"stop", "length"} <= {r.finish_reason for r in measured.requests}
    assert any(r.preemptions for r in measured.requests) == (num_pages == 12)


@every_policy
@every_model
@pytest.mark.parametrize("scatter", [0.0, 0.5])
def test_synthetic_decoding_gives_the_engines_plans(
    policy: str, spec: ModelSpec, scatter: float
) -> None:
    acceptance = AcceptanceConfig(kind="synthetic", mean=2.0, scatter=scatter)
    point = point_of(policy, 12, acceptance=acceptance)
    engine, measured, _ = measure(point, spec)
    simulator, predicted = predict(point, spec)
    assert_same_steps(engine, simulator)
    assert ends_of(predicted) == ends_of(measured)
    assert [r.decoded_tokens for r in predicted.requests] == [
        r.decoded_tokens for r in measured.requests
    ]
    assert (predicted.step_fed_tokens, predicted.step_kept_tokens) == (
        measured.step_fed_tokens,
        measured.step_kept_tokens,
    )
    assert (policy == "baseline") == all(c.fed % 12 == 0 for c in engine.counts)


def test_synthetic_decoding_was_not_fitted_on_sub_blocks() -> None:
    acceptance = AcceptanceConfig(kind="synthetic", mean=2.351, preset="sharegpt")
    for policy, note in (("baseline", False), ("fast-dllm-v2", True)):
        point = make_point(policy, acceptance=acceptance)
        decode = dataclasses.replace(point.decode, block_length=32)
        _, predicted = predict(dataclasses.replace(point, decode=decode))
        assert ("extrapolated decode dynamics" in predicted.notes) == note


@pytest.mark.parametrize(
    ("policy", "family", "num_pages"),
    [
        ("fast-dllm-v2", "sdar", 64),
        ("fast-dllm-v2", "fast-dllm-v2", 64),
        ("fast-dllm-v2", "fast-dllm-v2", 8),
        ("baseline", "fast-dllm-v2", 64),
    ],
)
def test_flops_of_every_step_equal_those_counted(policy: str, family: str, num_pages: int) -> None:
    spec = test_costs.SPEC.replace(family=family)
    decode = DecodeConfig(policy=policy, block_length=12)
    steps = counted_steps(decode, spec, num_pages=num_pages)
    assert [total_flops(step_ops(spec, shape)) for shape, _ in steps] == [c for _, c in steps]
    forwards = [forward for shape, _ in steps for forward in shape.forwards]
    fed = {int(count) for forward in forwards for count in forward.fed}
    assert fed == ({12} if policy == "baseline" else {4, 8, 12})
    # Whatever a row feeds, it attends to its whole block.
    assert all((f.first_keys == f.later_keys).all() for f in forwards)
    assert any(shape.swapped_pages for shape, _ in steps) == (
        num_pages == 8 and policy == "fast-dllm-v2"
    )
