"""Models whose router the kernels lack take the plain path on a GPU, and the run says so."""

import dataclasses
from typing import Any

import pytest
import torch
from engine_serving import make_point, random_model
from moe_reference import build_glm4_moe, build_qwen3_moe, moe_model

from focus_bench.core.errors import UsageError
from focus_bench.engine import runner
from focus_bench.engine.executor import EngineExecutor, runs_on_kernels
from focus_bench.engine.host_step import HostStep
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.moe import MoeModel
from focus_bench.engine.models.sdar import SdarModel

pytest.importorskip("triton")


class MoeOnGpu(MoeModel):
    """A model that says it lies on a GPU; its tensors do not."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


class SdarOnGpu(SdarModel):
    """The same of a family with fused layers."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


def on_gpu(model: MoeModel | SdarModel) -> Any:
    kind = MoeOnGpu if isinstance(model, MoeModel) else SdarOnGpu
    fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    return kind(**fields)


def odd_groups() -> MoeModel:
    """A model of 3 groups, which the router's kernel does not take; its weights do not fit."""
    model = moe_model(build_glm4_moe(num_layers=2))
    assert model.spec.experts is not None
    experts = model.spec.experts.replace(num_experts=12, num_groups=3)
    return dataclasses.replace(model, spec=model.spec.replace(experts=experts))


def test_only_odd_groups_run_in_plain_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from focus_bench.engine import device_step

    class Kernels(HostStep):
        def __init__(self, model: Any, cache: Any, rules: Any, sampling: Any, **_: Any) -> None:
            super().__init__(model, cache, rules, sampling)

    monkeypatch.setattr(device_step, "DeviceStep", Kernels)
    for model, step in (
        (odd_groups(), HostStep),
        (moe_model(build_qwen3_moe()), Kernels),
        (moe_model(build_glm4_moe(num_layers=2)), Kernels),
        (random_model(), Kernels),
    ):
        cache = PagedKVCache(
            model.spec, num_pages=4, page_size=8, device=torch.device("cpu"), dtype=model.dtype
        )
        executor = EngineExecutor.for_point(on_gpu(model), cache, make_point("focus"))
        assert type(executor._step) is step
        assert runs_on_kernels(on_gpu(model)) == (step is Kernels)
        assert not runs_on_kernels(model)


def test_the_run_says_that_it_used_no_kernels() -> None:
    (note,) = runner._path_notes(on_gpu(odd_groups()))
    assert note == "plain PyTorch on the GPU (no fused layers for llada2-reference yet)"
    for model in (random_model(), moe_model(build_qwen3_moe())):
        assert runner._path_notes(on_gpu(model)) == ()
    assert runner._path_notes(moe_model(build_qwen3_moe())) == ()


def test_fused_layers_refuse_odd_groups_by_name() -> None:
    from focus_bench.engine.models.fused import fused_layers

    model = odd_groups()
    cache = PagedKVCache(
        model.spec, num_pages=2, page_size=8, device=torch.device("cpu"), dtype=model.dtype
    )
    with pytest.raises(
        UsageError, match=r"model llada2-reference: 'MoeModel'.*power of two of groups\) on a GPU"
    ):
        fused_layers(model, cache)
