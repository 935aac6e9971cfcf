"""The engine as a model of lm-evaluation-harness, and whole benchmarks with known answers."""

import dataclasses
import gzip
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import fake_record

from focus_bench.api import make_point
from focus_bench.bench.benchmarks import BENCHMARKS, OFFLINE, load_problems
from focus_bench.bench.lm_eval_model import BlockDiffusionLM
from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Provenance, Workload
from focus_bench.report.quality_results import QualityPlan, QualityResult
from focus_bench.workloads.chat_template import Turn
from focus_bench.workloads.tokenizers import ByteTokenizer

# The harness's packages raise warnings of their own while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness, and a network that nothing may reach for."""
    for name in OFFLINE:
        monkeypatch.setenv(name, "1")
    pytest.importorskip("lm_eval", reason="needs the extra [eval]")

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"reached for the network: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


class ChatBytes(ByteTokenizer):
    """Bytes with a chat form that can be written."""

    name = "chat bytes"

    def chat_text(self, turns: Sequence[Turn]) -> str | None:
        return "".join(f"[{turn.role}]{turn.text}" for turn in turns)


def text_of(workload: Workload, request: int) -> str:
    return ByteTokenizer().decode(workload.requests[request].prompt_ids)


def model_of(reply: Callable[[str], str], *, max_positions: int = 4096, max_new_tokens: int = 64):
    """The adapter over an engine that answers each prompt with `reply`, and what it was sent."""
    sent: list[Workload] = []

    def run(point: PointConfig, workload: Workload) -> RunRecord:
        sent.append(workload)
        return fake_record(workload, lambda i: reply(text_of(workload, i)))

    model = BlockDiffusionLM(
        point=make_point(policy="baseline", max_new_tokens=max_new_tokens),
        tokenizer=ChatBytes(),
        max_positions=max_positions,
        provenance=Provenance(dataset="gsm8k", origin="local file", tokenizer="chat bytes"),
        run=run,
    )
    return model, sent


def instance(context: str, **options: object) -> SimpleNamespace:
    return SimpleNamespace(args=(context, options))


def test_replies_end_before_their_first_stop_string() -> None:
    model, sent = model_of(lambda prompt: f"{prompt} one\n\ntwo Q: three")
    texts = model.generate_until(
        [
            instance("a", until=["Q:", "\n\n"]),
            instance("b", until="Q:"),
            instance("c", until=["", "never"]),
            instance("d"),
        ]
    )
    rest = "one\n\ntwo Q: three"
    assert texts == ["a one", "b one\n\ntwo ", f"c {rest}", f"d {rest}"]
    assert len(sent) == 1  # one run, so that the engine batches them


def test_new_tokens_are_the_least_of_what_is_asked_and_what_there_is_room_for() -> None:
    model, sent = model_of(lambda prompt: "x", max_positions=100, max_new_tokens=64)
    prompts = ["p" * 10, "p" * 10, "p" * 50, "p" * 95, "p" * 96, "p" * 200]
    options = [{"max_gen_toks": 5}, {}, {}, {}, {}, {}]
    requests = [instance(p, **o) for p, o in zip(prompts, options, strict=True)]
    texts = model.generate_until(requests)
    # Blocks of 32: 96 of the 100 positions can be filled.
    assert [r.max_new_tokens for r in sent[0].requests] == [5, 64, 46, 1]
    assert texts == ["x"] * 4 + [""] * 2
    assert "2 of 6 prompts are longer than the model's context" in model.notes[0]
    assert "leaves 1 to 46 new tokens for 2 of 6 prompts" in model.notes[1]
    assert [reply.request is None for reply in model.replies] == [False] * 4 + [True] * 2


def test_no_prompt_that_fits_is_an_error() -> None:
    model, _ = model_of(lambda prompt: "x", max_positions=64)
    with pytest.raises(UsageError, match=r"70 tokens.*--num-fewshot"):
        model.generate_until([instance("p" * 70), instance("p" * 80)])


def test_the_chat_template_renders_turns() -> None:
    model, _ = model_of(lambda prompt: "x")
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "```python\n"}]
    assert model.apply_chat_template(history, add_generation_prompt=False) == (
        "[user]hi[assistant]```python"
    )
    assert model.tokenizer_name == "chat bytes"


def test_likelihoods_and_sampling_tasks_are_refused_with_the_reason() -> None:
    model, _ = model_of(lambda prompt: "x")
    with pytest.raises(UsageError, match=r"loglikelihood.*block-diffusion"):
        model.loglikelihood([])
    with pytest.raises(UsageError, match=r"loglikelihood_rolling.*block-diffusion"):
        model.loglikelihood_rolling([])
    with pytest.raises(UsageError, match="greedy"):
        model.generate_until([instance("a", do_sample=True, temperature=0.2)])


