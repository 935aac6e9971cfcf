"""Renders a model's own chat template in a sandbox, with the helpers Hugging Face templates expect.

Knows no token ids and no files.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from focus_bench.core.errors import UsageError

_END_OF_TURN = "<|end of the text that goes on|>"  # only while a template is rendered


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter of this name escapes HTML, which would change the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one side of a conversation said; `role` is "system", "user" or "assistant"."""

    role: str
    text: str


class ChatTemplate:
    """A compiled template.

    Parameters
    ----------
    source: the template's text, as in chat_template.jinja.
    special_tokens: names that the template may use (bos_token, eos_token, ...), with their text.

    Raises UsageError where the text is no template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise UsageError(
                "chat template", str(error), "a template that jinja2 can compile"
            ) from error

    def render(self, user_text: str) -> str:
        """The whole prompt for one user turn, up to where the assistant's reply begins.

        Raises UsageError where the template fails.
        """
        return self._rendered([{"role": "user", "content": user_text}], True, "one user turn")

    def render_turns(self, turns: Sequence[Turn]) -> str:
        """The whole prompt for several turns, up to where the assistant's reply begins or goes on.

        A last turn of the assistant is left open, so that its text is the reply's beginning.
        Raises UsageError where the template fails, as for roles that it does not know.
        """
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        if turns[-1].role != "assistant":
            return self._rendered(messages, True, "these turns")
        # What the template puts behind the last turn would close it.
        messages[-1]["content"] += _END_OF_TURN
        text, found, _ = self._rendered(messages, False, "these turns").rpartition(_END_OF_TURN)
        if not found:
            raise UsageError("chat template", turns[-1].text, "one that keeps the text of turns")
        return text

    def _rendered(self, messages: list[dict[str, str]], add_prompt: bool, wanted: str) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, AttributeError) as error:
            raise UsageError(
                "chat template", str(error), f"a template that takes {wanted}"
            ) from error
