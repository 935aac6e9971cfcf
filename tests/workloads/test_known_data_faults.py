"""Faults that tools of this kind have had with data, each with the right behaviour.

The numbers are those of the project's list of known faults; case 7 is in test_answers.py.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from focus_bench.core.config import WorkloadConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.workload import Workload
from focus_bench.workloads.loader import load_workload
from focus_bench.workloads.tokenizers import ByteTokenizer

REPOSITORY = Path(__file__).resolve().parents[2]


def load(path: Path, dataset: str = "sharegpt", **config: object) -> Workload:
    return load_workload(
        WorkloadConfig(dataset=dataset, dataset_path=str(path), **config),  # type: ignore[arg-type]
        tokenizer=ByteTokenizer(),
        seed=0,
        block_length=32,
        max_positions=4096,
    )


def talk(prompt: str, reply: str) -> dict[str, object]:
    turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": reply}]
    return {"id": "x", "conversations": turns}


def prompts(workload: Workload) -> list[str]:
    return [ByteTokenizer().decode(request.prompt_ids) for request in workload.requests]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.json"


@pytest.mark.parametrize("blank", ["", " ", "\n\t\u3000"])
def test_fault_01_blank_human_text(path: Path, blank: str) -> None:
    path.write_text(json.dumps([talk("one", "r"), talk(blank, "r"), talk("two", "r")]))
    workload = load(path, num_prompts=2)
    assert prompts(workload) == ["one", "two"]
    assert workload.provenance.dropped == {"blank prompt": 1}
    assert all(request.num_prompt_tokens > 0 for request in workload.requests)


def test_fault_02_every_row_filtered_out(path: Path) -> None:
    rows = [talk(f"p{n}", "") for n in range(12)] + [{"id": "y", "conversations": []}]
    path.write_text(json.dumps(rows))
    with pytest.raises(UsageError) as caught:
        load(path, num_prompts=10)
    assert str(caught.value) == (
        f"--dataset: 'sharegpt' is not usable; allowed: data with at least one usable row; {path}"
        " has none (13 rows read, left out: 12 empty reply, 1 no conversation)"
    )


def test_fault_02_more_prompts_than_exist(path: Path) -> None:
    path.write_text(json.dumps([talk("a", "r"), talk("", "r"), talk("b", "r")]))
    with pytest.raises(UsageError) as caught:
        load(path, num_prompts=10)
    assert str(caught.value) == (
        f"--num-prompts: 10 is not usable; allowed: 1 to 2, all that {path} has"
        " (3 rows read, left out: 1 blank prompt), or --repeat"
    )
    repeated = load(path, num_prompts=5, repeat=True)
    assert prompts(repeated) == ["a", "b", "a", "b", "a"]
    assert "5 prompts repeat the 2 usable rows" in repeated.provenance.notes


def test_fault_03_file_cut_inside_a_string(path: Path) -> None:
    rows = [talk(f"p{n}", "reply " * 10) for n in range(5)]
    text = json.dumps(rows, indent=2)
    path.write_text(text[: text.rindex("reply")])
    workload = load(path, num_prompts=4)
    assert prompts(workload) == ["p0", "p1", "p2", "p3"]
    assert not workload.provenance.truncated  # enough rows were there before the cut
    with pytest.raises(UsageError, match="1 cut off by the end of the file"):
        load(path, num_prompts=5)
    shuffled = load(path, num_prompts=4, shuffle=True).provenance
    assert shuffled.truncated
    assert "the data file ends inside a row" in shuffled.notes[0]
    repeated = load(path, num_prompts=5, repeat=True).provenance
    assert repeated.truncated
    assert repeated.dropped == {"cut off by the end of the file": 1}
    assert repeated.rows_read == 5


def test_fault_03_row_without_its_key_and_blank_lines(path: Path) -> None:
    rows = ['{"prompt": "a"}', "", "   ", '{"other": "x"}', '{"prompt": broken}', '{"prompt": "b"}']
    path.write_text("\n".join(rows) + "\n\n")
    workload = load(path, dataset="jsonl", num_prompts=2)
    assert prompts(workload) == ["a", "b"]
    assert workload.provenance.dropped == {"bad row": 2}
    assert workload.provenance.rows_read == 4


def test_fault_04_texts_of_the_world_in_the_c_locale(path: Path) -> None:
    texts = ["Привет, мир", "こんにちは世界", "\U0001f980 краб"]
    body = json.dumps([talk(text, text) for text in texts], ensure_ascii=False).encode()
    latin = json.dumps([talk("caf#", "r")]).encode().replace(b"#", b"\xe9")
    path.write_bytes(b"\xef\xbb\xbf" + body[:-1] + b"," + latin[1:])
    code = (
        "import sys, json\n"
        "from focus_bench.core.config import WorkloadConfig\n"
        "from focus_bench.workloads.loader import load_workload\n"
        "from focus_bench.workloads.tokenizers import ByteTokenizer\n"
        "w = load_workload(WorkloadConfig(dataset_path=sys.argv[1], num_prompts=4),\n"
        "    tokenizer=ByteTokenizer(), seed=0, block_length=4, max_positions=4096)\n"
        "texts = [ByteTokenizer().decode(r.prompt_ids) for r in w.requests]\n"
        "print(json.dumps([texts, w.provenance.notes, sys.flags.utf8_mode]))\n"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=True,
    )
    read, notes, utf8_mode = json.loads(result.stdout)
    assert utf8_mode == 0
    assert read == [*texts, "caf\ufffd"]
    assert notes == ["1 broken characters in what was read became U+FFFD"]


def test_fault_05_tokenizer_without_a_chat_template(path: Path) -> None:
    class RawTokenizer(ByteTokenizer):
        name = "raw"
        has_chat_template = False

        def chat_prompts(self, user_texts: object) -> list:  # type: ignore[type-arg]
            return self.encode_batch(user_texts)  # type: ignore[arg-type]

    path.write_text(json.dumps([talk("hi", "r")]))
    workload = load_workload(
        WorkloadConfig(dataset_path=str(path), num_prompts=1),
        tokenizer=RawTokenizer(),
        seed=0,
        block_length=4,
        max_positions=4096,
    )
    assert workload.requests[0].prompt_ids.tolist() == [104, 105]
    assert workload.provenance.notes == ("tokenizer raw has no chat template: raw text is sent",)


def test_fault_05_folder_gzip_json_and_jsonl(tmp_path: Path) -> None:
    rows = [talk(f"p{n}", "r") for n in range(3)]
    lines = "\n".join(json.dumps(row) for row in rows)
    variants = {
        "array.json": json.dumps(rows).encode(),
        "pretty.json": json.dumps(rows, indent=4).encode(),
        "lines.jsonl": lines.encode(),
        "lines.json": lines.encode(),
        "zipped.json.gz": gzip.compress(json.dumps(rows).encode()),
        "zipped.jsonl.gz": gzip.compress(lines.encode()),
    }
    for name, data in variants.items():
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_bytes(data)
        for where in (folder, folder / name):
            assert prompts(load(where, num_prompts=3)) == ["p0", "p1", "p2"]


def test_fault_06_replies_of_length_zero(path: Path) -> None:
    path.write_text(json.dumps([talk("a", ""), talk("b", "r"), talk("c", " ")]))
    workload = load(path, num_prompts=2)
    assert prompts(workload) == ["b", "c"]
    assert [request.reply_tokens for request in workload.requests] == [1, 1]
    assert workload.provenance.dropped == {"empty reply": 1}


@pytest.mark.parametrize("count", [0, -1])
def test_fault_06_max_new_tokens_below_one(count: int) -> None:
    with pytest.raises(UsageError, match=f"--max-new-tokens: {count} is not usable; allowed: >= 1"):
        WorkloadConfig(max_new_tokens=count)


@pytest.mark.parametrize(("block_length", "longest"), [(4, 4091), (32, 4091), (64, 4091)])
def test_fault_08_prompt_as_long_as_the_model_allows(
    path: Path, block_length: int, longest: int
) -> None:
    rows = [{"input_tok_ids": [1] * tokens} for tokens in (4096, 4095, longest + 1, longest)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    workload = load_workload(
        WorkloadConfig(dataset="jsonl", dataset_path=str(path), num_prompts=1, max_new_tokens=5),
        tokenizer=ByteTokenizer(),
        seed=0,
        block_length=block_length,
        max_positions=4096,
    )
    assert workload.requests[0].num_prompt_tokens == longest
    assert workload.provenance.dropped == {"prompt too long": 3}


def test_fault_18_data_need_neither_gpu_nor_torch(path: Path) -> None:
    path.write_text(json.dumps([talk("a", "r")]))
    code = (
        "import sys\n"
        "from focus_bench.core.config import WorkloadConfig\n"
        "from focus_bench.workloads.loader import load_workload\n"
        "from focus_bench.workloads.tokenizers import load_tokenizer\n"
        "import focus_bench.workloads.hf_tokenizer\n"
        "load_workload(WorkloadConfig(dataset_path=sys.argv[1], num_prompts=1),\n"
        "    tokenizer=load_tokenizer(''), seed=0, block_length=4, max_positions=4096)\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'huggingface_hub', 'simpy', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert result.stdout.strip() == "[]"


def test_a_file_named_gz_that_is_no_gzip_is_named(tmp_path: Path) -> None:
    for content in (json.dumps([talk("a", "b")]).encode(), b"\x00\x8b\x08", b""):
        data = tmp_path / "data.json.gz"
        data.write_bytes(content)
        with pytest.raises(UsageError, match=r"--dataset-path: .*data.json.gz \(not a gzip file\)"):
            load(data)


def test_output_that_leaves_no_room_is_blamed_on_its_flag(tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps([talk("a" * 40, "b"), talk("a" * 10, "b")]))
    with pytest.raises(UsageError) as caught:
        load(data, num_prompts=1, max_new_tokens=100_000_000)
    assert (caught.value.field, caught.value.value) == ("--max-new-tokens", 100_000_000)
    assert caught.value.allowed.startswith("1 to 4084, ")
    assert "2 prompt too long" in caught.value.allowed
    assert len(load(data, num_prompts=1, max_new_tokens=4084).requests) == 1
    data.write_text(json.dumps([talk("a" * 5000, "b")]))
    with pytest.raises(UsageError, match="--dataset: "):
        load(data, num_prompts=1, max_new_tokens=1)
