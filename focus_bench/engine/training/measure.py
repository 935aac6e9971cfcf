"""Step times of the ways to compute a step, and the choice of the fastest that is right."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from focus_bench.core.errors import UsageError
from focus_bench.core.model_spec import ModelSpec
from focus_bench.core.rng import generator
from focus_bench.engine.training.check import check_weights, engine_difference
from focus_bench.engine.training.checkpoint import new_state
from focus_bench.engine.training.documents import TokenDocuments
from focus_bench.engine.training.model import CPU_EXECUTION, Execution, Forward, build_model
from focus_bench.engine.training.recipe import TrainingRecipe
from focus_bench.engine.training.trainer import TRAIN, BatchSource, Trainer

# The engine in float32 against the forward pass of training: see engine_difference.
MAX_DIFFERENCE = {"float32": 1e-4, "bfloat16": 0.05}
CHECKED_CONTEXTS = 3
MEASURED_STEPS = 8
# Enough for every batch that is checked or timed; cutting all documents takes many seconds.
MEASURED_DOCUMENTS = 8192

GPU_EXECUTIONS = (
    Execution(attention="flex", is_compiled=True, dtype="bfloat16"),
    Execution(attention="sdpa", is_compiled=True, dtype="bfloat16"),
    Execution(attention="sdpa", is_compiled=False, dtype="bfloat16"),
)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Measured: `first_s` (the first two steps, compilation included), `step_s` (mean of the rest).

    `tokens_per_s`: of all tokens in the rows; `reply_tokens_per_s`: of noised reply tokens, fill
    tokens counted by their weight.
    """

    execution: Execution
    first_s: float
    step_s: float
    tokens_per_s: float
    reply_tokens_per_s: float


def measure_step_time(
    recipe: TrainingRecipe,
    device: torch.device,
    execution: Execution | None = None,
    documents: TokenDocuments | None = None,
) -> StepTime:
    """Time a few steps from random weights; `documents` None: random tokens, 60 to 400 a document.

    `execution` None: the device's first choice.
    """
    if execution is None:
        execution = GPU_EXECUTIONS[0] if device.type == "cuda" else CPU_EXECUTION
    if documents is None:
        documents = random_documents(recipe, count=2000)
    documents = documents.head(MEASURED_DOCUMENTS)
    return _measure(recipe, documents, Forward(recipe, _spec(recipe, documents), execution, device))


def choose_forward(
    recipe: TrainingRecipe,
    documents: TokenDocuments,
    device: torch.device,
    executions: Sequence[Execution],
    *,
    deadline_s: float = float("inf"),
    log: Callable[[str], None] = print,
) -> tuple[Forward, StepTime]:
    """Check every execution against the engine, time it, and return the fastest right one.

    An execution that fails (compilers do) is logged and left out; after `deadline_s` (of
    time.monotonic) no further one is tried if one works. UsageError where none does.
    """
    spec = _spec(recipe, documents)
    documents = documents.head(MEASURED_DOCUMENTS)
    best: tuple[Forward, StepTime] | None = None
    for execution in executions:
        if best is not None and time.monotonic() > deadline_s:
            log(f"{execution.label}: not tried, out of time")
            continue
        try:
            forward = Forward(recipe, spec, execution, device)
            difference = check_against_engine(recipe, documents, forward)
            measured = _measure(recipe, documents, forward)
        # Any failure of a compiler or kernel must cost this candidate only, not the run.
        except Exception as error:
            log(f"{execution.label}: failed: {type(error).__name__}: {str(error)[:300]}")
            continue
        log(
            f"{execution.label}: difference to the engine {difference:.2e}, first steps "
            f"{measured.first_s:.1f} s, then {1e3 * measured.step_s:.1f} ms a step, "
            f"{measured.tokens_per_s:,.0f} tokens/s ({measured.reply_tokens_per_s:,.0f} reply)"
        )
        if best is None or measured.step_s < best[1].step_s:
            best = forward, measured
    if best is None:
        labels = "; ".join(e.label for e in executions)
        raise UsageError("training execution", labels, "one that runs and equals the engine")
    return best


def check_against_engine(
    recipe: TrainingRecipe, documents: TokenDocuments, forward: Forward
) -> float:
    """Relative difference to the engine on the first batch; ArithmeticError if it is too large."""
    device = forward.device
    spec = _spec(recipe, documents)
    weights = check_weights(spec, seed=recipe.seed, device=device)
    reference = build_model(
        spec, {n: w.to(forward.dtype).float() for n, w in weights.items()}, torch.float32
    )
    rows, batch = BatchSource(recipe, documents, device, TRAIN).next()
    difference = engine_difference(
        forward, weights, reference, rows, batch, max_contexts=CHECKED_CONTEXTS
    )
    allowed = MAX_DIFFERENCE[forward.execution.dtype]
    if not difference <= allowed:
        raise ArithmeticError(f"differs from the engine by {difference:.3g}, allowed {allowed:g}")
    return difference


def random_documents(recipe: TrainingRecipe, *, count: int) -> TokenDocuments:
    """Random tokens with lengths like those of short tasks, for timing alone."""
    random = generator(recipe.seed, "random-documents")
    eos, mask = 0, 1
    pairs = []
    for _ in range(count):
        length = int(random.integers(60, 401))
        ids = random.integers(2, recipe.vocab_size, size=min(length, recipe.context_length))
        prompt = len(ids) // 3
        pairs.append((ids[:prompt].tolist(), [*ids[prompt:-1].tolist(), eos]))
    return TokenDocuments.from_pairs(pairs, mask_token_id=mask, eos_token_id=eos)


def _measure(recipe: TrainingRecipe, documents: TokenDocuments, forward: Forward) -> StepTime:
    device = forward.device
    state = new_state(recipe, _spec(recipe, documents), device)
    trainer = Trainer(recipe, state, documents, None, forward=forward)
    start = time.perf_counter()
    for _ in range(2):
        trainer.step()
    _synchronize(device)
    first_s = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(MEASURED_STEPS):
        trainer.step()
    _synchronize(device)
    step_s = (time.perf_counter() - start) / MEASURED_STEPS
    _, batch = BatchSource(recipe, documents, device, TRAIN).next()
    return StepTime(
        execution=forward.execution,
        first_s=first_s,
        step_s=step_s,
        tokens_per_s=recipe.tokens_per_step / step_s,
        reply_tokens_per_s=float(batch.normaliser) / step_s,
    )


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _spec(recipe: TrainingRecipe, documents: TokenDocuments) -> ModelSpec:
    return recipe.model_spec(
        mask_token_id=documents.mask_token_id, eos_token_id=documents.eos_token_id
    )
