"""Decode steps in plain PyTorch, with every decision taken on the host: the reference, and the CPU.

Knows what a row attends to; the rules come from decoding/.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from focus_bench.core.config import SamplingConfig
from focus_bench.decoding.block_state import BoolArray
from focus_bench.decoding.eviction import Eviction
from focus_bench.decoding.head_rows import head_rows
from focus_bench.decoding.rules import StepRules
from focus_bench.engine.attention import RaggedRows
from focus_bench.engine.decode_step import EvictionChoice, HeadPlaces, StepResult
from focus_bench.engine.forward import FirstLayers, first_layers, later_layers, prefill_layers
from focus_bench.engine.importance import importance
from focus_bench.engine.kv_cache import IntArray, PagedKVCache, slot_ids
from focus_bench.engine.layer_stack import PlainLayers
from focus_bench.engine.models.base import BlockDiffusionModel
from focus_bench.engine.sampling import next_block_uniforms, position_uniforms, sample
from focus_bench.engine.timing import StepTimer
from focus_bench.scheduling.plan import Plan

# Rows of float32 logits that exist at once: 4,096 rows of 151,936 ids are 2.5 GB.
MAX_LOGIT_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class SequenceTokens:
    """Tokens of one sequence that a forward feeds: ids and absolute positions, ascending [t].

    `page_table` lists the sequence's pages in token order.
    """

    token_ids: npt.NDArray[np.int32]
    positions: IntArray
    page_table: npt.NDArray[np.int32]


def prefill(
    model: BlockDiffusionModel,
    cache: PagedKVCache,
    sequences: Sequence[SequenceTokens],
    *,
    block_length: int,
) -> None:
    """Write the K/V of whole prompt blocks, block-causal; the sequences' chunks may be of any
    number of blocks and follow on what is cached already.
    """
    slots, keys = [], []
    for sequence in sequences:
        end = int(sequence.positions[-1]) + 1
        all_slots = slot_ids(sequence.page_table, np.arange(end), cache.page_size)
        keys.append(all_slots)
        slots.append(all_slots[sequence.positions])
    rows = RaggedRows.build(
        [len(s.positions) for s in sequences], keys, device=model.device, block_length=block_length
    )
    token_ids, positions = _tokens_and_positions(sequences, model.device)
    flat_slots = _to_device(np.concatenate(slots), model.device)
    prefill_layers(PlainLayers(model, cache), token_ids, positions, flat_slots, rows)


class DecodeForward:
    """One forward of the decode rows: `prefix`, then `suffix` with what is kept.

    `sequences[n]`: what each row feeds; `block_start[n]`; `block_length`: B. All tensors hold the T
    fed tokens, sequence after sequence.
    """

    def __init__(
        self,
        model: BlockDiffusionModel,
        cache: PagedKVCache,
        sequences: Sequence[SequenceTokens],
        *,
        block_start: IntArray,
        block_length: int,
    ) -> None:
        self._stack = PlainLayers(model, cache)
        self._device = model.device
        self._block_start = block_start
        self._key_slots = [
            slot_ids(s.page_table, np.arange(start + block_length), cache.page_size)
            for s, start in zip(sequences, block_start.tolist(), strict=True)
        ]
        self._num_fed = [len(s.positions) for s in sequences]
        fed_slots = [
            slots[s.positions] for slots, s in zip(self._key_slots, sequences, strict=True)
        ]
        self.slots = _to_device(np.concatenate(fed_slots), model.device)
        self._tokens = _tokens_and_positions(sequences, model.device)

    def prefix(self) -> None:
        """The first layers of all fed tokens."""
        rows = RaggedRows.build(self._num_fed, self._key_slots, device=self._device)
        self._first = first_layers(self._stack, *self._tokens, self.slots, rows)

    def importance_delta(self, masked_rows: Sequence[IntArray]) -> Tensor:
        """Importance of layer 1 minus that of layer 0 (paper Eq. 3), float32 [sum of M].

        `masked_rows[s]`: indices among the T fed tokens of the masked positions of each sequence
        that evicts.
        """
        first, cache = self._first, self._stack.cache
        assert first.q1 is not None
        k0, _ = cache.gather(0, self.slots)
        k1, _ = cache.gather(1, self.slots)
        return importance(first.q1, k1, masked_rows) - importance(first.q0, k0, masked_rows)

    def suffix(self, kept: BoolArray, last_attended: IntArray) -> Tensor:
        """Hidden states [kept tokens, h] after the last layer.

        `kept[T]`: fed tokens that go on past layer 1's K/V write; `last_attended[n]`: the last
        block position that layers >= 1 attend to, with the whole history and all before it.
        """
        bounds = np.concatenate([[0], np.cumsum(self._num_fed)])
        kept_before = np.concatenate([[0], np.cumsum(kept)])
        num_kept = np.diff(kept_before[bounds]).tolist()
        ends = (self._block_start + last_attended + 1).tolist()
        keys = [slots[:end] for slots, end in zip(self._key_slots, ends, strict=True)]
        rows = RaggedRows.build(num_kept, keys, device=self._device)
        first = self._first
        if not kept.all():
            first = _kept_rows(first, _to_device(np.flatnonzero(kept), self._device))
        return later_layers(self._stack, first, rows)


class HostStep:
    """Decode steps of one model over one cache; implements DecodeStep."""

    def __init__(
        self,
        model: BlockDiffusionModel,
        cache: PagedKVCache,
        rules: StepRules,
        sampling: SamplingConfig,
    ) -> None:
        self._model = model
        self._cache = cache
        self._rules = rules
        self._sampling = sampling

    def prepare(self, max_pages: int) -> None:
        """Nothing is compiled."""

    def prefill(self, plan: Plan) -> None:
        """Write the K/V of the plan's prefill chunks."""
        sequences = [
            SequenceTokens(
                token_ids=chunk.token_ids,
                positions=np.arange(chunk.start, chunk.start + len(chunk.token_ids)),
                page_table=plan.page_table[chunk.slot],
            )
            for chunk in plan.prefill
        ]
        prefill(self._model, self._cache, sequences, block_length=plan.block.block_length)

    def decode(
        self,
        plan: Plan,
        choose: Callable[[], EvictionChoice],
        timer: StepTimer,
        meanwhile: Callable[[Eviction], None],
    ) -> StepResult:
        """Prefix, importance where asked for, eviction, suffix, head."""
        block, feed, choice = plan.block, plan.feed, choose()
        evicting, eviction = choice.evicting, choice.given
        forward = self._forward(plan)
        forward.prefix()
        timer.end("prefix")
        delta = self._delta(plan, forward, evicting) if evicting.any() else None
        if eviction is None:
            eviction = self._rules.evict(block, feed, delta, evicting=evicting)
        timer.end("eviction")
        attended = self._rules.last_attended(block, feed, eviction)
        hidden = forward.suffix(eviction.kept[feed.positions], attended)
        timer.end("suffix")
        result = self._head(plan, eviction, choice.evicting, hidden)
        timer.end("head")
        meanwhile(eviction)
        return result

    def run_without_trace(self, plan: Plan) -> StepResult:
        """A forward without eviction, after which the cache is what it was."""
        forward = self._forward(plan)
        saved = self._cache.snapshot(forward.slots)
        forward.prefix()
        whole = self._rules.keep_all(plan.block, plan.feed)
        hidden = forward.suffix(whole.kept[plan.feed.positions], whole.progress)
        nothing = np.zeros(plan.block.num_rows, dtype=np.bool_)
        result = self._head(plan, whole, nothing, hidden)
        self._cache.restore(forward.slots, saved)
        return result

    def _forward(self, plan: Plan) -> DecodeForward:
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

    def _delta(
        self, plan: Plan, forward: DecodeForward, evicting: BoolArray
    ) -> npt.NDArray[np.float32]:
        """Importance deltas [n, B] of the evicting rows, computed also where only timed."""
        positions, masked = plan.feed.positions, plan.feed.decodable
        wanted = masked & evicting[:, None]
        flat_index = np.cumsum(positions.reshape(-1)).reshape(positions.shape) - 1
        masked_rows = [flat_index[r, wanted[r]] for r in np.flatnonzero(evicting)]
        values = forward.importance_delta(masked_rows)
        delta = np.zeros(positions.shape, dtype=np.float32)
        delta[wanted] = values.cpu().numpy()
        return delta

    def _head(
        self, plan: Plan, eviction: Eviction, evicting: BoolArray, hidden: Tensor
    ) -> StepResult:
        candidates = eviction.kept & plan.feed.decodable
        needed = head_rows(plan.feed, eviction.kept, shifted=plan.shifted_logits)
        ids = np.zeros(0, dtype=np.int32)
        sure = np.zeros(0, dtype=np.float32)
        if len(needed.index):
            device = self._model.device
            uniforms = None
            if self._sampling.temperature > 0.0:
                seed = self._rules.seed
                draws = position_uniforms(plan.block, seed)[candidates]
                next_draws = next_block_uniforms(plan.block, seed)[needed.carry]
                uniforms = _to_device(np.concatenate([draws, next_draws]), device)
            rows = hidden.index_select(0, _to_device(needed.index, device))
            drawn, certainty = sample_rows(self._model, rows, self._sampling, uniforms)
            ids, sure = drawn.to(torch.int32).cpu().numpy(), certainty.cpu().numpy()
        tokens, confidence, carried = HeadPlaces(plan, candidates).filled(ids, sure)
        return StepResult(
            eviction=eviction,
            evicting=evicting,
            tokens=tokens,
            confidence=confidence,
            carried=carried,
        )


