"""Prefill by graphs writes the K/V that prefill kernel by kernel writes, and nothing else.

Graphs are captured on a GPU only; on a CPU their stages are run with the inputs of a replay.
"""

import types
from collections.abc import Callable

import numpy as np
import pytest
import torch
from engine_serving import random_model

from focus_bench.engine import device_prefill
from focus_bench.engine.device_prefill import DevicePrefill
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.models import sdar
from focus_bench.engine.models.fused import fused_layers
from focus_bench.scheduling.plan import PrefillChunk

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
# Rows that pad a bucket hold anything.
pytestmark = [pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero)")]
pytestmark += [pytest.mark.gpu] if ON_GPU else []
BLOCK, PAGE, NUM_PAGES = 4, 8, 14
# Rows of the page table, scattered; slot 1 is nobody's.
TABLE = np.array([[9, 2, 7, 0], [0, 0, 0, 0], [5, 1, 12, 3], [11, 4, 8, 6]], dtype=np.int32)


class _Stages:
    """Stages by bucket, run anew at each replay."""

    def __init__(self, _: object) -> None:
        self.stages: dict[int, Callable[[], None]] = {}
        self.replayed: list[int] = []

    def __contains__(self, bucket: int) -> bool:
        return bucket in self.stages

    def capture(self, bucket: int, stage: Callable[[], None]) -> None:
        stage()
        self.stages[bucket] = stage

    def replay(self, bucket: int) -> None:
        self.replayed.append(bucket)
        self.stages[bucket]()


def chunk(slot: int, start: int, count: int) -> PrefillChunk:
    ids = (np.arange(start, start + count) * 7 + slot) % 50
    return PrefillChunk(request_id=slot, slot=slot, start=start, token_ids=ids.astype(np.int32))


@pytest.fixture
def prefill(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A DevicePrefill with graphs, one without, and the cache of each."""
    if not ON_GPU:
        monkeypatch.setattr(device_prefill, "StageGraphs", _Stages)
    monkeypatch.setattr(device_prefill, "prefill_buckets", lambda *_, **__: (8, 32))
    monkeypatch.setattr(device_prefill, "MAX_GRAPH_CHUNKS", 4)
    tensors = dict(sdar.named_tensors(random_model(num_layers=2)))
    spec = random_model(num_layers=2).spec
    model = sdar.build(spec, lambda name: tensors[name].to(DEVICE))
    found = types.SimpleNamespace()
    for name, graphs in (("graphs", "auto"), ("kernels", "off")):
        cache = PagedKVCache(
            spec, num_pages=NUM_PAGES, page_size=PAGE, device=DEVICE, dtype=model.dtype
        )
        for layer in range(spec.num_layers):
            for part in cache.layer(layer):
                part.fill_(3.0)
        stack = fused_layers(model, cache)
        made = DevicePrefill(model, stack, cache, block_length=BLOCK, cuda_graphs=graphs)
        if graphs == "auto":
            made.capture(TABLE.shape[1], torch.cuda.graph_pool_handle() if ON_GPU else None)
        setattr(found, name, made)
        setattr(found, f"cache_of_{name}", cache)
    return found


STEPS = [
    [chunk(0, 0, 8)],
    [chunk(0, 8, 4), chunk(2, 0, 12), chunk(3, 0, 4)],  # with a history, and of three lengths
    [chunk(3, 4, 20), chunk(0, 12, 4)],
]


@torch.inference_mode()
def test_graphs_write_what_kernels_write(prefill: types.SimpleNamespace) -> None:
    for chunks in STEPS:
        prefill.graphs.run(chunks, TABLE)
        prefill.kernels.run(chunks, TABLE)
        for layer in range(2):
            pairs = zip(
                prefill.cache_of_graphs.layer(layer),
                prefill.cache_of_kernels.layer(layer),
                strict=True,
            )
            for ours, expected in pairs:
                assert torch.allclose(ours, expected, atol=1e-5)
                untouched = (expected == 3.0).flatten(1).all(dim=1)
                assert untouched.any()
                assert (ours[untouched] == 3.0).all()
    if not ON_GPU:
        assert prefill.graphs._graphs.replayed == [8, 32, 32]


@torch.inference_mode()
def test_what_has_no_graph_runs_kernel_by_kernel(prefill: types.SimpleNamespace) -> None:
    """More chunks, more tokens, or a longer prompt than the graphs hold."""
    many = [chunk(slot, 0, 4) for slot in (0, 2, 3)] + [chunk(0, 4, 4), chunk(2, 4, 4)]
    large = [chunk(0, 0, 32), chunk(2, 0, 4)]
    for chunks in (many, large):
        prefill.graphs.run(chunks, TABLE)
        prefill.kernels.run(chunks, TABLE)
    wide = np.concatenate([TABLE, [[10], [0], [13], [10]]], axis=1).astype(np.int32)
    prefill.graphs.run([chunk(2, 32, 8)], wide)
    prefill.kernels.run([chunk(2, 32, 8)], wide)
    if not ON_GPU:
        assert prefill.graphs._graphs.replayed == []
    for layer in range(2):
        for ours, expected in zip(
            prefill.cache_of_graphs.layer(layer), prefill.cache_of_kernels.layer(layer), strict=True
        ):
            assert torch.equal(ours, expected)
