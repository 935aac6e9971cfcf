"""The engine's executor: carries out a plan on a device, with the rules of decoding/.

Knows no queue, no arrivals and no pages beyond those that the plan names; tensors are the step's.
"""

from collections.abc import Callable

import numpy as np
import torch

from focus_bench.core.config import PointConfig, SamplingConfig
from focus_bench.core.errors import UsageError
from focus_bench.decoding.block_state import BoolArray, FloatArray
from focus_bench.decoding.eviction import Eviction
from focus_bench.decoding.policies import EvictionKind, check_suits_model, get_policy
from focus_bench.decoding.rules import StepRules
from focus_bench.engine.decode_step import Carried, DecodeStep, EvictionChoice
from focus_bench.engine.host_step import HostStep
from focus_bench.engine.kv_cache import KVSlots, PagedKVCache
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.timing import StepTimer
from focus_bench.scheduling.loop import nothing
from focus_bench.scheduling.plan import Outcome, Plan


class EngineExecutor:
    """Executes plans for one model and one configuration; implements scheduling.loop.Executor.

    `step`: how tensors are computed; None: in plain PyTorch.
    """

    def __init__(
        self,
        model: BlockDiffusionModel,
        cache: PagedKVCache,
        rules: StepRules,
        sampling: SamplingConfig,
        *,
        step: DecodeStep | None = None,
    ) -> None:
        policy = get_policy(rules.decode.policy)
        evicts = policy.eviction is not EvictionKind.NONE or policy.adaptive
        if evicts and model.spec.num_layers < 2:
            raise UsageError(
                "--policy", policy.name, f"policies without eviction ({model.spec.name}: 1 layer)"
            )
        check_suits_model(policy.name, model.spec)
        self._device = model.device
        self._cache = cache
        self._rules = rules
        self._step = step or HostStep(model, cache, rules, sampling)
        self._host_copies: dict[int, KVSlots] = {}
        # Of two steps in turn: a step's are read while the next one runs.
        self._events: tuple[list[torch.cuda.Event], list[torch.cuda.Event]] = ([], [])
        self._read_last: Callable[[], object] = nothing

    @classmethod
    def for_point(
        cls, model: BlockDiffusionModel, cache: PagedKVCache, point: PointConfig
    ) -> "EngineExecutor":
        """The executor of a point: with kernels on a GPU, else in plain PyTorch.

        Models without fused layers run in plain PyTorch on a GPU too, decisions on the host.
        """
        rules = StepRules.for_point(point)
        step: DecodeStep | None = None
        if runs_on_kernels(model):
            # Triton is not there on every machine without a GPU.
            from focus_bench.engine.device_step import DeviceStep

            step = DeviceStep(
                model,
                cache,
                rules,
                point.sampling,
                max_rows=min(point.scheduler.batch_size, cache.num_pages),
                cuda_graphs=point.engine.cuda_graphs,
            )
        return cls(model, cache, rules, point.sampling, step=step)

    @torch.inference_mode()
    def prepare(self, max_pages: int) -> None:
        """Compile and capture what the steps need, so that none of them waits for it.

        `max_pages`: pages of the longest request that is expected; longer ones cost a pause.
        """
        self._step.prepare(max_pages)

    @torch.inference_mode()
    def execute(self, plan: Plan, meanwhile: Callable[[], None] = nothing) -> Outcome:
        """Swap, prefill and decode as planned; `meanwhile` is done while a device is busy."""
        timer = StepTimer(self._device, self._events[plan.index % 2])
        if plan.swap_out or plan.swap_in or plan.dropped_swaps:
            self._swap(plan)
            timer.end("swap")
        if plan.prefill:
            self._step.prefill(plan)
            timer.end("prefill")
        read_before = self._read_last

        def catch_up() -> None:
            read_before()
            meanwhile()

        if not len(plan.rows):
            catch_up()
            self._read_last = read_timing = timer.finish()
            empty = np.zeros((0, plan.block.block_length), dtype=np.bool_)
            return Outcome(
                kept=empty,
                progress=np.zeros(0, dtype=np.int64),
                decoded=empty,
                tokens=empty.astype(np.int32),
                evicting=np.zeros(0, dtype=np.bool_),
                read_timing=read_timing,
            )
        outcome = self._decode(plan, timer, catch_up)
        self._read_last = outcome.read_timing
        return outcome

    def _swap(self, plan: Plan) -> None:
        for request_id in plan.dropped_swaps:
            self._host_copies.pop(request_id, None)
        for swap in plan.swap_out:
            self._host_copies[swap.request_id] = self._cache.copy_pages_out(swap.pages)
        for swap in plan.swap_in:
            saved = self._host_copies.pop(swap.request_id)
            pages = swap.pages[: saved.keys.shape[1] // self._cache.page_size]
            self._cache.copy_pages_in(pages, saved)

    def _decode(self, plan: Plan, timer: StepTimer, meanwhile: Callable[[], None]) -> Outcome:
        block, feed, rules = plan.block, plan.feed, self._rules
        decodable_now: BoolArray | None = None
        if rules.ideal_rows(block, feed).any():
            first = self._step.run_without_trace(plan)
            safe = np.nan_to_num(first.confidence, nan=0.0)
            decodable_now = rules.decoded(block, feed, first.eviction.kept, safe)
        decoded: BoolArray | None = None

        def while_busy(eviction: Eviction) -> None:
            nonlocal decoded
            if decodable_now is not None:
                decoded = decodable_now & eviction.kept
            elif not rules.needs_confidence:
                decoded = rules.decoded(block, feed, eviction.kept, None)
            meanwhile()

        result = self._step.decode(
            plan, lambda: self._choice(plan, decodable_now), timer, while_busy
        )
        kept = result.eviction.kept
        errors = _confidence_errors(plan, kept & feed.decodable, result.confidence)
        if result.carried is not None:
            errors |= _carried_errors(plan, result.carried)
        failed, confidence = list(errors), result.confidence
        if decoded is None:
            if failed:
                confidence = confidence.copy()
                confidence[failed] = 0.0
            decoded = rules.decoded(block, feed, kept, confidence)
        if failed:
            decoded[failed] = False
        return Outcome(
            kept=kept,
            progress=result.eviction.progress,
            decoded=decoded,
            tokens=result.tokens,
            evicting=result.evicting,
            read_timing=timer.finish(),
            errors=errors,
            ends=rules.traced_ends(block),
            carried_tokens=None if result.carried is None else result.carried.tokens,
        )

    def _choice(self, plan: Plan, decodable_now: BoolArray | None) -> EvictionChoice:
        block, feed, rules = plan.block, plan.feed, self._rules
        evicting = rules.rows_to_evict(block, feed)
        given: Eviction | None = None
        if decodable_now is not None:
            given = rules.evict_ideal(block, feed, decodable_now)
        elif rules.exact_replay or not evicting.any():
            given = rules.evict(block, feed, None, evicting=evicting)
        return EvictionChoice(evicting=evicting, given=given)


def runs_on_kernels(model: BlockDiffusionModel) -> bool:
    """Whether the model's decode steps go through Triton kernels."""
    if model.device.type != "cuda":
        return False
    from focus_bench.engine.models.fused import has_fused_layers  # imports Triton

    return has_fused_layers(model)


def _confidence_errors(plan: Plan, candidates: BoolArray, confidence: FloatArray) -> dict[int, str]:
    """Rows with a confidence that is no number: their requests fail, by name."""
    bad = candidates & ~np.isfinite(confidence)
    errors: dict[int, str] = {}
    if not bad.any():
        return errors
    for row in np.flatnonzero(bad.any(axis=1)).tolist():
        errors[row] = _no_number_at(int(plan.block.block_start[row]) + int(bad[row].argmax()))
    return errors


def _carried_errors(plan: Plan, carried: Carried) -> dict[int, str]:
    """The same for the tokens that commit passes hand to the next blocks."""
    behind = plan.block.block_start + plan.block.block_length
    bad = np.flatnonzero(plan.feed.commit & ~np.isfinite(carried.confidence))
    return {row: _no_number_at(int(behind[row])) for row in bad.tolist()}


def _no_number_at(position: int) -> str:
    return (
        f"the confidence at position {position} is not finite (logits NaN or all -inf); "
        "allowed: finite logits"
    )
