"""Decode steps on a GPU: kernels for what is irregular, one readback between eviction and suffix.

The reference is host_step.py. Knows the order of a step, its buffers and its graphs; the layers are
the stack's, eviction and head are in device_eviction.py and device_head.py.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from focus_bench.core.config import SamplingConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.token_buckets import captured_buckets, token_bucket
from focus_bench.decoding.block_state import BoolArray
from focus_bench.decoding.eviction import Eviction, kept_as_given
from focus_bench.decoding.policies import EvictionKind, get_policy
from focus_bench.decoding.rules import StepRules
from focus_bench.engine.cuda_graphs import StageGraphs
from focus_bench.engine.decode_step import EvictionChoice, HeadPlaces, StepResult
from focus_bench.engine.device_eviction import DeviceEviction
from focus_bench.engine.device_head import DeviceHead
from focus_bench.engine.device_prefill import DevicePrefill
from focus_bench.engine.forward import FirstLayers, first_layers, later_layers
from focus_bench.engine.kernel_rows import KernelRows
from focus_bench.engine.kernels.paged_attention.launcher import AttentionLayout
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.layer_stack import LayerStack
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.models.fused import fused_layers
from focus_bench.engine.sampling import next_block_uniforms, position_uniforms
from focus_bench.engine.step_inputs import StepInputs, StepSize
from focus_bench.engine.timing import StepTimer
from focus_bench.scheduling.plan import Plan

HEAD_DIMS = (16, 256)


class DeviceStep:
    """Decode steps of one model over one cache on a GPU; implements DecodeStep.

    `max_rows`: sequences of a step at most; `cuda_graphs`: as in EngineConfig. Raises UsageError
    for a model whose shape the kernels do not take.
    """

    def __init__(
        self,
        model: BlockDiffusionModel,
        cache: PagedKVCache,
        rules: StepRules,
        sampling: SamplingConfig,
        *,
        max_rows: int,
        cuda_graphs: str = "off",
    ) -> None:
        spec = model.spec
        if not HEAD_DIMS[0] <= spec.head_dim <= HEAD_DIMS[1]:
            raise UsageError(
                f"head_dim of {spec.name}",
                spec.head_dim,
                f"{HEAD_DIMS[0]} to {HEAD_DIMS[1]} on a GPU",
            )
        self._model = model
        self._cache = cache
        self._rules = rules
        self._draws = sampling.temperature > 0.0
        self._stack: LayerStack = fused_layers(model, cache)
        self._block_length = rules.decode.block_length
        self._max_rows = max_rows
        capacity = max_rows * self._block_length
        self._buckets = captured_buckets(cuda_graphs, capacity, experts=spec.experts is not None)
        policy = get_policy(rules.decode.policy)
        self._may_evict = policy.eviction is not EvictionKind.NONE or policy.adaptive
        self._head = DeviceHead(model, self._stack, sampling, max_rows=capacity)
        self._prefill = DevicePrefill(
            model,
            self._stack,
            cache,
            block_length=self._block_length,
            cuda_graphs=cuda_graphs,
        )
        self._table_width = 0

    # -- DecodeStep ------------------------------------------------------------------------------

    def prepare(self, max_pages: int) -> None:
        """Make the buffers, capture the graphs, compile what prefill takes."""
        self._reserve(min(max_pages, self._cache.num_pages))
        if self._model.device.type == "cuda":
            self._prefill.compile()

    def prefill(self, plan: Plan) -> None:
        """Write the K/V of the plan's prefill chunks."""
        self._prefill.run(plan.prefill, plan.page_table)

    def decode(
        self,
        plan: Plan,
        choose: Callable[[], EvictionChoice],
        timer: StepTimer,
        meanwhile: Callable[[Eviction], None],
    ) -> StepResult:
        """Prefix, importance where asked for, selection, compaction, suffix, head.

        The host decides and describes the eviction while the device is in the first layers, and
        does `meanwhile` while it is in the others.
        """
        inputs = self._inputs_for(plan)
        size = inputs.fill(
            plan, mask_token_id=self._model.spec.mask_token_id, page_size=self._cache.page_size
        )
        inputs.upload_first()
        first = self._first(size)
        timer.end("prefix")
        choice = choose()
        if choice.given is None:
            kept_size, eviction = self._evict_by_rule(plan, size, first, choice.evicting)
            timer.end("eviction")
        else:
            eviction = choice.given
            kept_size = self._evict_given(plan, size, first, choice.evicting, eviction)
            if choice.evicting.any() or kept_size.num_fed < size.num_fed:
                timer.end("eviction")
        if choice.given is None or kept_size.num_fed < size.num_fed:
            hidden, head_rows = self._later_kept(kept_size), self._eviction.head_rows
        else:
            hidden, head_rows = self._later_all(size, first), inputs.device.head_rows
        timer.end("suffix")
        self._start_head(plan, eviction, hidden, head_rows[: kept_size.num_head])
        timer.end("head")
        meanwhile(eviction)
        places = HeadPlaces(plan, eviction.kept & plan.feed.decodable)
        timer.wait()
        tokens, confidence, carried = places.filled(*self._head.read(kept_size.num_head))
        return StepResult(
            eviction=eviction,
            evicting=choice.evicting,
            tokens=tokens,
            confidence=confidence,
            carried=carried,
        )

    def run_without_trace(self, plan: Plan) -> StepResult:
        """A forward without eviction, after which the cache is what it was."""
        block, feed = plan.block, plan.feed
        device, page_size = self._model.device, self._cache.page_size
        row_of, column = np.nonzero(feed.positions)
        positions = block.block_start[row_of] + column
        pages = plan.page_table[plan.rows][row_of, positions // page_size].astype(np.int64)
        slots = torch.from_numpy(pages * page_size + positions % page_size).to(device)
        saved = self._cache.snapshot(slots)
        whole = EvictionChoice(
            evicting=np.zeros(block.num_rows, dtype=np.bool_),
            given=self._rules.keep_all(block, feed),
        )
        result = self.decode(plan, lambda: whole, StepTimer(device), lambda _: None)
        self._cache.restore(slots, saved)
        return result

    def _evict_by_rule(
        self, plan: Plan, size: StepSize, first: FirstLayers, evicting: BoolArray
    ) -> tuple[StepSize, Eviction]:
        """Selection on the device; the sizes of what it kept, and what."""
        inputs = self._inputs
        inputs.fill_masks(plan)
        inputs.fill_importance(plan, evicting)
        scores = self._eviction.fill(plan, evicting)
        inputs.upload_rest()
        bucket = token_bucket(size.num_fed)
        if scores is None and bucket in self._eviction_graphs:
            self._eviction_graphs.replay(bucket)
        else:
            self._eviction.stage(first, scores)()
        kept_size, kept = self._eviction.read(size)
        return kept_size, kept_as_given(plan.block, plan.feed, kept)

    def _evict_given(
        self,
        plan: Plan,
        size: StepSize,
        first: FirstLayers,
        evicting: BoolArray,
        eviction: Eviction,
    ) -> StepSize:
        """Eviction as the host decided it; importance, where asked for, for its cost only."""
        inputs, ranks = self._inputs, bool(evicting.any())
        attended = self._rules.last_attended(plan.block, plan.feed, eviction)
        kept_size = inputs.fill_given(plan, eviction, attended)
        compacts = kept_size.num_fed < size.num_fed
        if ranks:
            inputs.fill_importance(plan, evicting)
        if compacts:
            inputs.fill_masks(plan)
        inputs.upload_rest()
        if ranks:
            self._eviction.rank(first)
        if compacts:
            self._eviction.compact_given(first)
        return kept_size

    # -- buffers and graphs ----------------------------------------------------------------------

    def _inputs_for(self, plan: Plan) -> StepInputs:
        if plan.block.num_rows > self._max_rows:
            raise AssertionError(f"{plan.block.num_rows} rows in a step of {self._max_rows}")
        if plan.page_table.shape[1] > self._table_width:
            self._reserve(plan.page_table.shape[1])
        return self._inputs

    def _reserve(self, table_width: int) -> None:
        """Buffers for page tables of that width, and graphs over them."""
        self._table_width = table_width
        self._inputs = StepInputs(
            max_rows=self._max_rows,
            block_length=self._block_length,
            table_width=table_width,
            device=self._model.device,
        )
        if self._may_evict:
            self._eviction = DeviceEviction(self._model, self._cache, self._rules, self._inputs)
        self._capture()

    def _capture(self) -> None:
        """Capture the policy's stages for every bucket up to the limit, over empty inputs."""
        pool = torch.cuda.graph_pool_handle() if self._buckets else None
        self._prefill.capture(self._table_width, pool)
        self._first_graphs: StageGraphs[FirstLayers] = StageGraphs(pool)
        self._eviction_graphs: StageGraphs[None] = StageGraphs(pool)
        self._kept_graphs: StageGraphs[Tensor] = StageGraphs(pool)
        self._all_graphs: StageGraphs[Tensor] = StageGraphs(pool)
        rows = self._max_rows
        for bucket in self._buckets:
            first = self._first_graphs.capture(bucket, self._first_stage(bucket, rows))
            self._all_graphs.capture(bucket, self._all_stage(first, rows))
            if self._may_evict:
                self._eviction_graphs.capture(bucket, self._eviction.stage(first, None))
                self._kept_graphs.capture(bucket, self._kept_stage(bucket, rows))

    # -- stages: replayed where their bucket was captured, else launched for the very tokens -------

    def _first(self, size: StepSize) -> FirstLayers:
        bucket = token_bucket(size.num_fed)
        if bucket in self._first_graphs:
            return self._first_graphs.replay(bucket)
        return self._first_stage(size.num_fed, size.num_rows)()

    def _first_stage(self, num_tokens: int, num_rows: int) -> Callable[[], FirstLayers]:
        inputs = self._inputs.device
        rows = self._rows(inputs.cu_fed, inputs.first_keys, num_rows)
        return lambda: first_layers(
            self._stack,
            inputs.token_ids[:num_tokens],
            inputs.positions[:num_tokens],
            inputs.slots[:num_tokens],
            rows,
        )

    def _later_all(self, size: StepSize, first: FirstLayers) -> Tensor:
        bucket = token_bucket(size.num_fed)
        if bucket in self._all_graphs:
            return self._all_graphs.replay(bucket)
        return self._all_stage(first, size.num_rows)()

    def _all_stage(self, first: FirstLayers, num_rows: int) -> Callable[[], Tensor]:
        inputs = self._inputs.device
        rows = self._rows(inputs.cu_fed, inputs.later_keys, num_rows)
        return lambda: later_layers(self._stack, first, rows)

    def _later_kept(self, size: StepSize) -> Tensor:
        bucket = token_bucket(size.num_fed)
        if bucket in self._kept_graphs:
            return self._kept_graphs.replay(bucket)
        return self._kept_stage(size.num_fed, size.num_rows)()

    def _kept_stage(self, num_tokens: int, num_rows: int) -> Callable[[], Tensor]:
        eviction = self._eviction
        rows = self._rows(eviction.cu_kept, eviction.num_keys, num_rows)
        return lambda: later_layers(self._stack, eviction.kept_tokens(num_tokens), rows)

    def _rows(self, cu_queries: Tensor, num_keys: Tensor, num_rows: int) -> KernelRows:
        return KernelRows(
            layout=AttentionLayout(
                cu_queries=cu_queries[: num_rows + 1],
                num_keys=num_keys[:num_rows],
                page_table=self._inputs.device.page_table[:num_rows],
                page_size=self._cache.page_size,
                max_queries=self._block_length,
                max_keys=self._table_width * self._cache.page_size,
            )
        )

    # -- head ------------------------------------------------------------------------------------

    def _start_head(
        self, plan: Plan, eviction: Eviction, hidden: Tensor, head_rows: Tensor
    ) -> None:
        if not len(head_rows):
            return
        uniforms = None
        if self._draws:
            seed, candidates = self._rules.seed, eviction.kept & plan.feed.decodable
            uniforms = position_uniforms(plan.block, seed)[candidates]
            if plan.shifted_logits:
                next_draws = next_block_uniforms(plan.block, seed)[plan.feed.commit]
                uniforms = np.concatenate([uniforms, next_draws])
        self._head.draw(hidden, head_rows, uniforms)
