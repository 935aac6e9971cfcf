"""core.costs counts exactly the FLOPs that PyTorch counts on the CPU path, for the very step."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from focus_bench.core.config import (
    AcceptanceConfig,
    DecodeConfig,
    EngineConfig,
    ImportanceConfig,
    PointConfig,
    SamplingConfig,
    SchedulerConfig,
)
from focus_bench.core.costs import StepShape, step_ops, total_flops
from focus_bench.core.expert_spec import ExpertSpec
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.workload import Provenance, RequestSpec, Workload
from focus_bench.decoding.rules import StepRules
from focus_bench.engine.executor import EngineExecutor
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.weights import dummy_model
from focus_bench.scheduling.loop import WallClock, nothing, run_wall_clock
from focus_bench.scheduling.plan import Outcome, Plan
from focus_bench.scheduling.setup import build_loop
from focus_bench.scheduling.step_shape import step_shape

# Widths that all differ, so that no two terms can be taken for one another.
SPEC = ModelSpec(
    name="test",
    num_layers=4,
    hidden_size=48,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=80,
    vocab_size=130,
    mask_token_id=128,
    tokenizer_size=129,
    dtype="float32",
)
PAGE_SIZE = 8
# Attention of another family, a dense layer in front, experts and what they share of other widths.
LLADA2 = SPEC.replace(
    family="llada2",
    rotary_share=0.5,
    experts=ExpertSpec(
        num_experts=12,
        experts_per_token=3,
        expert_size=20,
        shared_size=28,
        num_dense_layers=1,
        router="sigmoid",
        has_router_bias=True,
        num_groups=4,
        num_kept_groups=2,
        routed_scale=2.5,
    ),
)
SDAR_MOE = SPEC.replace(experts=ExpertSpec(num_experts=10, experts_per_token=4, expert_size=20))


class CountingExecutor:
    """The engine's executor, with every step's FLOPs counted by PyTorch."""

    def __init__(self, inner: EngineExecutor, attention_cover: str) -> None:
        self.inner = inner
        self.attention_cover = attention_cover
        self.steps: list[tuple[StepShape, int]] = []

    def execute(self, plan: Plan, meanwhile: Callable[[], None] = nothing) -> Outcome:
        with FlopCounterMode(display=False) as counter:
            outcome = self.inner.execute(plan, meanwhile)
        shape = step_shape(
            plan,
            kept=outcome.kept,
            progress=outcome.progress,
            evicting=outcome.evicting,
            page_size=PAGE_SIZE,
            attention_cover=self.attention_cover,
        )
        self.steps.append((shape, counter.get_total_flops()))
        return outcome


def counted_steps(
    decode: DecodeConfig, spec: ModelSpec = SPEC, num_pages: int = 64
) -> list[tuple[StepShape, int]]:
    """Shape and counted FLOPs of every step of a small run with chunked prefill."""
    point = PointConfig(
        decode=decode,
        acceptance=AcceptanceConfig(kind="synthetic", mean=2.0, scatter=1.0),
        importance=ImportanceConfig(kind="synthetic", tau=2.0, noise=0.05),
        scheduler=SchedulerConfig(batch_size=3, page_size=PAGE_SIZE, max_prefill_tokens=24),
        engine=EngineConfig(model="dummy-tiny"),
    )
    rng = np.random.default_rng(0)
    requests = tuple(
        RequestSpec(
            request_id=i,
            prompt_ids=rng.integers(0, 128, size=length).astype(np.int32),
            max_new_tokens=20,
            reply_tokens=20 - i,
        )
        for i, length in enumerate([3, 41, 8, 17, 30])
    )
    provenance = Provenance(dataset="test", origin="synthetic", tokenizer="none")
    workload = Workload(requests=requests, provenance=provenance)
    device = torch.device("cpu")
    model = dummy_model(spec, device=device)
    cache = PagedKVCache(
        spec, num_pages=num_pages, page_size=PAGE_SIZE, device=device, dtype=torch.float32
    )
    inner = EngineExecutor(model, cache, StepRules.for_point(point), SamplingConfig())
    executor = CountingExecutor(inner, decode.attention_cover)
    loop = build_loop(point, workload, executor, spec=spec, num_pages=num_pages, source="measured")
    run_wall_clock(loop, clock=WallClock())
    return executor.steps


@pytest.mark.parametrize(
    "policy",
    ["baseline", "delayed-cache", "delayed-cache-neighbor", "focus", "focus-fixed", "ideal"],
)
def test_flops_of_every_step_equal_those_counted(policy: str) -> None:
    steps = counted_steps(DecodeConfig(policy=policy, block_length=8, retain=3))
    predicted = [total_flops(step_ops(SPEC, shape)) for shape, _ in steps]
    assert predicted == [counted for _, counted in steps]
    assert any(shape.prefill.num_chunks for shape, _ in steps)
    assert any((shape.prefill.start > 0).any() for shape, _ in steps)
    evicts = policy in {"focus", "focus-fixed"}
    assert evicts == any(f.masked_fed.any() for shape, _ in steps for f in shape.forwards)
    if evicts or policy == "ideal":
        # Steps before, within and after eviction: whole, cut, and with placeholders behind.
        assert any((f.kept < f.fed).any() for shape, _ in steps for f in shape.forwards)
        assert any((f.later_keys < f.first_keys).any() for s, _ in steps for f in s.forwards)


def test_flops_with_attention_up_to_the_rightmost_kept_position() -> None:
    # Selecting from the bottom leaves masks left of what is decoded and frozen.
    decode = DecodeConfig(
        policy="focus-fixed",
        block_length=8,
        retain=3,
        select="bottom",
        attention_cover="rightmost",
        refresh_prompt=True,
    )
    steps = counted_steps(decode)
    assert [total_flops(step_ops(SPEC, shape)) for shape, _ in steps] == [c for _, c in steps]


def test_flops_of_a_model_with_one_layer() -> None:
    spec = dataclasses.replace(SPEC, num_layers=1)
    steps = counted_steps(DecodeConfig(policy="delayed-cache", block_length=8), spec)
    assert [total_flops(step_ops(spec, shape)) for shape, _ in steps] == [c for _, c in steps]


def test_flops_across_preemption() -> None:
    steps = counted_steps(DecodeConfig(policy="focus", block_length=8), num_pages=10)
    assert any(shape.swapped_pages for shape, _ in steps)
    assert [total_flops(step_ops(SPEC, shape)) for shape, _ in steps] == [c for _, c in steps]


@pytest.mark.parametrize("policy", ["baseline", "focus"])
@pytest.mark.parametrize("num_dense_layers", [0, 1, 2, 4])
def test_flops_of_experts_whichever_they_are(policy: str, num_dense_layers: int) -> None:
    assert LLADA2.experts is not None
    experts = LLADA2.experts.replace(num_dense_layers=num_dense_layers)
    spec = LLADA2.replace(experts=experts)
    steps = counted_steps(DecodeConfig(policy=policy, block_length=8), spec)
    assert [total_flops(step_ops(spec, shape)) for shape, _ in steps] == [c for _, c in steps]
    assert any(shape.prefill.num_chunks for shape, _ in steps)
    cut = any((f.kept < f.fed).any() for shape, _ in steps for f in shape.forwards)
    assert cut == (policy == "focus")


@pytest.mark.parametrize("policy", ["delayed-cache", "ideal"])
def test_flops_of_experts_with_a_softmax_router(policy: str) -> None:
    steps = counted_steps(DecodeConfig(policy=policy, block_length=8), SDAR_MOE)
    assert [total_flops(step_ops(SDAR_MOE, shape)) for shape, _ in steps] == [c for _, c in steps]