def scored(
    name: str,
    rows: list[dict[str, object]],
    tmp_path: Path,
    reply: Callable[[str], str],
    *,
    chat: bool,
) -> tuple[QualityResult, list[float]]:
    """Result and marks of a benchmark of these rows, answered so."""
    from focus_bench.bench.lm_eval_run import evaluate_benchmark

    file = tmp_path / f"{name}.jsonl.gz"
    file.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    problems = load_problems(name, path=str(file), download=False, count=None, tokenizer="bytes")
    benchmark = BENCHMARKS[name]
    point = make_point(policy="baseline", max_new_tokens=512)
    plan = QualityPlan(
        point=dataclasses.replace(
            point, workload=dataclasses.replace(point.workload, dataset=name)
        ),
        scorer="lm-evaluation-harness",
        benchmark=benchmark.task(chat=chat, num_fewshot=0),
        metric="",
        chat=chat,
        num_runs=2,
    )
    evaluation = evaluate_benchmark(
        plan,
        problems,
        ChatBytes(),
        max_positions=8192,
        run=lambda point, given: fake_record(given, lambda i: reply(text_of(given, i))),
        hardware="cpu",
    )
    return evaluation.result, [answer.right for answer in evaluation.answers]


@pytest.mark.usefixtures("harness")
def test_gsm8k_scores_the_last_number(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"question": f"what is {i} + {i}?", "answer": f"{i} + {i} = {2 * i}\n#### {2 * i}"}
        for i in (3, 4, 500)
    ]
    replies = {"3": "So it is 6. The answer is 6.", "4": "It is 9.", "500": "That makes $1,000"}
    result, right = scored(
        "gsm8k",
        rows,
        tmp_path,
        lambda prompt: next(text for n, text in replies.items() if f"is {n} +" in prompt),
        chat=True,
    )
    assert right == [1.0, 0.0, 1.0]
    assert result.scores == (pytest.approx(2 / 3),) * 2
    assert result.num_problems == 3
    assert result.other_scores["exact_match,strict-match"] == pytest.approx(1 / 3)
    assert any("OpenCompass" in note for note in result.decoding.notes)


@pytest.mark.usefixtures("harness")
def test_math500_accepts_equal_expressions(tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="needs the extra [eval]")
    rows: list[dict[str, object]] = [
        {"problem": "half?", "solution": "It is $\\boxed{\\frac{1}{2}}$."},
        {"problem": "third?", "solution": "It is $\\boxed{\\frac{1}{3}}$."},
    ]
    _, right = scored("math500", rows, tmp_path, lambda prompt: "so $\\boxed{0.5}$", chat=True)
    assert right == [1.0, 0.0]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.usefixtures("harness")
def test_humaneval_runs_programs_in_the_sandbox(tmp_path: Path, chat: bool) -> None:
    rows: list[dict[str, object]] = [
        {
            "task_id": f"HumanEval/{name}",
            "prompt": f"def {name}(a, b):\n",
            "entry_point": name,
            "test": "def check(candidate):\n    assert candidate(2, 3) == 5",
        }
        for name in ("plus", "minus", "escape")
    ]
    bodies = {
        "plus": "    return a + b\n",
        "minus": "    return a - b\n",
        "escape": "    import socket; socket.socket(); return 5\n",
    }
    closing = "```\nas asked" if chat else "\nprint(1)"
    result, right = scored(
        "humaneval",
        rows,
        tmp_path,
        lambda prompt: next(b for n, b in bodies.items() if f"def {n}(" in prompt) + closing,
        chat=chat,
    )
    assert right == [1.0, 0.0, 0.0]
    said = "programs run in the sandbox: 2 passed, 2 failed, 2 network"  # over two runs
    assert said in result.decoding.notes


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.usefixtures("harness")
def test_mbpp_runs_programs_in_the_sandbox(tmp_path: Path, chat: bool) -> None:
    rows: list[dict[str, object]] = [
        {
            "task_id": 11 + i,
            "text": f"Write {name}.",
            "code": "",
            "test_list": [f"assert {name}(2, 3) == 5"] * 3,
        }
        for i, name in enumerate(("plus", "minus"))
    ]
    program = "\ndef plus(a, b): return a + b\ndef minus(a, b): return a - b"
    closing = "\n```\nas asked" if chat else "\n[DONE] and more"
    result, right = scored("mbpp", rows, tmp_path, lambda prompt: program + closing, chat=chat)
    assert right == [1.0, 0.0]
    assert result.ci95 is not None


@pytest.mark.usefixtures("harness")
def test_ifeval_is_the_mean_of_prompts_and_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nltk = pytest.importorskip("nltk", reason="needs the extra [eval]")
    pytest.importorskip("langdetect", reason="needs the extra [eval]")
    # These instructions need no sentence model; the harness only looks whether it is there.
    (tmp_path / "tokenizers" / "punkt_tab").mkdir(parents=True)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    rows: list[dict[str, object]] = [
        {
            "key": 1,
            "prompt": "say hello without commas",
            "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
            "kwargs": [{}, {"keywords": ["hello"]}],
        },
        {
            "key": 2,
            "prompt": "no commas here",
            "instruction_id_list": ["punctuation:no_comma"],
            "kwargs": [{}],
        },
    ]
    result, right = scored("ifeval", rows, tmp_path, lambda prompt: "good bye", chat=True)
    assert right == [0.0, 1.0]
    assert result.scores == (pytest.approx((1 / 2 + 2 / 3) / 2),) * 2
    assert result.ci95 is None
    assert result.other_scores["prompt_level_strict_acc,none"] == 0.5
