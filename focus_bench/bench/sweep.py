"""A sweep: the points that comma lists span, run one after the other, each kept as it ends.

Takes what runs a point and what keeps it as callables; knows no engine, simulator or file format.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from focus_bench.bench.defaults import (
    acceptance_for,
    default_block_length,
    importance_for,
    resolved_engine,
)
from focus_bench.core.config import PointConfig
from focus_bench.core.errors import UsageError
from focus_bench.core.model_folder import resolve_model
from focus_bench.decoding.policies import EvictionKind, check_suits_model, get_policy


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Values of each axis, in the user's order; no axis may be empty.

    `block_lengths` empty: each model's own. `acceptance` and `importance`: the flags' texts, None
    for the defaults, which depend on model and data set, and on whether the points are
    `simulated`.
    """

    models: tuple[str, ...]
    datasets: tuple[str, ...]
    block_lengths: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...]
    alphas: tuple[float, ...]
    thresholds: tuple[float, ...]
    strategies: tuple[str, ...]
    policies: tuple[str, ...]
    acceptance: str | None = None
    importance: str | None = None
    simulated: bool = False


def expand(axes: Axes, base: PointConfig) -> tuple[PointConfig, ...]:
    """The points that `axes` span around `base`, which gives everything that is no axis.

    Order: model, data set, block length, batch size, strategy, threshold, alpha, policy, the last
    changing fastest, so that a model is loaded once and policies stand side by side. A value that
    a point does not read (alpha without a budget, the threshold where confidences decide nothing)
    is the first of its list, and points that come out equal are kept once. Raises UsageError for
    values and combinations that are not allowed, and for unknown models.
    """
    points: dict[str, PointConfig] = {}
    for model, dataset in itertools.product(axes.models, axes.datasets):
        engine = resolved_engine(dataclasses.replace(base.engine, model=model))
        spec = resolve_model(engine)
        acceptance = acceptance_for(
            axes.acceptance,
            engine=engine,
            family=spec.family,
            dataset=dataset,
            simulated=axes.simulated,
        )
        importance = importance_for(
            axes.importance, engine=engine, acceptance=acceptance, simulated=axes.simulated
        )
        shared = dataclasses.replace(
            base,
            engine=engine,
            acceptance=acceptance,
            importance=importance,
            workload=dataclasses.replace(base.workload, dataset=dataset),
        )
        for block_length, batch_size, strategy, threshold, alpha, policy in itertools.product(
            axes.block_lengths or (default_block_length(spec),),
            axes.batch_sizes,
            axes.strategies,
            axes.thresholds,
            axes.alphas,
            axes.policies,
        ):
            reads_threshold = (
                acceptance.kind == "confidence" and strategy == "low_confidence_dynamic"
            )
            point = dataclasses.replace(
                shared,
                decode=dataclasses.replace(
                    base.decode,
                    policy=policy,
                    block_length=block_length,
                    alpha=alpha if _reads_alpha(policy) else axes.alphas[0],
                    threshold=threshold if reads_threshold else axes.thresholds[0],
                    unmasking_strategy=strategy,
                ),
                scheduler=dataclasses.replace(base.scheduler, batch_size=batch_size),
            )
            check_suits_model(policy, spec)
            points.setdefault(point.hash(), point)
    return tuple(points.values())


def _reads_alpha(policy: str) -> bool:
    row = get_policy(policy)
    return row.adaptive or row.eviction is EvictionKind.DYNAMIC


@dataclass(frozen=True, kw_only=True)
class FailedPoint:
    """A point that gave no result, and why. `error` is the exception."""

    point: PointConfig
    error: Exception

    @property
    def is_foreseen(self) -> bool:
        """Whether the reason says all there is to know: bad input, or no memory left."""
        return isinstance(self.error, UsageError) or is_out_of_memory(self.error)

    @property
    def reason(self) -> str:
        """One line for reports."""
        if isinstance(self.error, UsageError):
            return str(self.error)
        text = " ".join(str(self.error).split())
        if is_out_of_memory(self.error):
            # PyTorch goes on with hints about its allocator, which are the same every time.
            text = text.partition(" If reserved but unallocated")[0]
            return f"out of memory: {text}" if text else "out of memory"
        return f"{type(self.error).__name__}: {text}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory of the host or of a device ran out.

    PyTorch's errors are known by name and text, since this package does without PyTorch: a
    torch.OutOfMemoryError for tensors on a GPU, a plain RuntimeError for those on a CPU and for
    what CUDA's libraries allocate themselves.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"MemoryError", "CapacityError", "OutOfMemoryError"}:
        return True
    text = str(error).lower()
    return "RuntimeError" in names and ("out of memory" in text or "allocate memory" in text)


@dataclass(kw_only=True)
class SweepResult:
    """What became of each point; `interrupted`: Ctrl-C ended the sweep before its last point."""

    finished: list[PointConfig] = field(default_factory=list)
    skipped: list[PointConfig] = field(default_factory=list)
    failed: list[FailedPoint] = field(default_factory=list)
    interrupted: bool = False


def run_sweep(
    points: Sequence[PointConfig],
    *,
    run: Callable[[int, PointConfig], None],
    is_finished: Callable[[PointConfig], bool],
    on_failed: Callable[[FailedPoint], None],
    release: Callable[[], None] = lambda: None,
) -> SweepResult:
    """Run every point that is not finished yet; one that fails does not stop the others.

    `run(index, point)` runs the point and keeps its result before it returns, so whatever happens
    later loses nothing. `release` is called after each point that was run, when nothing refers to
    what the point made, so that the next one finds the memory free. Ctrl-C ends the sweep: the
    point in work is lost, the result says so.
    """
    result = SweepResult()
    try:
        for index, point in enumerate(points):
            failed = None
            try:
                if is_finished(point):
                    result.skipped.append(point)
                    continue
                run(index, point)
            except Exception as error:  # out of memory at one batch size must not end the sweep
                failed = FailedPoint(point=point, error=error)
                on_failed(failed)
                _drop_frames(error)
            if failed is None:
                result.finished.append(point)
            else:
                result.failed.append(failed)
            release()
    except KeyboardInterrupt:
        result.interrupted = True
    return result


def _drop_frames(error: BaseException | None) -> None:
    """Let go of the frames of an exception: their variables hold the tensors of its point."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
