"""The tokenizer trained on tasks, tasks as ids, and the test split as a data set."""

import re
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from focus_bench.core.config import WorkloadConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.workload import Workload
from focus_bench.workloads.loader import load_workload
from focus_bench.workloads.tasks.encode import encode_tasks
from focus_bench.workloads.tasks.generate import FAMILIES, check, generate_many
from focus_bench.workloads.tasks.task import TEST, TRAIN, Task
from focus_bench.workloads.tasks.tokenizer_build import SPECIAL_TOKENS, build_tokenizer
from focus_bench.workloads.tasks.workload import tasks_of_workload
from focus_bench.workloads.tokenizers import ByteTokenizer, Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer") / "new"
    build_tokenizer(folder, tasks=4_000)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


def test_the_same_tasks_give_the_same_files(folder: Path, tmp_path: Path) -> None:
    build_tokenizer(tmp_path, tasks=4_000)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_size_and_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.size == 2048
    assert tokenizer.special_token_ids == frozenset(range(len(SPECIAL_TOKENS)))
    ids = [int(tokenizer.encode(text)[0]) for text in SPECIAL_TOKENS]
    assert ids == [0, 1, 2, 3, 4]
    assert (tokenizer.mask_token_id, tokenizer.eos_token_id) == (1, 2)


def test_every_digit_is_one_token_and_always_the_same(tokenizer: Tokenizer) -> None:
    digit = {text: int(tokenizer.encode(text)[0]) for text in "0123456789"}
    for text in ("7", " 7", "1234567890", "12 + 99 = 111", "x=10\n20", "[3, 44]", "1. a\n2. b"):
        ids = tokenizer.encode(text).tolist()
        expected = [digit[letter] for letter in text if letter.isdigit()]
        assert [token for token in ids if token in digit.values()] == expected
        rest = [token for token in ids if token not in digit.values()]
        assert not any(letter.isdigit() for letter in tokenizer.decode(rest))


def test_words_of_the_tasks_are_one_token(tokenizer: Tokenizer) -> None:
    words: list[str] = []
    for task in generate_many(TRAIN, 9, 0, 300):
        for text in (task.prompt, task.reply):
            assert tokenizer.decode(tokenizer.encode(text)) == text
            words += re.findall(r" [A-Za-z]+", text)
    single = sum(len(ids) == 1 for ids in tokenizer.encode_batch(words))
    assert single / len(words) > 0.999


@pytest.mark.parametrize(
    "text", ["", "a  b\n\n  c", "The answer is 42.", "été 猫 🙂", "<|user|>x<|mask|>", "    x += 1"]
)
def test_ids_and_text_equal_transformers(
    tokenizer: Tokenizer, reference: PreTrainedTokenizerBase, text: str
) -> None:
    ids = tokenizer.encode(text).tolist()
    assert ids == reference(text, add_special_tokens=False)["input_ids"]
    assert ids == reference(text)["input_ids"]  # and so nothing is put before or after a text
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_facts_equal_transformers(tokenizer: Tokenizer, reference: PreTrainedTokenizerBase) -> None:
    assert len(reference) == tokenizer.size
    assert reference.mask_token_id == tokenizer.mask_token_id
    assert reference.eos_token_id == tokenizer.eos_token_id
    assert (reference.pad_token_id, reference.model_max_length) == (0, 1024)
    assert set(reference.all_special_ids) == set(tokenizer.special_token_ids)


def test_tasks_in_ids_are_the_chat_form_of_transformers(
    tokenizer: Tokenizer, reference: PreTrainedTokenizerBase
) -> None:
    tasks = generate_many(TRAIN, 2, 0, 40)
    encoded = encode_tasks(tokenizer, tasks)
    assert len(encoded) == 40
    assert encoded.ids.dtype == np.int16
    for index, task in enumerate(tasks):
        turns = [{"role": "user", "content": task.prompt}]
        prompt = reference.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert prompt == f"<|user|>{task.prompt}<|assistant|>"
        turns.append({"role": "assistant", "content": task.reply})
        whole = reference.apply_chat_template(turns, tokenize=False)
        assert whole == f"{prompt}{task.reply}<|eos|>"
        ids = encoded.of(index)
        assert ids.tolist() == reference(whole)["input_ids"]
        length = encoded.prompt_lengths[index]
        assert ids[:length].tolist() == reference(prompt)["input_ids"]


