"""The forward passes: prefill, and decode as prefix -> eviction -> suffix. Model-agnostic.

Knows what a row attends to; which positions are kept is decided between `prefix` and `suffix` by
the caller, from decoding/.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from focus_bench.engine.attention import RaggedRows, paged_attention
from focus_bench.engine.importance import importance
from focus_bench.engine.kv_cache import IntArray, PagedKVCache, slot_ids
from focus_bench.engine.models.base import BlockDiffusionModel

BoolArray = npt.NDArray[np.bool_]


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
    flat_slots = _to_device(np.concatenate(slots), model.device)
    hidden, cos, sin = _embed(model, sequences)
    last = model.spec.num_layers - 1
    for layer in range(model.spec.num_layers):
        q, k, v = model.project(layer, hidden, cos, sin)
        cache.write(layer, flat_slots, k, v)
        if layer < last:  # the last layer's output is nobody's input
            hidden = model.finish(layer, hidden, paged_attention(cache, layer, q, rows))


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
        self._model = model
        self._cache = cache
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
        self._sequences = sequences

    def prefix(self) -> None:
        """Layer 0, attending to the history and the whole block, and layer 1 up to its K/V write.

        (A model of one layer runs whole here.)
        """
        model, cache = self._model, self._cache
        hidden, cos, sin = _embed(model, self._sequences)
        rows = RaggedRows.build(self._num_fed, self._key_slots, device=model.device)
        q0, k0, v0 = model.project(0, hidden, cos, sin)
        cache.write(0, self.slots, k0, v0)
        hidden = model.finish(0, hidden, paged_attention(cache, 0, q0, rows))
        self._qk = [(q0, k0)]
        if model.spec.num_layers > 1:
            q1, k1, v1 = model.project(1, hidden, cos, sin)
            cache.write(1, self.slots, k1, v1)
            self._qk.append((q1, k1))
        self._hidden, self._cos, self._sin = hidden, cos, sin

    def importance_delta(self, masked_rows: Sequence[IntArray]) -> Tensor:
        """Importance of layer 1 minus that of layer 0 (paper Eq. 3), float32 [sum of M].

        `masked_rows[s]`: indices among the T fed tokens of the masked positions of each sequence
        that evicts.
        """
        (q0, k0), (q1, k1) = self._qk
        return importance(q1, k1, masked_rows) - importance(q0, k0, masked_rows)

    def suffix(self, kept: BoolArray, last_attended: IntArray) -> Tensor:
        """Hidden states [kept tokens, h] after the last layer.

        `kept[T]`: fed tokens that go on past layer 1's K/V write; `last_attended[n]`: the last
        block position that layers >= 1 attend to, with the whole history and all before it.
        """
        model, cache = self._model, self._cache
        if model.spec.num_layers == 1:
            return self._hidden[_to_device(np.flatnonzero(kept), model.device)]
        bounds = np.concatenate([[0], np.cumsum(self._num_fed)])
        kept_before = np.concatenate([[0], np.cumsum(kept)])
        num_kept = np.diff(kept_before[bounds]).tolist()
        ends = (self._block_start + last_attended + 1).tolist()
        keys = [slots[:end] for slots, end in zip(self._key_slots, ends, strict=True)]
        rows = RaggedRows.build(num_kept, keys, device=model.device)
        hidden, q = self._hidden, self._qk[1][0]
        cos, sin, slots = self._cos, self._sin, self.slots
        if not kept.all():
            index = _to_device(np.flatnonzero(kept), model.device)
            hidden, q = hidden.index_select(0, index), q.index_select(0, index)
            cos, sin = cos.index_select(0, index), sin.index_select(0, index)
            slots = slots.index_select(0, index)
        hidden = model.finish(1, hidden, paged_attention(cache, 1, q, rows))
        for layer in range(2, model.spec.num_layers):
            q, k, v = model.project(layer, hidden, cos, sin)
            cache.write(layer, slots, k, v)
            hidden = model.finish(layer, hidden, paged_attention(cache, layer, q, rows))
        return hidden


def _embed(
    model: BlockDiffusionModel, sequences: Sequence[SequenceTokens]
) -> tuple[Tensor, Tensor, Tensor]:
    ids = np.concatenate([s.token_ids for s in sequences]).astype(np.int64)
    positions = np.concatenate([s.positions for s in sequences])
    cos, sin = model.rope(_to_device(positions, model.device))
    return model.embed(_to_device(ids, model.device)), cos, sin


def _to_device(values: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
