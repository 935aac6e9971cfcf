"""Every policy against its second statement: explicit K/V per layer, loops over positions.

Fed, kept and decoded positions of every forward and all tokens are equal, over three blocks or
more. What would not show here is asserted to occur: stale K/V, frozen tokens behind the rightmost
kept position, evicted positions that come back.
"""

import pytest
from engine_serving import Forward, Served, engine_model, make_point, make_requests, serve
from qwen3_reference import build_qwen3
from store_reference import StoreDecoder
from transformers import Qwen3ForCausalLM

from focus_bench.core.config import PointConfig
from focus_bench.core.workload import RequestSpec

pytestmark = pytest.mark.usefixtures("decisive_margins")


def assert_equal_to_the_stores(
    reference: Qwen3ForCausalLM, point: PointConfig, requests: tuple[RequestSpec, ...]
) -> Served:
    served = serve(engine_model(reference), point, requests)
    for request in requests:
        decoder = StoreDecoder(
            reference, point.decode, request_id=request.request_id, seed=point.seed
        )
        expected = decoder.decode(
            request.prompt_ids.tolist(), max_new_tokens=request.max_new_tokens
        )
        forwards = served.forwards[request.request_id]
        assert [(f.fed, f.kept, f.decoded) for f in forwards] == expected.forwards
        assert served.outputs[request.request_id] == expected.output
        assert sum(f.is_commit for f in forwards) >= 2  # three blocks
    return served


def steps_of(served: Served) -> list[Forward]:
    return [f for fs in served.forwards.values() for f in fs if not f.is_commit]


def frozen_behind_the_kept(served: Served) -> int:
    """Steps with a frozen position right of everything that is kept."""
    return sum(any(p not in f.fed for p in range(f.kept[-1] + 1, 8)) for f in steps_of(served))


def returns_after_eviction(served: Served) -> int:
    """Positions evicted although processed before, and kept in a later step of their block."""
    count = 0
    for forwards in served.forwards.values():
        stale: set[int] = set()
        progress = -1
        for f in forwards:
            count += len(stale & set(f.kept))
            stale -= set(f.kept)
            stale |= {p for p in f.fed if p not in f.kept and p <= progress}
            progress = max(progress, *f.kept)
            if f.is_commit:
                stale, progress = set(), -1
    return count


@pytest.mark.parametrize("policy", ["delayed-cache", "delayed-cache-neighbor"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_delayed_cache(policy: str, num_layers: int) -> None:
    point = make_point(policy, page_size=5)
    served = assert_equal_to_the_stores(
        build_qwen3(num_layers=num_layers), point, make_requests([5, 16, 11], 22, seed=3)
    )
    steps = steps_of(served)
    assert any(len(f.fed) < 8 for f in steps)
    assert all(f.kept == f.fed for f in steps)


@pytest.mark.parametrize("page_size", [3, 8])
@pytest.mark.parametrize("num_layers", [2, 3, 4])
def test_focus(page_size: int, num_layers: int) -> None:
    point = make_point("focus", page_size=page_size)
    served = assert_equal_to_the_stores(
        build_qwen3(num_layers=num_layers), point, make_requests([5, 16, 11], 27)
    )
    assert any(f.kept != f.fed for f in steps_of(served))
    assert frozen_behind_the_kept(served)
    assert returns_after_eviction(served)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 1.0},
        {"alpha": 2.1, "threshold": 0.15},
        {"budget_average": "sequence"},
        {"block_length": 16, "threshold": 0.4},
        {"block_length": 4},
        {"unmasking_strategy": "low_confidence_static", "steps": 4},
        {"unmasking_strategy": "sequential", "steps": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_focus_with_other_settings(options: dict[str, object]) -> None:
    point = make_point("focus", page_size=5, **options)  # type: ignore[arg-type]
    max_new_tokens = 3 * point.decode.block_length
    served = assert_equal_to_the_stores(
        build_qwen3(), point, make_requests([5, 19], max_new_tokens, seed=1)
    )
    assert any(f.kept != f.fed for f in steps_of(served))


@pytest.mark.parametrize("select", ["top", "random", "bottom"])
@pytest.mark.parametrize("retain", [1, 3])
def test_focus_fixed(select: str, retain: int) -> None:
    point = make_point("focus-fixed", page_size=5, select=select, retain=retain, seed=3)
    requests = make_requests([5, 16, 11], 24, seed=1)
    served = assert_equal_to_the_stores(build_qwen3(), point, requests)
    steps = steps_of(served)
    assert any(f.kept != f.fed for f in steps)
    assert any(f.kept[-1] < f.fed[-1] for f in steps)


# With few layers the trial's K/V hardly matter if they stay in the cache; with four they show.
@pytest.mark.parametrize("num_layers", [2, 3, 4])
def test_ideal(num_layers: int) -> None:
    point = make_point("ideal", page_size=5)
    served = assert_equal_to_the_stores(
        build_qwen3(num_layers=num_layers), point, make_requests([5, 16, 11], 27, seed=4)
    )
    steps = steps_of(served)
    assert any(f.kept != f.fed for f in steps)
    assert returns_after_eviction(served)


@pytest.mark.parametrize(("focus_min_batch", "behaves_as"), [(1, "focus"), (9, "baseline")])
def test_adaptive_is_one_of_its_two_halves(focus_min_batch: int, behaves_as: str) -> None:
    requests = make_requests([5, 16, 11], 24)
    model = engine_model(build_qwen3())
    adaptive = make_point("adaptive", page_size=5, focus_min_batch=focus_min_batch)
    served = serve(model, adaptive, requests)
    expected = serve(model, make_point(behaves_as, page_size=5), requests)
    assert served.forwards == expected.forwards
    assert served.outputs == expected.outputs


def test_adaptive_changes_with_the_batch() -> None:
    # Two long requests and one short: the batch shrinks below the limit while they go on.
    requests = make_requests([5, 16, 11], [60, 60, 12])
    served = serve(
        engine_model(build_qwen3()),
        make_point("adaptive", page_size=5, focus_min_batch=3),
        requests,
    )
    first, last = served.forwards[0][:8], served.forwards[0][-16:]
    assert any(f.kept != f.fed for f in first)
    assert all(f.kept == f.fed == tuple(range(8)) for f in last)