def test_no_tasks_and_other_vocabularies_encode(tokenizer: Tokenizer) -> None:
    nothing = encode_tasks(tokenizer, [])
    assert (len(nothing), nothing.ids.shape, nothing.starts.tolist()) == (0, (0,), [0])
    task = Task(family="grammar", prompt="hi", reply="é", answer="")
    encoded = encode_tasks(ByteTokenizer(), [task, task])
    assert encoded.of(1).tolist() == [258, *b"hi", 259, *"é".encode(), 257]
    assert encoded.prompt_lengths.tolist() == [4, 4]


def test_lengths_fit_the_context(tokenizer: Tokenizer) -> None:
    for family in FAMILIES:
        encoded = encode_tasks(tokenizer, generate_many(TRAIN, 1, 0, 500, mix=family))
        prompts = encoded.prompt_lengths
        replies = np.diff(encoded.starts) - prompts
        assert prompts.max() <= 128
        assert replies.max() <= 320
        assert 15 <= prompts.mean() <= 120
        assert 30 <= replies.mean() <= 160


def bundled(tokenizer: Tokenizer, dataset: str, count: int, max_positions: int = 1024) -> Workload:
    return load_workload(
        WorkloadConfig(dataset=dataset, num_prompts=count, max_new_tokens=64),
        tokenizer=tokenizer,
        seed=11,
        block_length=32,
        max_positions=max_positions,
    )


@pytest.mark.parametrize("dataset", ["focus-tasks", "focus-tasks-problems"])
def test_the_data_set_is_the_test_split(tokenizer: Tokenizer, dataset: str) -> None:
    workload = bundled(tokenizer, dataset, 150)
    found = tasks_of_workload(workload, tokenizer=tokenizer, seed=11)
    family = dataset.removeprefix("focus-tasks-")
    mix = {"mix": family} if family in FAMILIES else {}
    assert list(found) == generate_many(TEST, 11, 0, 150, **mix)
    for request, task in zip(workload.requests, found, strict=True):
        assert request.prompt_ids.tolist() == tokenizer.chat_prompt(task.prompt)[0].tolist()
        assert request.reply_tokens == min(64, len(tokenizer.encode(task.reply)))
    assert workload.provenance.origin == "bundled tasks"
    assert workload.provenance.dataset == dataset
    assert workload.provenance.synthetic


def test_tasks_that_are_too_long_are_counted_and_passed_over(tokenizer: Tokenizer) -> None:
    workload = bundled(tokenizer, "focus-tasks-problems", 40, max_positions=128)
    dropped = workload.provenance.dropped["prompt too long"]
    assert dropped > 0
    found = tasks_of_workload(workload, tokenizer=tokenizer, seed=11)
    everything = generate_many(TEST, 11, 0, 40 + dropped, mix="problems")
    assert list(found) == [
        task for task in everything if len(tokenizer.chat_prompt(task.prompt)[0]) <= 64
    ]
    assert all(check(task, task.reply) for task in found)


def test_tasks_of_another_workload_are_refused(tokenizer: Tokenizer) -> None:
    workload = bundled(tokenizer, "focus-tasks-problems", 2)
    with pytest.raises(UsageError, match="tokenizer and seed"):
        tasks_of_workload(workload, tokenizer=tokenizer, seed=12)
    config = WorkloadConfig(dataset="random", num_prompts=1, random_input_len=5)
    other = load_workload(config, tokenizer=tokenizer, seed=0, block_length=32, max_positions=1024)
    with pytest.raises(UsageError, match="focus-tasks"):
        tasks_of_workload(other, tokenizer=tokenizer, seed=0)


def test_a_tokenizer_without_end_token_is_refused() -> None:
    class Endless(ByteTokenizer):
        eos_token_id = None

    with pytest.raises(UsageError, match="eos_token"):
        encode_tasks(Endless(), [])