def sample_rows(
    model: BlockDiffusionModel, hidden: Tensor, sampling: SamplingConfig, uniforms: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Token [R] and confidence [R] of R > 0 rows of the last layer's output, logits whole rows at a
    time; arguments and results as sampling.sample's.
    """
    spec = model.spec
    chunk = max(1, MAX_LOGIT_BYTES // (4 * spec.vocab_size))
    parts = []
    for start in range(0, len(hidden), chunk):
        part = slice(start, start + chunk)
        parts.append(
            sample(
                model.logits(hidden[part]),
                sampling,
                mask_token_id=spec.mask_token_id,
                num_valid_ids=spec.tokenizer_size or spec.vocab_size,
                uniforms=None if uniforms is None else uniforms[part],
            )
        )
    return torch.cat([t for t, _ in parts]), torch.cat([c for _, c in parts])


def _kept_rows(first: FirstLayers, index: Tensor) -> FirstLayers:
    q1 = first.q1
    return replace(
        first,
        hidden=first.hidden.index_select(0, index),
        q1=None if q1 is None else q1.index_select(0, index),
        cos=first.cos.index_select(0, index),
        sin=first.sin.index_select(0, index),
        slots=first.slots.index_select(0, index),
    )


def _tokens_and_positions(
    sequences: Sequence[SequenceTokens], device: torch.device
) -> tuple[Tensor, Tensor]:
    ids = np.concatenate([s.token_ids for s in sequences]).astype(np.int64)
    positions = np.concatenate([s.positions for s in sequences])
    return _to_device(ids, device), _to_device(positions, device)


def _to_device(values: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
