"""Decode steps on a GPU: kernels for what is irregular, one readback between eviction and suffix.

The rules are those of decoding/, which the selection kernel equals; host_step.py is the reference.
Knows buffers, graphs and launches; the layers are the stack's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from focus_bench.core.config import SamplingConfig
from focus_bench.core.errors import UsageError
from focus_bench.decoding.block_state import BoolArray
from focus_bench.decoding.eviction import Eviction, kept_from_trace
from focus_bench.decoding.policies import EvictionKind, get_policy
from focus_bench.decoding.rules import StepRules
from focus_bench.decoding.selection import selection_of
from focus_bench.engine.cuda_graphs import StageGraphs, buckets_up_to, token_bucket
from focus_bench.engine.decode_step import StepResult
from focus_bench.engine.forward import FirstLayers, first_layers, later_layers, prefill_layers
from focus_bench.engine.host_step import sample_rows
from focus_bench.engine.kernel_rows import KernelRows
from focus_bench.engine.kernels.compaction.launcher import (
    CompactionOutputs,
    CompactionStates,
    compact,
)
from focus_bench.engine.kernels.importance.launcher import MaskedTokens, importance_delta
from focus_bench.engine.kernels.paged_attention.launcher import AttentionLayout
from focus_bench.engine.kernels.selection.launcher import (
    SelectionInputs,
    SelectionOutputs,
    select,
)
from focus_bench.engine.kernels.unmask_head.launcher import unmask_head
from focus_bench.engine.kernels.unmask_head.workspace import HeadConfig
from focus_bench.engine.kv_cache import PagedKVCache
from focus_bench.engine.layer_stack import LayerStack
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.models.fused import fused_layers
from focus_bench.engine.sampling import position_uniforms
from focus_bench.engine.step_inputs import StepInputs, StepSize
from focus_bench.engine.timing import StepTimer
from focus_bench.scheduling.plan import Plan

# "auto" replays graphs up to this many tokens; to be measured.
MAX_GRAPH_TOKENS = 1024
# Of logits at once in the head. Greedy: on an H200 256 MiB is the fastest of 32, 256 and 1,024 MiB
# for 4,000 rows, and 1 % behind for fewer. A draw recomputes what the buffer no longer holds.
GREEDY_CHUNK_BYTES = 256 << 20
DRAW_CHUNK_BYTES = 1 << 30
HEAD_DIMS = (16, 256)


@dataclass(frozen=True, kw_only=True)
class _Readback:
    """Pinned buffers that the device fills: after eviction, and after the head."""

    totals: Tensor
    kept: Tensor
    tokens: Tensor
    confidence: Tensor


class DeviceStep:
    """Decode steps of one model over one cache on a GPU; implements DecodeStep.

    `max_rows`: sequences of a step at most; `cuda_graphs`: as in EngineConfig.
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
        if not HEAD_DIMS[0] <= spec.head_dim <= HEAD_DIMS[1] or spec.head_dim % 2:
            raise UsageError(
                f"head_dim of {spec.name}",
                spec.head_dim,
                f"even numbers from {HEAD_DIMS[0]} to {HEAD_DIMS[1]} on a GPU",
            )
        self._model = model
        self._cache = cache
        self._rules = rules
        self._sampling = sampling
        self._stack: LayerStack = fused_layers(model, cache)
        self._device = model.device
        self._block_length = rules.decode.block_length
        self._max_rows = max_rows
        self._max_graph_tokens = {
            "off": 0,
            "on": max_rows * self._block_length,
            "auto": min(max_rows * self._block_length, MAX_GRAPH_TOKENS),
        }[cuda_graphs]
        policy = get_policy(rules.decode.policy)
        self._may_evict = policy.eviction is not EvictionKind.NONE or policy.adaptive
        self._table_width = 0
        self._head_config = HeadConfig(
            mask_token_id=spec.mask_token_id,
            num_valid_ids=spec.tokenizer_size or spec.vocab_size,
            temperature=sampling.temperature,
            max_chunk_bytes=GREEDY_CHUNK_BYTES if sampling.temperature == 0 else DRAW_CHUNK_BYTES,
        )
        capacity = max_rows * self._block_length
        pinned = self._device.type == "cuda"
        self._evicted = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]
        kept_shape = max_rows, self._block_length
        self._readback = _Readback(
            totals=torch.zeros(2, dtype=torch.int32, pin_memory=pinned),
            kept=torch.zeros(kept_shape, dtype=torch.uint8, pin_memory=pinned),
            tokens=torch.zeros(capacity, dtype=torch.int32, pin_memory=pinned),
            confidence=torch.zeros(capacity, dtype=torch.float32, pin_memory=pinned),
        )

    # -- DecodeStep ------------------------------------------------------------------------------

    def prepare(self, max_pages: int) -> None:
        """Make the buffers and capture the graphs that the policy needs."""
        self._reserve(min(max_pages, self._cache.num_pages))

    def prefill(self, plan: Plan) -> None:
        """Write the K/V of the plan's prefill chunks."""
        page_size, device = self._cache.page_size, self._device
        positions = [
            np.arange(c.start, c.start + len(c.token_ids), dtype=np.int32) for c in plan.prefill
        ]
        slots = [
            plan.page_table[c.slot][p // page_size] * page_size + p % page_size
            for c, p in zip(plan.prefill, positions, strict=True)
        ]
        ids = [chunk.token_ids for chunk in plan.prefill]
        tokens = np.stack([np.concatenate(part) for part in (ids, positions, slots)])
        token_ids, at, to = torch.from_numpy(tokens.astype(np.int32)).to(device).unbind()
        rows = KernelRows.of_prefill(
            plan.prefill,
            plan.page_table,
            page_size=page_size,
            block_length=self._block_length,
            device=device,
        )
        prefill_layers(self._stack, token_ids, at, to, rows)

    def decode(
        self, plan: Plan, evicting: BoolArray, given: Eviction | None, timer: StepTimer
    ) -> StepResult:
        """Prefix, importance where asked for, selection, compaction, suffix, head."""
        inputs, block, feed = self._inputs_for(plan), plan.block, plan.feed
        rules = self._rules
        size = inputs.fill(
            plan, mask_token_id=self._model.spec.mask_token_id, page_size=self._cache.page_size
        )
        ranks = bool(evicting.any())
        if ranks:
            inputs.fill_importance(plan, evicting)
        scores: Tensor | None = None
        if given is None:
            scores = self._fill_selection(plan, evicting)
        else:
            attended = rules.last_attended(block, feed, given)
            kept_size = inputs.fill_given(plan, given, attended)
        inputs.upload()
        first = self._first(size)
        timer.end("prefix")
        if given is None:
            self._run_eviction(size, first, scores)
            kept_size, kept = self._read_eviction(size)
            eviction = kept_from_trace(block, feed, kept)
        else:
            eviction = given
            if ranks:
                self._importance(first)
            if kept_size.num_fed < size.num_fed:
                self._compact_given(first)
        if ranks or given is None:
            timer.end("eviction")
        if kept_size.num_fed < size.num_fed or given is None:
            hidden = self._later_kept(kept_size)
            head_rows = self._compacted.head_rows
        else:
            hidden = self._later_all(size, first)
            head_rows = inputs.device.head_rows
        timer.end("suffix")
        result = self._head(plan, eviction, hidden, head_rows[: kept_size.num_head], timer)
        return result

    def run_without_trace(self, plan: Plan) -> StepResult:
        """A forward without eviction, after which the cache is what it was."""
        block, feed = plan.block, plan.feed
        row_of, column = np.nonzero(feed.positions)
        positions = block.block_start[row_of] + column
        page_size = self._cache.page_size
        pages = plan.page_table[plan.rows][row_of, positions // page_size].astype(np.int64)
        slots = torch.from_numpy(pages * page_size + positions % page_size).to(self._device)
        saved = self._cache.snapshot(slots)
        nothing = np.zeros(block.num_rows, dtype=np.bool_)
        whole = self._rules.keep_all(block, feed)
        result = self.decode(plan, nothing, whole, StepTimer(self._device))
        self._cache.restore(slots, saved)
        return result

    # -- buffers and graphs ----------------------------------------------------------------------

    def _inputs_for(self, plan: Plan) -> StepInputs:
        if plan.block.num_rows > self._max_rows:
            raise AssertionError(f"{plan.block.num_rows} rows in a step of {self._max_rows}")
        if plan.page_table.shape[1] > self._table_width:
            self._reserve(plan.page_table.shape[1])
        return self._inputs

    def _reserve(self, table_width: int) -> None:
        """Buffers for page tables of that width, and graphs over them."""
        spec, device, dtype = self._model.spec, self._device, self._model.dtype
        rows, capacity = self._max_rows, self._max_rows * self._block_length
        self._table_width = table_width
        self._inputs = StepInputs(
            max_rows=rows,
            block_length=self._block_length,
            table_width=table_width,
            device=device,
        )
        if self._may_evict:
            self._selected = SelectionOutputs.empty(rows, self._block_length, device)
            self._delta = torch.zeros(
                (rows, self._block_length), dtype=torch.float32, device=device
            )
            self._compacted = CompactionOutputs(
                hidden=torch.zeros((capacity, spec.hidden_size), dtype=dtype, device=device),
                q=torch.zeros(
                    (capacity, spec.num_q_heads, spec.head_dim), dtype=dtype, device=device
                ),
                cos=torch.zeros((capacity, spec.head_dim), dtype=dtype, device=device),
                sin=torch.zeros((capacity, spec.head_dim), dtype=dtype, device=device),
                slots=torch.full((capacity,), -1, dtype=torch.int32, device=device),
                positions=torch.zeros(capacity, dtype=torch.int32, device=device),
                cu_kept=torch.zeros(rows + 1, dtype=torch.int32, device=device),
                head_rows=torch.zeros(capacity, dtype=torch.int32, device=device),
                totals=torch.zeros(2, dtype=torch.int32, device=device),
            )
        self._capture()

    def _capture(self) -> None:
        """Capture the policy's stages for every bucket up to the limit, over empty inputs."""
        pool = torch.cuda.graph_pool_handle() if self._max_graph_tokens else None
        self._first_graphs: StageGraphs[FirstLayers] = StageGraphs(pool)
        self._eviction_graphs: StageGraphs[None] = StageGraphs(pool)
        self._kept_graphs: StageGraphs[Tensor] = StageGraphs(pool)
        self._all_graphs: StageGraphs[Tensor] = StageGraphs(pool)
        buckets = buckets_up_to(self._max_graph_tokens) if self._max_graph_tokens else []
        for bucket in buckets:
            first = self._first_graphs.capture(bucket, self._first_stage(bucket, self._max_rows))
            self._all_graphs.capture(bucket, self._all_stage(first, bucket, self._max_rows))
            if self._may_evict:
                if self._selects_by_scores_of_the_model:
                    self._eviction_graphs.capture(bucket, self._eviction_stage(first, None))
                self._kept_graphs.capture(bucket, self._kept_stage(bucket, self._max_rows))

    @property
    def _selects_by_scores_of_the_model(self) -> bool:
        decode = self._rules.decode
        return get_policy(decode.policy).eviction is not EvictionKind.FIXED or (
            decode.select != "random"
        )

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

    # -- stages ----------------------------------------------------------------------------------

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
        return self._all_stage(first, size.num_fed, size.num_rows)()

    def _all_stage(
        self, first: FirstLayers, num_tokens: int, num_rows: int
    ) -> Callable[[], Tensor]:
        inputs = self._inputs.device
        rows = self._rows(inputs.cu_fed, inputs.later_keys, num_rows)
        return lambda: later_layers(self._stack, first, rows)

    def _later_kept(self, size: StepSize) -> Tensor:
        bucket = token_bucket(size.num_fed)
        if bucket in self._kept_graphs:
            return self._kept_graphs.replay(bucket)
        return self._kept_stage(size.num_fed, size.num_rows)()

    def _kept_stage(self, num_tokens: int, num_rows: int) -> Callable[[], Tensor]:
        compacted = self._compacted
        kept = FirstLayers(
            hidden=compacted.hidden[:num_tokens],
            q0=compacted.q[:num_tokens],
            q1=compacted.q[:num_tokens],
            cos=compacted.cos[:num_tokens],
            sin=compacted.sin[:num_tokens],
            slots=compacted.slots[:num_tokens],
        )
        rows = self._rows(compacted.cu_kept, self._selected.num_keys, num_rows)
        return lambda: later_layers(self._stack, kept, rows)

    # -- eviction --------------------------------------------------------------------------------

    def _fill_selection(self, plan: Plan, evicting: BoolArray) -> Tensor | None:
        """Budgets, flags and synthetic deltas; float64 scores on the device where given ones rank
        the rows.
        """
        rules, block, feed = self._rules, plan.block, plan.feed
        selection = selection_of(block, feed, rules)
        self._inputs.fill_budget(
            evicting, selection.budget, fixed=selection.fixed, rightmost=selection.rightmost
        )
        if selection.delta is not None:
            self._inputs.fill_delta(selection.delta)
        if selection.scores is None:
            return None
        scores = np.zeros((self._max_rows, self._block_length))
        scores[: block.num_rows] = selection.scores
        return torch.from_numpy(scores).to(self._device)

    def _run_eviction(self, size: StepSize, first: FirstLayers, scores: Tensor | None) -> None:
        bucket = token_bucket(size.num_fed)
        if scores is None and bucket in self._eviction_graphs:
            self._eviction_graphs.replay(bucket)
        else:
            self._eviction_stage(first, scores)()

    def _eviction_stage(self, first: FirstLayers, scores: Tensor | None) -> Callable[[], None]:
        inputs = self._inputs.device
        mode = "given" if scores is not None else self._rules.decode.select
        is_synthetic = self._rules.importance.kind == "synthetic"
        selection = SelectionInputs(
            delta=inputs.delta if is_synthetic else self._delta,
            fed=inputs.fed,
            masked=inputs.decodable,
            progress=inputs.progress,
            budget=inputs.budget,
            block_start=inputs.block_start,
            flags=inputs.flags,
            scores=scores,
        )

        def stage() -> None:
            self._importance(first)
            select(selection, self._selected, mode="top" if mode == "random" else mode)
            self._compact(first, self._selected.kept, self._selected.num_kept)

        return stage

    def _importance(self, first: FirstLayers) -> None:
        inputs, cache = self._inputs.device, self._cache
        assert first.q1 is not None
        importance_delta(
            first.q0,
            first.q1,
            cache.layer(0)[0],
            cache.layer(1)[0],
            MaskedTokens(
                cu_masked=inputs.cu_masked,
                token=inputs.masked_token,
                slot=inputs.masked_slot,
                column=inputs.masked_column,
                block_length=self._block_length,
            ),
            out=self._delta,
        )

    def _compact(self, first: FirstLayers, kept: Tensor, num_kept: Tensor) -> None:
        inputs = self._inputs.device
        assert first.q1 is not None
        compact(
            kept,
            inputs.fed,
            inputs.decodable,
            num_kept,
            self._selected.num_head,
            inputs.cu_fed,
            CompactionStates(
                hidden=first.hidden,
                q=first.q1,
                cos=first.cos,
                sin=first.sin,
                slots=first.slots,
                positions=inputs.positions[: len(first.slots)],
            ),
            self._compacted,
        )

    def _compact_given(self, first: FirstLayers) -> None:
        """Compaction by what the host decided, through the buffers that the suffix reads."""
        inputs, selected = self._inputs.device, self._selected
        selected.kept.copy_(inputs.given_kept)
        selected.num_kept.copy_(inputs.given_num_kept)
        selected.num_head.copy_(inputs.given_num_head)
        selected.num_keys.copy_(inputs.later_keys)
        self._compact(first, selected.kept, selected.num_kept)

    def _read_eviction(self, size: StepSize) -> tuple[StepSize, BoolArray]:
        """The one readback within a step: kept counts and masks."""
        back = self._readback
        back.totals.copy_(self._compacted.totals, non_blocking=True)
        back.kept.copy_(self._selected.kept, non_blocking=True)
        if self._evicted is not None:
            self._evicted.record()
            self._evicted.synchronize()
        num_kept, num_head = back.totals.tolist()
        kept = back.kept.numpy()[: size.num_rows].astype(np.bool_)
        return StepSize(num_rows=size.num_rows, num_fed=num_kept, num_head=num_head), kept

    # -- head ------------------------------------------------------------------------------------

    def _head(
        self, plan: Plan, eviction: Eviction, hidden: Tensor, head_rows: Tensor, timer: StepTimer
    ) -> StepResult:
        candidates = eviction.kept & plan.feed.decodable
        tokens = np.zeros(candidates.shape, dtype=np.int32)
        confidence = np.zeros(candidates.shape, dtype=np.float32)
        num_head = len(head_rows)
        if num_head:
            sampling, uniforms = self._sampling, None
            if sampling.temperature > 0.0:
                draws = position_uniforms(plan.block, self._rules.seed)[candidates]
                uniforms = torch.from_numpy(draws).to(self._device)
            rows = hidden.index_select(0, head_rows)
            if sampling.temperature > 0.0 and (sampling.top_k > 0 or sampling.top_p < 1.0):
                # Filters need whole distributions: rows in chunks instead of the vocabulary.
                drawn, sure = sample_rows(self._model, rows, sampling, uniforms)
            else:
                drawn, sure = unmask_head(
                    self._stack.normed(rows),
                    self._stack.head,
                    config=self._head_config,
                    uniforms=uniforms,
                )
            back = self._readback
            back.tokens[:num_head].copy_(drawn, non_blocking=True)
            back.confidence[:num_head].copy_(sure, non_blocking=True)
        timer.end("head")
        timer.wait()
        if num_head:
            tokens[candidates] = self._readback.tokens.numpy()[:num_head]
            confidence[candidates] = self._readback.confidence.numpy()[:num_head]
        return StepResult(eviction=eviction, tokens=tokens, confidence=confidence)
