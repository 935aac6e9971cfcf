"""The engine's executor: carries out a plan on a device, with the rules of decoding/.

Knows no queue, no arrivals and no pages beyond those that the plan names.
"""

import numpy as np
import torch
from torch import Tensor

from focus_bench.core.config import SamplingConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.rng import stream_key, uniform
from focus_bench.decoding.block_state import BoolArray, FloatArray, TokenArray
from focus_bench.decoding.eviction import Eviction
from focus_bench.decoding.policies import EvictionKind, get_policy
from focus_bench.decoding.rules import StepRules
from focus_bench.engine.forward import DecodeForward, SequenceTokens, prefill
from focus_bench.engine.kv_cache import KVSlots, PagedKVCache
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.sampling import sample
from focus_bench.engine.timing import StepTimer
from focus_bench.scheduling.plan import Outcome, Plan

# Rows of float32 logits that exist at once: 4,096 rows of 151,936 ids are 2.5 GB.
MAX_LOGIT_BYTES = 1 << 30


class EngineExecutor:
    """Executes plans for one model and one configuration; implements scheduling.loop.Executor."""

    def __init__(
        self,
        model: BlockDiffusionModel,
        cache: PagedKVCache,
        rules: StepRules,
        sampling: SamplingConfig,
    ) -> None:
        policy = get_policy(rules.decode.policy)
        evicts = policy.eviction is not EvictionKind.NONE or policy.adaptive
        if evicts and model.spec.num_layers < 2:
            raise UsageError(
                "--policy", policy.name, f"policies without eviction ({model.spec.name}: 1 layer)"
            )
        if policy.shifted_logits:
            raise UsageError("--policy", policy.name, "policies without shifted logits")
        self._model = model
        self._cache = cache
        self._rules = rules
        self._sampling = sampling
        self._host_copies: dict[int, KVSlots] = {}

    @torch.inference_mode()
    def execute(self, plan: Plan) -> Outcome:
        """Swap, prefill and decode as planned."""
        timer = StepTimer(self._model.device)
        self._swap(plan)
        timer.end("swap")
        if plan.prefill:
            self._prefill(plan)
            timer.end("prefill")
        if not len(plan.rows):
            empty = np.zeros((0, plan.block.block_length), dtype=np.bool_)
            return Outcome(
                kept=empty,
                progress=np.zeros(0, dtype=np.int64),
                decoded=empty,
                tokens=empty.astype(np.int32),
                evicting=np.zeros(0, dtype=np.bool_),
                timing=timer.finish(),
            )
        return self._decode(plan, timer)

    def _swap(self, plan: Plan) -> None:
        for request_id in plan.dropped_swaps:
            self._host_copies.pop(request_id, None)
        for swap in plan.swap_out:
            self._host_copies[swap.request_id] = self._cache.copy_pages_out(swap.pages)
        for swap in plan.swap_in:
            saved = self._host_copies.pop(swap.request_id)
            pages = swap.pages[: saved.keys.shape[1] // self._cache.page_size]
            self._cache.copy_pages_in(pages, saved)

    def _prefill(self, plan: Plan) -> None:
        sequences = [
            SequenceTokens(
                token_ids=chunk.token_ids,
                positions=np.arange(chunk.start, chunk.start + len(chunk.token_ids)),
                page_table=plan.page_table[chunk.slot],
            )
            for chunk in plan.prefill
        ]
        prefill(self._model, self._cache, sequences, block_length=plan.block.block_length)

    def _decode(self, plan: Plan, timer: StepTimer) -> Outcome:
        block, feed, rules = plan.block, plan.feed, self._rules
        ideal = rules.ideal_rows(block, feed)
        decodable_now = self._decodable_without_eviction(plan) if ideal.any() else None
        forward = self._decode_forward(plan)
        forward.prefix()
        timer.end("prefix")
        evicting = np.zeros(len(plan.rows), dtype=np.bool_)
        if decodable_now is not None:
            eviction = rules.evict_ideal(block, feed, decodable_now)
        else:
            evicting = rules.rows_to_evict(block, feed)
            delta = self._delta(plan, forward, evicting) if evicting.any() else None
            eviction = rules.evict(block, feed, delta)
        timer.end("eviction")
        attended = rules.last_attended(block, feed, eviction)
        hidden = forward.suffix(eviction.kept[feed.positions], attended)
        timer.end("suffix")
        tokens, confidence = self._head(plan, eviction, hidden)
        errors = _confidence_errors(plan, eviction.kept & feed.decodable, confidence)
        failed = np.zeros(len(plan.rows), dtype=np.bool_)
        failed[list(errors)] = True
        if decodable_now is not None:
            decoded = decodable_now & eviction.kept
        else:
            safe = np.where(failed[:, None], np.float32(0.0), confidence)
            decoded = rules.decoded(block, feed, eviction.kept, safe)
        timer.end("head")
        return Outcome(
            kept=eviction.kept,
            progress=eviction.progress,
            decoded=decoded & ~failed[:, None],
            tokens=tokens,
            evicting=evicting,
            timing=timer.finish(),
            errors=errors,
            ends=rules.traced_ends(block),
        )

    def _decode_forward(self, plan: Plan) -> DecodeForward:
        block, positions = plan.block, plan.feed.positions
        mask_id = self._model.spec.mask_token_id
        tokens = np.where(block.decoded, block.tokens, mask_id).astype(np.int32)
        sequences = []
        for row, slot in enumerate(plan.rows.tolist()):
            fed = np.flatnonzero(positions[row])
            sequences.append(
                SequenceTokens(
                    token_ids=tokens[row, fed],
                    positions=fed + int(block.block_start[row]),
                    page_table=plan.page_table[slot],
                )
            )
        return DecodeForward(
            self._model,
            self._cache,
            sequences,
            block_start=block.block_start,
            block_length=block.block_length,
        )

    def _delta(self, plan: Plan, forward: DecodeForward, evicting: BoolArray) -> FloatArray:
        """Importance deltas [n, B] of the evicting rows, computed also where only timed."""
        positions, masked = plan.feed.positions, plan.feed.decodable
        wanted = masked & evicting[:, None]
        flat_index = np.cumsum(positions.reshape(-1)).reshape(positions.shape) - 1
        masked_rows = [flat_index[r, wanted[r]] for r in np.flatnonzero(evicting)]
        values = forward.importance_delta(masked_rows)
        delta = np.zeros(positions.shape, dtype=np.float32)
        delta[wanted] = values.cpu().numpy()
        return delta

    def _decodable_without_eviction(self, plan: Plan) -> BoolArray:
        """Policy `ideal`: what this step decodes without eviction, the cache left as it was."""
        block, feed = plan.block, plan.feed
        forward = self._decode_forward(plan)
        saved = self._cache.snapshot(forward.slots)
        forward.prefix()
        kept_all = self._rules.keep_all(block, feed)
        hidden = forward.suffix(kept_all.kept[feed.positions], kept_all.progress)
        _, confidence = self._head(plan, kept_all, hidden)
        self._cache.restore(forward.slots, saved)
        safe = np.nan_to_num(confidence, nan=0.0)
        return self._rules.decoded(block, feed, kept_all.kept, safe)

    def _head(
        self, plan: Plan, eviction: Eviction, hidden: Tensor
    ) -> tuple[TokenArray, FloatArray]:
        """Sampled tokens int32 and confidences float32, [n, B], at kept masked positions."""
        candidates = eviction.kept & plan.feed.decodable
        tokens = np.zeros(candidates.shape, dtype=np.int32)
        confidence = np.zeros(candidates.shape, dtype=np.float32)
        if not candidates.any():
            return tokens, confidence
        spec, device = self._model.spec, self._model.device
        needed = torch.from_numpy(np.flatnonzero(candidates[eviction.kept])).to(device)
        rows_hidden = hidden.index_select(0, needed)
        uniforms = None
        if self._sampling.temperature > 0.0:
            uniforms = torch.from_numpy(self._uniforms(plan)[candidates]).to(device)
        chunk = max(1, MAX_LOGIT_BYTES // (4 * spec.vocab_size))
        parts = []
        for start in range(0, len(needed), chunk):
            part = slice(start, start + chunk)
            parts.append(
                sample(
                    self._model.logits(rows_hidden[part]),
                    self._sampling,
                    mask_token_id=spec.mask_token_id,
                    num_valid_ids=spec.tokenizer_size or spec.vocab_size,
                    uniforms=None if uniforms is None else uniforms[part],
                )
            )
        tokens[candidates] = torch.cat([t for t, _ in parts]).to(torch.int32).cpu().numpy()
        confidence[candidates] = torch.cat([c for _, c in parts]).cpu().numpy()
        return tokens, confidence

    def _uniforms(self, plan: Plan) -> np.ndarray:
        """One uniform [n, B] a position, keyed by (seed, request, block, decode step, position)."""
        block = plan.block
        return uniform(
            stream_key(self._rules.seed, "sampling"),
            block.request_key[:, None],
            block.block_index[:, None],
            block.block_steps[:, None],
            np.arange(block.block_length)[None, :],
        )


def _confidence_errors(plan: Plan, candidates: BoolArray, confidence: FloatArray) -> dict[int, str]:
    """Rows with a confidence that is no number: their requests fail, by name."""
    bad = candidates & ~np.isfinite(confidence)
    errors = {}
    for row in np.flatnonzero(bad.any(axis=1)).tolist():
        position = int(plan.block.block_start[row]) + int(bad[row].argmax())
        errors[row] = (
            f"the confidence at position {position} is not finite (logits NaN or all -inf); "
            "allowed: finite logits"
        )
    return errors
