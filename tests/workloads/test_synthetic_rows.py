"""Made-up prompts: their lengths against the quantiles, their tokens against the vocabulary."""

from itertools import islice

import numpy as np
import pytest

from focus_bench.workloads.synthetic import fixed_length_rows, sharegpt_shaped_rows
from focus_bench.workloads.tokenizers import ByteTokenizer

# Token lengths of ShareGPT first pairs as published with SDAR's tokenizer: p50, p90, p99, mean.
SHAREGPT_PROMPT = (24, 423, 2858, 187)
SHAREGPT_REPLY = (272, 623, 799, 309)


def summary(lengths: list[int]) -> list[float]:
    return [*(float(np.quantile(lengths, q)) for q in (0.5, 0.9, 0.99)), float(np.mean(lengths))]


def test_lengths_follow_sharegpt() -> None:
    rows = list(islice(sharegpt_shaped_rows(ByteTokenizer(), seed=5), 20_000))
    prompts = [len(row.prompt_ids) for row in rows if row.prompt_ids is not None]
    replies = [row.reply_tokens for row in rows if row.reply_tokens is not None]
    assert len(prompts) == len(replies) == 20_000
    assert summary(prompts) == pytest.approx(SHAREGPT_PROMPT, rel=0.12)
    assert summary(replies) == pytest.approx(SHAREGPT_REPLY, rel=0.05)
    assert min(prompts) >= 1
    assert min(replies) >= 1


def test_tokens_are_text_only_and_fill_the_vocabulary() -> None:
    rows = fixed_length_rows(ByteTokenizer(), seed=5, input_tokens=5000, output_tokens=9)
    row = next(rows)
    assert row.prompt_ids is not None
    assert row.prompt_ids.dtype == np.int32
    assert row.prompt_ids.shape == (5000,)
    assert set(row.prompt_ids.tolist()) == set(range(256))
    assert row.reply_tokens == 9
    second = next(rows)
    assert second.prompt_ids is not None
    assert (second.prompt_ids != row.prompt_ids).any()


def test_seed_decides() -> None:
    def draw(seed: int) -> list[list[int]]:
        rows = islice(sharegpt_shaped_rows(ByteTokenizer(), seed=seed), 5)
        return [row.prompt_ids.tolist() for row in rows if row.prompt_ids is not None]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
