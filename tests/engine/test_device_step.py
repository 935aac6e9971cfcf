"""The GPU's decode step, its kernels interpreted: the decisions and tokens of the host's step.

tests/gpu repeats this on a GPU with larger models; here only the launches are different.
"""

from typing import Any

import pytest
import torch
from engine_serving import (
    BATCH_INDEPENDENT_POLICIES,
    Served,
    make_point,
    make_requests,
    random_model,
    serve,
)
from kernel_serving import with_kernels
from qwen2_reference import random_qwen2

from focus_bench.core.config import ImportanceConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.workload import RequestSpec
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models.sdar import SdarModel, build, tensor_shapes

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here; tests/gpu runs them"
)


def both(policy: str, page_size: int = 8, **settings: Any) -> tuple[Served, Served]:
    """A run by kernels and the same run on the host."""
    point = make_point(
        policy, block_length=4, batch_size=3, page_size=page_size, retain=1, **settings
    )
    requests = make_requests([5, 2, 9], [6, 5, 4])
    model = random_model(num_layers=2)
    by_kernels = serve(model, point, requests, make_executor=with_kernels)
    return by_kernels, serve(model, point, requests)


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("policy", [*BATCH_INDEPENDENT_POLICIES, "adaptive"])
def test_kernels_decode_as_the_host_does(policy: str) -> None:
    by_kernels, on_host = both(policy, focus_min_batch=2)
    assert by_kernels.forwards == on_host.forwards
    assert by_kernels.outputs == on_host.outputs


@pytest.mark.usefixtures("decisive_margins")
def test_sub_blocks() -> None:
    point = make_point("fast-dllm-v2", block_length=12, batch_size=2, page_size=8)
    requests = make_requests([5, 12], [9, 10])
    model = random_model(num_layers=2)
    by_kernels = serve(model, point, requests, make_executor=with_kernels)
    assert by_kernels.forwards == serve(model, point, requests).forwards
    assert {8, 12} <= {len(f.fed) for fs in by_kernels.forwards.values() for f in fs}


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize(("policy", "temperature"), [("baseline", 1.0), ("fast-dllm-v2", 0.0)])
def test_shifted_logits_and_carried_tokens(policy: str, temperature: float) -> None:
    point = make_point(
        policy, block_length=12, batch_size=2, page_size=8, temperature=temperature, seed=2
    )
    requests = make_requests([5, 12], [9, 3], seed=3)
    model = random_qwen2()
    by_kernels = serve(model, point, requests, make_executor=with_kernels)
    on_host = serve(model, point, requests)
    assert by_kernels.forwards == on_host.forwards
    assert by_kernels.outputs == on_host.outputs
    # Both sequences hold a carried token, one of them from its prompt's last block.
    assert by_kernels.forwards[1][0].is_commit
    assert any(f.is_commit for f in by_kernels.forwards[0])


@pytest.mark.usefixtures("decisive_margins")
def test_across_preemption() -> None:
    by_kernels, on_host = both("focus", page_size=4, num_pages=4)
    assert by_kernels.num_swaps_in == by_kernels.num_swaps_out > 0
    assert by_kernels.forwards == on_host.forwards
    assert by_kernels.outputs == on_host.outputs


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("select", ["random", "bottom"])
def test_each_selection(select: str) -> None:
    by_kernels, on_host = both("focus-fixed", select=select)
    assert by_kernels.forwards == on_host.forwards


def test_synthetic_importance_ranks_in_place_of_the_models() -> None:
    importance = ImportanceConfig(kind="synthetic", tau=2.0, noise=0.3)
    by_kernels, on_host = both("focus", importance=importance)
    assert by_kernels.forwards == on_host.forwards


def test_what_layers_attend_to_may_end_at_the_rightmost_kept_position() -> None:
    by_kernels, on_host = both("focus", attention_cover="rightmost")
    assert by_kernels.forwards == on_host.forwards


@pytest.mark.usefixtures("decisive_margins")
def test_draws_at_temperature_one() -> None:
    by_kernels, on_host = both("focus", temperature=1.0, seed=3)
    assert by_kernels.outputs == on_host.outputs


def test_a_small_head_dim_is_refused_by_name() -> None:
    model = random_model()
    spec = model.spec.replace(head_dim=8)
    point = make_point("focus")
    cache = PagedKVCache(
        model.spec, num_pages=2, page_size=8, device=model.device, dtype=model.dtype
    )

    class Small:
        def __getattr__(self, name: str) -> Any:
            return spec if name == "spec" else getattr(model, name)

    with pytest.raises(UsageError, match=r"head_dim of .*: 8 .*16 to 256 on a GPU"):
        with_kernels(Small(), cache, point)  # type: ignore[arg-type]


SHAPES = {
    "head_dim 48": {"head_dim": 48},
    "head_dim 80": {"head_dim": 80},
    "head_dim 96": {"head_dim": 96},
    "head_dim 256": {"head_dim": 256},
    "7 heads a group": {"num_q_heads": 7},
    "6 heads a group": {"num_q_heads": 12, "num_kv_heads": 2},
}


@pytest.mark.usefixtures("decisive_margins")
@pytest.mark.parametrize("shape", SHAPES)
def test_fault_17_odd_shapes_decode_as_the_host_does(shape: str) -> None:
    model = model_of({"head_dim": 16, **SHAPES[shape]})
    assert_decodes_as_the_host_does(model, make_requests([5, 2], [6, 3]), block_length=4)


@pytest.mark.usefixtures("decisive_margins")
def test_fault_17_blocks_of_64() -> None:
    assert_decodes_as_the_host_does(
        model_of({"head_dim": 16}), make_requests([3], 4), block_length=64
    )


def model_of(shape: dict[str, int]) -> SdarModel:
    """A model of two layers, wide awake: weights of 0.02 would make near-ties of everything."""
    spec = ModelSpec(
        name="odd",
        num_layers=2,
        hidden_size=40,
        intermediate_size=24,
        vocab_size=101,
        mask_token_id=96,
        dtype="float32",
        **{"num_q_heads": 2, "num_kv_heads": 1, **shape},
    )
    random = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(size, generator=random) * 0.3 + (len(size) == 1)
        for name, size in tensor_shapes(spec).items()
    }
    return build(spec, weights.__getitem__)


def assert_decodes_as_the_host_does(
    model: SdarModel, requests: tuple[RequestSpec, ...], *, block_length: int
) -> None:
    point = make_point("focus", block_length=block_length, batch_size=2, page_size=8)
    by_kernels = serve(model, point, requests, make_executor=with_kernels)
    on_host = serve(model, point, requests)
    assert by_kernels.forwards == on_host.forwards
    assert any(f.kept != f.fed for forwards in on_host.forwards.values() for f in forwards)
