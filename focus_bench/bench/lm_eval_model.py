"""The engine as a model of lm-evaluation-harness: prompts in, texts out.

Knows no task and no score, and needs the harness itself only in `harness_class`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from focus_bench.bench.quality import Run, outputs_of
from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.records import RequestRecord, RunRecord
from focus_bench.core.workload import Provenance, RequestSpec, Workload
from focus_bench.workloads.chat_template import Turn
from focus_bench.workloads.tokenizers import Tokenizer

NO_LIKELIHOOD = (
    "tasks that generate text: a block-diffusion model decodes positions in an order of its own, "
    "so it gives no likelihood of a text from left to right"
)


class Instance(Protocol):
    """A request of the harness: a prompt, and how its reply is to be generated."""

    @property
    def args(self) -> tuple[str, Mapping[str, Any]]:
        """Both."""
        ...


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A prompt's reply, cut at its stop strings, and its request's record (None: not sent)."""

    text: str
    request: RequestRecord | None


class BlockDiffusionLM:
    """Answers the harness's requests with one run of the engine, batched as `point` says.

    `max_positions` is the model's context in tokens. A prompt that leaves no room for a reply is
    not sent and its reply is empty; one that leaves less than it may have gets what there is. Both
    are counted in `notes`. `run` decodes; `record` is its record and `replies` are its replies, in
    the order of the requests, once generate_until has been called.
    """

    def __init__(
        self,
        *,
        point: PointConfig,
        tokenizer: Tokenizer,
        max_positions: int,
        provenance: Provenance,
        run: Run,
    ) -> None:
        super().__init__()
        self._point = point
        self._tokenizer = tokenizer
        self._max_positions = max_positions
        self._provenance = provenance
        self._run = run
        self.record: RunRecord | None = None
        self.replies: tuple[Reply, ...] = ()
        self.notes: tuple[str, ...] = ()

    @property
    def tokenizer_name(self) -> str:
        """Names the chat template for the harness's request cache, which is not used."""
        return self._tokenizer.name

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The turns as a prompt. An assistant's turn at the end is the reply's beginning, without
        line ends: the model writes them itself, and MBPP's scorer cuts "```python" off such replies
        only (one that begins with "def" would lose that word).
        """
        turns = [Turn(role=turn["role"], text=turn["content"]) for turn in chat_history]
        text = self._tokenizer.chat_text(turns)
        if text is None:
            raise UsageError("tokenizer", self._tokenizer.name, "one with a chat template")
        return text if add_generation_prompt else text.rstrip()

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """The text of every request up to its first stop string, in order."""
        asked = [_Request.of(request, self._point) for request in requests]
        prompts = [self._tokenizer.encode(request.context) for request in asked]
        room = [self._room_for(len(ids)) for ids in prompts]
        sent = [
            number for number, tokens in enumerate(room) if tokens >= 1 and len(prompts[number])
        ]
        if not sent:
            raise UsageError(
                "prompts",
                f"{min(map(len, prompts), default=0)} tokens and more",
                f"some that leave room for a reply within {self._max_positions} positions "
                "(fewer worked examples: --num-fewshot)",
            )
        workload = Workload(
            requests=tuple(
                RequestSpec(
                    request_id=place,
                    prompt_ids=prompts[number],
                    max_new_tokens=min(asked[number].max_new_tokens, room[number]),
                )
                for place, number in enumerate(sent)
            ),
            provenance=self._provenance,
        )
        self.record = self._run(self._point, workload)
        self.notes = _notes(asked, room, sent, self._max_positions)
        records = {record.request_id: record for record in self.record.requests}
        outputs = outputs_of(self.record, len(sent))
        replies = [Reply(text="", request=None)] * len(asked)
        for place, number in enumerate(sent):
            text = cut_at(self._tokenizer.decode(outputs[place]), asked[number].until)
            replies[number] = Reply(text=text, request=records.get(place))
        self.replies = tuple(replies)
        return [reply.text for reply in self.replies]

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        """Refused."""
        raise UsageError("--tasks", "a task that asks for loglikelihood", NO_LIKELIHOOD)

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """Refused."""
        raise UsageError("--tasks", "a task that asks for loglikelihood_rolling", NO_LIKELIHOOD)

    def _room_for(self, prompt_tokens: int) -> int:
        """Most new tokens behind such a prompt: prompt and reply fill whole blocks."""
        block_length = self._point.decode.block_length
        return self._max_positions // block_length * block_length - prompt_tokens


def harness_class() -> type[BlockDiffusionLM]:
    """The same as a subclass of the harness's own model class, which its evaluation asks for."""
    from lm_eval.api.model import LM

    class HarnessLM(BlockDiffusionLM, LM):  # type: ignore[misc]
        """BlockDiffusionLM with what the harness adds: one process of one, no cache."""

    return HarnessLM


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What one instance of the harness asks for."""

    context: str
    until: tuple[str, ...]
    max_new_tokens: int

    @classmethod
    def of(cls, instance: Instance, point: PointConfig) -> "_Request":
        context, options = instance.args
        if options.get("do_sample") and float(options.get("temperature", 1.0)) > 0:
            raise UsageError(
                "--tasks", "a task that asks for sampling", "greedy tasks (--temperature samples)"
            )
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        limit = options.get("max_gen_toks", point.workload.max_new_tokens)
        return cls(
            context=context,
            until=tuple(stop for stop in stops if stop),
            max_new_tokens=min(int(limit), point.workload.max_new_tokens),
        )


def cut_at(text: str, until: Sequence[str]) -> str:
    """`text` in front of the first stop string in it."""
    places = [place for place in (text.find(stop) for stop in until) if place >= 0]
    return text[: min(places)] if places else text


def _notes(
    asked: Sequence[_Request], room: Sequence[int], sent: Sequence[int], max_positions: int
) -> tuple[str, ...]:
    """What the model's context took away."""
    notes = []
    if len(sent) < len(asked):
        notes.append(
            f"{len(asked) - len(sent)} of {len(asked)} prompts are longer than the model's context "
            f"of {max_positions} tokens and count as wrong"
        )
    short = [room[n] for n in sent if room[n] < asked[n].max_new_tokens]
    if short:
        notes.append(
            f"the model's context of {max_positions} tokens leaves {min(short)} to {max(short)} "
            f"new tokens for {len(short)} of {len(asked)} prompts"
        )
    return tuple(notes)
