"""Token documents, prompt and reply, and the same cut into blocks; knows no task and no tokenizer.

A document starts at position 0 with its prompt and ends with the stop token. Cut into blocks, the
rest of its last block is filled with stop tokens, as the decoder sees a block past its end.
"""

import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from focus_bench.core.errors import UsageError, reason_of

IdArray = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int64]
RoleArray = npt.NDArray[np.uint8]

# What a position of a block is for the objective.
PROMPT, REPLY, FILL = 0, 1, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenDocuments:
    """D documents, one after another.

    `token_ids` [N]; document d is ``token_ids[offsets[d]:offsets[d + 1]]`` (`offsets` [D + 1]) and
    its first `prompt_lengths[d]` tokens are the prompt. Raises UsageError naming the first document
    that does not end with `eos_token_id`, has no reply, or holds `mask_token_id`.
    """

    token_ids: IdArray
    offsets: IntArray
    prompt_lengths: IntArray
    mask_token_id: int
    eos_token_id: int

    def __post_init__(self) -> None:
        if len(self.offsets) != len(self.prompt_lengths) + 1 or self.num_documents < 1:
            raise UsageError(
                "documents offsets", len(self.offsets), "one more than prompt_lengths, at least 2"
            )
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.token_ids):
            raise UsageError(
                "documents offsets",
                [int(self.offsets[0]), int(self.offsets[-1])],
                f"from 0 to the number of tokens, {len(self.token_ids)}",
            )
        _refuse_first(
            "prompt length",
            (self.prompt_lengths < 0) | (self.prompt_lengths >= self.lengths),
            self.prompt_lengths,
            "0 to one less than the document's length",
        )
        last = self.token_ids[self.offsets[1:] - 1]
        _refuse_first("last token", last != self.eos_token_id, last, f"{self.eos_token_id} (stop)")
        masks = np.flatnonzero(self.token_ids == self.mask_token_id)
        if len(masks):
            raise UsageError(
                "documents token", self.mask_token_id, f"other ids at {masks[0]} (the mask token)"
            )

    @property
    def num_documents(self) -> int:
        """D."""
        return len(self.prompt_lengths)

    @property
    def lengths(self) -> IntArray:
        """Tokens of each document [D]."""
        return np.diff(self.offsets)

    @classmethod
    def from_pairs(
        cls,
        pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
        *,
        mask_token_id: int,
        eos_token_id: int,
    ) -> "TokenDocuments":
        """Documents of (prompt ids, reply ids); each reply ends with the stop token."""
        pieces: list[IdArray] = []
        prompt_lengths: list[int] = []
        lengths: list[int] = []
        for prompt, reply in pairs:
            pieces += [np.asarray(prompt, dtype=np.int32), np.asarray(reply, dtype=np.int32)]
            prompt_lengths.append(len(prompt))
            lengths.append(len(prompt) + len(reply))
        return cls(
            token_ids=np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            prompt_lengths=np.asarray(prompt_lengths, dtype=np.int64),
            mask_token_id=mask_token_id,
            eos_token_id=eos_token_id,
        )

    def head(self, count: int) -> "TokenDocuments":
        """The first `count` documents, or all if there are fewer."""
        count = min(count, self.num_documents)
        return TokenDocuments(
            token_ids=self.token_ids[: self.offsets[count]],
            offsets=self.offsets[: count + 1],
            prompt_lengths=self.prompt_lengths[:count],
            mask_token_id=self.mask_token_id,
            eos_token_id=self.eos_token_id,
        )

    def save(self, path: Path) -> None:
        """Write one .npz file (not compressed), with ids as uint16 where they fit."""
        small = self.token_ids.max(initial=0) < 1 << 16
        with path.open("wb") as file:
            np.savez(
                file,
                token_ids=self.token_ids.astype(np.uint16 if small else np.int32),
                offsets=self.offsets,
                prompt_lengths=self.prompt_lengths,
                special_ids=np.array([self.mask_token_id, self.eos_token_id]),
            )

    @classmethod
    def load(cls, path: Path) -> "TokenDocuments":
        """Read what `save` wrote; UsageError naming a file that is none."""
        try:
            # Opened here: numpy leaves a damaged file open.
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                mask_token_id, eos_token_id = (int(i) for i in file["special_ids"])
                return cls(
                    token_ids=file["token_ids"].astype(np.int32),
                    offsets=file["offsets"],
                    prompt_lengths=file["prompt_lengths"],
                    mask_token_id=mask_token_id,
                    eos_token_id=eos_token_id,
                )
        except UsageError:
            raise
        except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
            raise UsageError(
                "token file", str(path), f"an .npz of documents ({reason_of(error)})"
            ) from None


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentBlocks:
    """All documents cut into blocks of B tokens, the last one of each filled with stop tokens.

    `token_ids` and `roles` (PROMPT, REPLY, FILL) [blocks, B]; document d owns `num_blocks[d]`
    blocks from `first_block[d]` on and its reply starts in its block `first_decode_block[d]`.
    """

    token_ids: IdArray
    roles: RoleArray
    first_block: IntArray
    num_blocks: IntArray
    first_decode_block: IntArray

    @classmethod
    def cut(
        cls,
        documents: TokenDocuments,
        *,
        block_length: int,
        context_length: int,
        vocab_size: int,
    ) -> "DocumentBlocks":
        """Raises UsageError naming the first document longer than the context, or an alien id."""
        lengths = documents.lengths
        num_blocks = -(-lengths // block_length)
        _refuse_first(
            "length",
            num_blocks * block_length > context_length,
            lengths,
            f"at most {context_length} tokens (context_length)",
        )
        highest, lowest = int(documents.token_ids.max()), int(documents.token_ids.min())
        if lowest < 0 or highest >= vocab_size:
            alien = lowest if lowest < 0 else highest
            raise UsageError("documents token", alien, f"0 to {vocab_size - 1}")
        first_block = np.cumsum(num_blocks) - num_blocks
        # Per block, not per token: how many of its tokens belong to document and to prompt.
        start = np.arange(int(num_blocks.sum())) - np.repeat(first_block, num_blocks)
        start *= block_length
        offsets = np.arange(block_length)
        in_document = offsets < (np.repeat(lengths, num_blocks) - start)[:, None]
        in_prompt = offsets < (np.repeat(documents.prompt_lengths, num_blocks) - start)[:, None]
        token_ids = np.full(in_document.shape, documents.eos_token_id, dtype=np.int32)
        token_ids[in_document] = documents.token_ids  # in order: blocks keep the tokens' order
        roles = np.where(in_document, np.uint8(REPLY), np.uint8(FILL))
        roles[in_prompt] = PROMPT
        return cls(
            token_ids=token_ids,
            roles=roles,
            first_block=first_block,
            num_blocks=num_blocks,
            first_decode_block=documents.prompt_lengths // block_length,
        )

    @property
    def num_documents(self) -> int:
        """Documents."""
        return len(self.num_blocks)


def _refuse_first(
    what: str, bad: npt.NDArray[np.bool_], values: npt.NDArray[np.integer], allowed: str
) -> None:
    places = np.flatnonzero(bad)
    if len(places):
        raise UsageError(f"document {places[0]} {what}", int(values[places[0]]), allowed)
