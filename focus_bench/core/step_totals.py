"""The shape of a step from its totals, as step records have them; for the cost account.

Records keep no sequence by itself, so a step's sequences are taken to be alike, and its prefill to
be equal chunks of fresh prompts. Decides nothing.
"""

from dataclasses import dataclass

import numpy as np

from focus_bench.core.costs import DecodeShape, IntArray, PrefillShape, StepShape


@dataclass(frozen=True, kw_only=True)
class StepTotals:
    """Totals over the sequences of one step; the names are those of StepRecord."""

    prefill_tokens: int
    num_rows: int
    commit_rows: int
    evicting_rows: int
    fed_tokens: int
    kept_tokens: int
    masked_tokens: int
    context_tokens: int

    def shape(self, block_length: int, *, chunk_tokens: int | None = None) -> StepShape:
        """The step's prefill and decode forward, each if there is one; `chunk_tokens`: of a chunk,
        about, None for a single chunk.
        """
        return StepShape(
            prefill=self._prefill(block_length, chunk_tokens),
            forwards=(self._forward(block_length),) if self.num_rows else (),
            swapped_pages=0,
            page_size=1,
        )

    def _prefill(self, block_length: int, chunk_tokens: int | None) -> PrefillShape:
        blocks = self.prefill_tokens // block_length
        chunks = round(self.prefill_tokens / chunk_tokens) if chunk_tokens else 1
        length = _spread(blocks, min(blocks, max(1, chunks))) * block_length
        return PrefillShape(start=0 * length, length=length, block_length=block_length)

    def _forward(self, block_length: int) -> DecodeShape:
        rows, evicting = self.num_rows, self.evicting_rows
        keys = _spread(self.context_tokens, rows) + block_length
        masked_fed = np.zeros(rows, dtype=np.int64)
        if evicting:
            decoding = max(1, rows - self.commit_rows)
            masked_fed[:evicting] = _spread(self.masked_tokens * evicting // decoding, evicting)
        # Fed positions that are not masked are always kept, so the others of the kept are masked.
        settled = self.fed_tokens - self.masked_tokens
        return DecodeShape(
            fed=_spread(self.fed_tokens, rows),
            kept=_spread(self.kept_tokens, rows),
            masked_fed=masked_fed,
            first_keys=keys,
            later_keys=keys,
            head_rows=max(0, self.kept_tokens - settled),
        )


def _spread(total: int, parts: int) -> IntArray:
    """`parts` whole numbers that differ by 1 at most and sum to `total`."""
    return (total * (np.arange(parts) + 1)) // parts - (total * np.arange(parts)) // parts
