"""Tasks as token ids for training: prompt and reply in chat form, closed by the end token.

Knows no tokenizer of its own and no batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focus_bench.core.errors import UsageError
from focus_bench.workloads.tasks.task import Task
from focus_bench.workloads.tokenizers import Tokenizer

_INT16_IDS = 1 << 15


@dataclass(frozen=True, kw_only=True)
class EncodedTasks:
    """Token ids of n tasks, one behind the other.

    `ids`: shape [tokens], int16 where the vocabulary allows it, else int32. `starts`: shape
    [n + 1], int64; task i is ids[starts[i] : starts[i + 1]]. `prompt_lengths`: shape [n], int32;
    so many ids of task i are its prompt, up to where the reply begins.
    """

    ids: npt.NDArray[np.int16] | npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    prompt_lengths: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def of(self, index: int) -> npt.NDArray[np.int16] | npt.NDArray[np.int32]:
        """The ids of one task, shape [tokens]."""
        return self.ids[self.starts[index] : self.starts[index + 1]]


def encode_tasks(tokenizer: Tokenizer, tasks: Sequence[Task]) -> EncodedTasks:
    """``<|user|>prompt<|assistant|>reply<|eos|>`` of every task, in order.

    Raises UsageError where the tokenizer has no end token.
    """
    eos = tokenizer.eos_token_id
    if eos is None:
        raise UsageError("--tokenizer", tokenizer.name, "a tokenizer with an eos_token")
    prompts = tokenizer.chat_prompts([task.prompt for task in tasks])
    replies = tokenizer.encode_batch([task.reply for task in tasks])
    end = np.array([eos], dtype=np.int32)
    pieces = [piece for pair in zip(prompts, replies, strict=True) for piece in (*pair, end)]
    ids = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)
    lengths = [len(p) + len(r) + 1 for p, r in zip(prompts, replies, strict=True)]
    return EncodedTasks(
        ids=ids.astype(np.int16) if tokenizer.size <= _INT16_IDS else ids,
        starts=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        prompt_lengths=np.fromiter((len(p) for p in prompts), dtype=np.int32, count=len(prompts)),
    )
