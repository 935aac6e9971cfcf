"""Renders a model's own chat template in a sandbox, with the helpers Hugging Face templates expect.

Knows no token ids and no files.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from focus_bench.core.errors import UsageError


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


class ChatTemplate:
    """A compiled template for one user turn.

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
        try:
            return self._template.render(
                messages=[{"role": "user", "content": user_text}],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, AttributeError) as error:
            raise UsageError(
                "chat template", str(error), "a template that takes one user turn"
            ) from error
