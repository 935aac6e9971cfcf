"""The paged cache's slots, copies and sizing."""

import numpy as np
import pytest
import torch

from focus_bench.core.errors import CapacityError, UsageError
from focus_bench.core.model_spec import PRESETS
from focus_bench.engine import memory
from focus_bench.engine.kv_cache import PagedKVCache, slot_ids

CPU = torch.device("cpu")
SPEC = PRESETS["dummy-tiny"].replace(num_layers=3)


def make_cache(num_pages: int = 6, page_size: int = 4) -> PagedKVCache:
    return PagedKVCache(
        SPEC, num_pages=num_pages, page_size=page_size, device=CPU, dtype=torch.float32
    )


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_slot_ids_follow_the_page_table() -> None:
    assert slot_ids([5, 0, 2], [0, 3, 4, 7, 8, 11], 4).tolist() == [20, 23, 0, 3, 8, 11]
    assert slot_ids([5], np.arange(0), 4).tolist() == []


def test_write_and_gather_touch_only_their_slots_and_layer() -> None:
    cache = make_cache()
    slots = torch.tensor([20, 3, 7])
    fused = noise(3, 5, SPEC.head_dim)
    k, v = fused[:, :2], fused[:, 2:4]  # strided, as the model gives them
    cache.write(1, slots, k, v)
    got_k, got_v = cache.gather(1, torch.tensor([7, 20]))
    assert torch.equal(got_k, k[[2, 0]])
    assert torch.equal(got_v, v[[2, 0]])
    assert cache.keys[1].count_nonzero() == k.numel()
    assert not cache.keys[[0, 2]].any()
    assert not cache.values[[0, 2]].any()


def test_snapshot_and_restore_give_the_slots_back() -> None:
    cache = make_cache()
    cache.keys.copy_(noise(*cache.keys.shape))
    cache.values.copy_(noise(*cache.values.shape, seed=1))
    before = cache.keys.clone(), cache.values.clone()
    slots = torch.tensor([2, 9, 23])
    saved = cache.snapshot(slots)
    cache.write(0, slots, noise(3, 2, 32, seed=2), noise(3, 2, 32, seed=3))
    assert not torch.equal(cache.keys, before[0])
    cache.restore(slots, saved)
    assert torch.equal(cache.keys, before[0])
    assert torch.equal(cache.values, before[1])


def test_pages_copied_out_come_back_in_other_pages() -> None:
    cache = make_cache()
    cache.keys.copy_(noise(*cache.keys.shape))
    cache.values.copy_(noise(*cache.values.shape, seed=1))
    expected_k, expected_v = cache.keys[:, [12, 13, 14, 15, 0, 1, 2, 3]], cache.values[:, 12:16]
    saved = cache.copy_pages_out([3, 0])
    assert saved.num_bytes == 2 * memory.page_bytes(SPEC, 4)
    cache.keys[:, :16] = torch.nan
    cache.copy_pages_in([5, 1], saved)
    assert torch.equal(cache.keys[:, [20, 21, 22, 23, 4, 5, 6, 7]], expected_k)
    assert torch.equal(cache.values[:, 20:24], expected_v)


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(UsageError, match="num_pages: 0"):
        make_cache(num_pages=0)
    with pytest.raises(UsageError, match="page_size: 0"):
        make_cache(page_size=0)


def test_page_bytes_of_sdar_8b() -> None:
    assert memory.page_bytes(PRESETS["sdar-8b"], 64) == 147_456 * 64


def test_as_many_pages_as_fit_or_as_are_wanted() -> None:
    per_page = memory.page_bytes(SPEC, 4)
    fit = {"page_size": 4, "budget_bytes": 10 * per_page + 1}
    assert memory.num_pages_that_fit(SPEC, **fit) == 10
    assert memory.num_pages_that_fit(SPEC, **fit, wanted_pages=7) == 7
    assert memory.num_pages_that_fit(SPEC, **fit, wanted_pages=70) == 10


def test_capacity_errors_name_the_bytes_wanted_and_had() -> None:
    large = PRESETS["sdar-8b"]
    with pytest.raises(CapacityError, match=r"9,437,184 bytes wanted .* 9,437,183 bytes had"):
        memory.num_pages_that_fit(large, page_size=64, budget_bytes=9_437_183)
    with pytest.raises(CapacityError, match="one page of 64 tokens, 0 bytes had"):
        memory.num_pages_that_fit(large, page_size=64, budget_bytes=-5)
    with pytest.raises(CapacityError, match="16,381,470,720 bytes wanted, 1,000 bytes had"):
        memory.check_weights_fit(large, budget_bytes=1000)
    with pytest.raises(CapacityError, match=r"3 \(28,311,552 bytes wanted.*at most 2"):
        memory.check_pages_fit(large, page_size=64, num_pages=3, budget_bytes=20_000_000)
    memory.check_weights_fit(large, budget_bytes=16_381_470_720)
    memory.check_pages_fit(large, page_size=64, num_pages=2, budget_bytes=20_000_000)


def test_the_cpu_budget_is_a_fraction_of_what_is_available() -> None:
    free, total = memory.free_bytes(CPU)
    assert 0 < free <= total
    assert memory.memory_budget_bytes(CPU, 0.01) <= 0.011 * total
