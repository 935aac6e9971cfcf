"""Trains the bundled model's tokenizer on generated tasks and writes it in Hugging Face's layout.

The same version of the `tokenizers` library and the same tasks give the same files.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from focus_bench.workloads.hf_tokenizer import QWEN2_SPLIT
from focus_bench.workloads.tasks.generate import generate_many
from focus_bench.workloads.tasks.task import TRAIN

VOCAB_SIZE = 2048
PAD, MASK, EOS, USER, ASSISTANT = SPECIAL_TOKENS = (
    "<|pad|>",
    "<|mask|>",
    "<|eos|>",
    "<|user|>",
    "<|assistant|>",
)
CONTEXT_TOKENS = 1024
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<|assistant|>' + message['content'] + '<|eos|>' }}"
    "{% else %}{{ raise_exception('only user and assistant turns') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_CHUNK = 1000


def _texts(seed: int, tasks: int) -> Iterator[str]:
    for start in range(0, tasks, _CHUNK):
        for task in generate_many(TRAIN, seed, start, min(_CHUNK, tasks - start)):
            yield task.prompt
            yield task.reply


def train_tokenizer(
    *, seed: int = 0, tasks: int = 20_000, vocab_size: int = VOCAB_SIZE
) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` ids, special tokens included, which come first.

    Text is cut as Qwen2 cuts it, so every digit is a token of its own. `tasks` training tasks of
    `seed` are its text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[
            AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS
        ],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_texts(seed, tasks), trainer=trainer)
    return tokenizer


def build_tokenizer(
    folder: Path, *, seed: int = 0, tasks: int = 20_000, vocab_size: int = VOCAB_SIZE
) -> None:
    """Write tokenizer.json and tokenizer_config.json of `train_tokenizer` into `folder`."""
    tokenizer = train_tokenizer(seed=seed, tasks=tasks, vocab_size=vocab_size)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            str(token_id): {
                "content": token.content,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token_id, token in sorted(tokenizer.get_added_tokens_decoder().items())
        },
        "pad_token": PAD,
        "mask_token": MASK,
        "eos_token": EOS,
        "additional_special_tokens": [USER, ASSISTANT],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_TOKENS,
    }
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
