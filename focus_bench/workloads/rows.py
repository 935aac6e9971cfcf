"""One row of a data set after its format is gone: a prompt, maybe a reply, or why it is left out.

Knows neither files nor tokenizers.
"""

from dataclasses import dataclass

from focus_bench.core.workload import TokenArray

BAD_ROW = "bad row"
BLANK_PROMPT = "blank prompt"
CUT_OFF = "cut off by the end of the file"
EMPTY_REPLY = "empty reply"
MASK_IN_PROMPT = "mask token in prompt"
NO_CONVERSATION = "no conversation"
NO_HUMAN_TURN = "no human turn"
NO_REPLY = "no reply"
TOO_LONG = "prompt too long"
UNKNOWN_TOKEN = "token id unknown to the tokenizer"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A usable row: text, or token ids where the source has those.

    `prompt_ids` (shape [tokens]) goes before `prompt`, `reply_tokens` (a length) before `reply`;
    both are None where there is no reply.
    """

    prompt: str = ""
    prompt_ids: TokenArray | None = None
    reply: str | None = None
    reply_tokens: int | None = None


@dataclass(frozen=True)
class Lost:
    """A row that gives no request, with the reason that reports count it under."""

    reason: str


def text_row(prompt: object, reply: object = None) -> Row | Lost:
    """A row of texts; lost where the prompt is blank or either is no text."""
    if not isinstance(prompt, str) or not (reply is None or isinstance(reply, str)):
        return Lost(BAD_ROW)
    if not prompt.strip():
        return Lost(BLANK_PROMPT)
    return Row(prompt=prompt, reply=reply)
