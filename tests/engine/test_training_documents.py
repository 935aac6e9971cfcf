"""Token documents: what is refused, the file, and the cut into blocks."""

from pathlib import Path

import numpy as np
import pytest
from training_cases import EOS, MASK, documents

from focus_bench.core.errors import UsageError
from focus_bench.engine.training.documents import (
    FILL,
    PROMPT,
    REPLY,
    DocumentBlocks,
    TokenDocuments,
)


def pairs(*items: tuple[list[int], list[int]]) -> TokenDocuments:
    return TokenDocuments.from_pairs(items, mask_token_id=MASK, eos_token_id=EOS)


def cut(docs: TokenDocuments, context_length: int = 16) -> DocumentBlocks:
    return DocumentBlocks.cut(docs, block_length=4, context_length=context_length, vocab_size=64)


def test_blocks_are_filled_with_stop_tokens_and_know_prompt_reply_and_fill() -> None:
    blocks = cut(pairs(([5, 6, 7, 8, 9], [10, EOS]), ([], [11, 12, 13, EOS]), ([5], [EOS])))
    assert blocks.token_ids.tolist() == [
        [5, 6, 7, 8],
        [9, 10, EOS, EOS],
        [11, 12, 13, EOS],
        [5, EOS, EOS, EOS],
    ]
    p, r, f = PROMPT, REPLY, FILL
    assert blocks.roles.tolist() == [[p, p, p, p], [p, r, r, f], [r, r, r, r], [p, r, f, f]]
    assert blocks.first_block.tolist() == [0, 2, 3]
    assert blocks.num_blocks.tolist() == [2, 1, 1]
    assert blocks.first_decode_block.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "documents offsets"),
        ([([5], [EOS]), ([5, 6], [])], "document 1 prompt length: 2 .* one less"),
        ([([5], [EOS]), ([5, 6], [7])], r"document 1 last token: 7 .* 0 \(stop\)"),
        ([([5], [EOS]), ([5, MASK], [EOS])], "documents token: 1 .* other ids at 3"),
    ],
)
def test_documents_that_cannot_be_trained_on_are_refused_by_number(
    items: list[tuple[list[int], list[int]]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        pairs(*items)


def test_the_context_counts_whole_blocks_and_alien_ids_are_refused() -> None:
    fits = pairs(([], [9] * 15 + [EOS]))
    assert cut(fits).num_blocks.tolist() == [4]
    with pytest.raises(UsageError, match=r"document 1 length: 17 .* at most 16 tokens"):
        cut(pairs(([], [EOS]), ([], [9] * 16 + [EOS])))
    with pytest.raises(UsageError, match=r"documents token: 64 .* 0 to 63"):
        cut(pairs(([64], [EOS])))


def test_a_saved_file_gives_the_same_documents(tmp_path: Path) -> None:
    before = documents()
    path = tmp_path / "tokens.npz"
    before.save(path)
    after = TokenDocuments.load(path)
    for field in ("token_ids", "offsets", "prompt_lengths"):
        assert np.array_equal(getattr(before, field), getattr(after, field))
        assert getattr(before, field).dtype == getattr(after, field).dtype
    assert (after.mask_token_id, after.eos_token_id) == (MASK, EOS)


def test_the_first_documents_are_the_first() -> None:
    whole = pairs(([5, 6], [7, EOS]), ([], [8, EOS]), ([9], [EOS]))
    head = whole.head(2)
    assert head.token_ids.tolist() == [5, 6, 7, EOS, 8, EOS]
    assert head.prompt_lengths.tolist() == [2, 0]
    assert whole.head(9).token_ids.tolist() == whole.token_ids.tolist()


@pytest.mark.parametrize("damage", ["missing", "text", "cut", "other arrays"])
def test_a_file_that_is_none_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tokens.npz"
    documents().save(path)
    if damage == "missing":
        path.unlink()
    elif damage == "text":
        path.write_text("not tokens")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:500])
    else:
        np.savez(path, numbers=np.arange(3))
    with pytest.raises(UsageError, match=r"^token file: .*tokens\.npz"):
        TokenDocuments.load(path)
