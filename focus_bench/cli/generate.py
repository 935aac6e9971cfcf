"""focus-bench generate: completes one prompt and shows its blocks filling in."""

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Annotated as A

import typer

from focus_bench.bench.quality import BUNDLED_MAX_NEW_TOKENS
from focus_bench.cli.flags import DECODING, OUTPUT, SAMPLING, flag, real, switch, takes, whole
from focus_bench.cli.options import DeviceFlags, SamplingFlags
from focus_bench.core.config import POLICY_NAMES

if TYPE_CHECKING:
    from rich.live import Live

    from focus_bench.report.blockview import BlockView
    from focus_bench.scheduling.plan import Outcome, Plan
    from focus_bench.workloads.tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class GenerateFlags(DeviceFlags, SamplingFlags):
    """The flags of generate."""

    prompt: A[
        str | None,
        typer.Option(
            help="The text to complete.", show_default="a bundled word problem, drawn by --seed"
        ),
    ] = None
    policy: A[str, flag(DECODING, f"One of {', '.join(POLICY_NAMES)}.")] = "focus"
    max_new_tokens: A[int, whole(SAMPLING, "Most output tokens.")] = BUNDLED_MAX_NEW_TOKENS
    block_length: A[
        int | None,
        whole(DECODING, "Block length B in tokens.", shown="the checkpoint's, else 32"),
    ] = None
    alpha: A[float, real(DECODING, "Expansion factor of the budget (paper Eq. 4).")] = 1.5
    threshold: A[float, real(DECODING, "Confidence from which a token is decoded.")] = 0.9
    raw: A[bool, switch("--raw", OUTPUT, "Send the prompt without the chat template.")] = False
    stream: A[
        bool, flag(OUTPUT, "Show the block filling in; --no-stream prints the text only.")
    ] = True
    frame_s: A[float, real(OUTPUT, "Seconds for which a terminal shows each step, at least.")] = (
        0.05
    )


@takes(GenerateFlags)
def command(flags: GenerateFlags) -> int:
    """Complete one prompt, position by position."""
    import sys
    import time

    from rich.live import Live
    from rich.text import Text

    from focus_bench.api.engine import Engine
    from focus_bench.core.errors import check_range
    from focus_bench.report.console import is_live, make_console
    from focus_bench.workloads.tasks.generate import SCORED_FAMILIES, generate_many
    from focus_bench.workloads.tasks.task import TEST

    check_range("--frame-s", flags.frame_s, low=0.0, high=60.0)
    engine = Engine(
        flags.model,
        load_format=flags.load_format,
        device=flags.device,
        dtype=flags.dtype,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        mask_token_id=flags.mask_token_id,
        threads=flags.threads,
        cuda_graphs=flags.cuda_graphs,
        tokenizer=flags.tokenizer,
        seed=flags.seed,
    )
    console = make_console()
    live = None
    if flags.stream and is_live(console):
        live = Live(console=console, auto_refresh=False)

    def on_step(plan: "Plan", outcome: "Outcome") -> None:
        view = block_view_of(plan, outcome, engine.tokenizer)
        if view is None:
            return
        if live is None:
            console.print(view)
        else:
            _show(view, live)
            time.sleep(flags.frame_s)

    prompt = flags.prompt
    if prompt is None:
        (task,) = generate_many(TEST, flags.seed, 0, 1, mix=SCORED_FAMILIES[0])
        prompt = task.prompt
        console.print(Text(f"prompt: {prompt}"), soft_wrap=True)
    with live if live is not None else contextlib.nullcontext():
        (completion,) = engine.generate(
            prompt,
            policy=flags.policy,
            max_new_tokens=flags.max_new_tokens,
            block_length=flags.block_length,
            alpha=flags.alpha,
            threshold=flags.threshold,
            temperature=flags.temperature,
            top_k=flags.top_k,
            top_p=flags.top_p,
            acceptance=flags.acceptance,
            importance=flags.importance,
            chat=not flags.raw,
            on_step=on_step if flags.stream else None,
        )
    console.print(Text(completion.text), soft_wrap=True)
    messages = make_console(sys.stderr)
    summary = f"{len(completion.token_ids)} tokens on {engine.hardware}"
    messages.print(
        f"({'; '.join((summary, completion.finish_reason, *completion.notes))})", soft_wrap=True
    )
    if engine.has_dummy_weights:
        messages.print("The weights are random, so the text means nothing.")
    return 0


def _show(view: "BlockView", live: "Live") -> None:
    """Redraw the block in place; a full one stays above, and the next goes on below it."""
    from rich.text import Text

    from focus_bench.report.blockview import CellState

    masks = (CellState.MASKED, CellState.EVICTED)
    if not any(state in masks for state in view.states):
        live.console.print(view)
        live.update(Text(), refresh=True)
    else:
        live.update(view, refresh=True)


def block_view_of(plan: "Plan", outcome: "Outcome", tokenizer: "Tokenizer") -> "BlockView | None":
    """The first row's block after a step; None where nothing was to be decoded."""
    from focus_bench.report.blockview import block_view

    if not len(plan.rows) or bool(plan.feed.commit[0]):
        return None
    block = plan.block
    now = outcome.decoded[0]
    tokens = [
        int(new if is_new else old)
        for new, old, is_new in zip(outcome.tokens[0], block.tokens[0], now, strict=True)
    ]
    return block_view(
        [tokenizer.decode([token], skip_special=False) for token in tokens],
        start=int(block.block_start[0]),
        step=int(block.block_steps[0]) + 1,
        decoded_before=block.decoded[0],
        fed=plan.feed.positions[0],
        kept=outcome.kept[0],
        decoded_now=now,
    )
