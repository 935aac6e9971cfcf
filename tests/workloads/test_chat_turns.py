"""Several turns through a chat template, and a reply that has begun, against transformers."""

import json
from pathlib import Path

import pytest

from focus_bench.core.errors import UsageError
from focus_bench.workloads.chat_template import ChatTemplate, Turn
from focus_bench.workloads.tokenizers import ByteTokenizer, load_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = [
    Turn(role="system", text="Be brief."),
    Turn(role="user", text="2 + 2?"),
    Turn(role="assistant", text="4"),
    Turn(role="user", text="and 3?"),
]


def test_a_user_turn_at_the_end_asks_for_a_reply() -> None:
    template = ChatTemplate(CHATML, {})
    assert template.render_turns(TURNS[1:2]) == template.render("2 + 2?")
    assert template.render_turns(TURNS).endswith(
        "<|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\nand 3?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("begun", ["```python\n", " so", "|im_end|", ""])
def test_an_assistant_turn_at_the_end_stays_open(begun: str) -> None:
    turns = [*TURNS, Turn(role="assistant", text=begun)]
    assert ChatTemplate(CHATML, {}).render_turns(turns) == (
        ChatTemplate(CHATML, {}).render_turns(TURNS) + begun
    )


def test_templates_that_refuse_or_drop_a_turn_are_named() -> None:
    refusing = "{% for m in messages %}{{ raise_exception('no ' + m.role) }}{% endfor %}"
    with pytest.raises(UsageError, match="no system"):
        ChatTemplate(refusing, {}).render_turns(TURNS)
    with pytest.raises(UsageError, match="keeps the text"):
        ChatTemplate("nothing", {}).render_turns([Turn(role="assistant", text="4")])


def test_markers_without_a_spelling_are_no_text() -> None:
    assert ByteTokenizer().chat_text(TURNS) is None


def test_real_template_equals_transformers(shared_dir: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = shared_dir / "data" / "sdar_tokenizer"
    if "chat_template" not in json.loads((folder / "tokenizer_config.json").read_text()):
        pytest.skip("this tokenizer has no chat template")
    theirs = transformers.Qwen2Tokenizer.from_pretrained(folder)
    ours = load_tokenizer(str(folder))
    for turns in (TURNS, [*TURNS, Turn(role="assistant", text="It is")]):
        goes_on = turns[-1].role == "assistant"
        expected = theirs.apply_chat_template(
            [{"role": turn.role, "content": turn.text} for turn in turns],
            tokenize=False,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
        )
        assert ours.chat_text(turns) == expected
