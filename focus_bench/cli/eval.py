"""focus-bench eval: how many problems are solved, by policy and setting, on this machine."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from focus_bench.cli.eval_options import EvalFlags
from focus_bench.cli.flags import takes

if TYPE_CHECKING:
    from focus_bench.api.engine import Engine
    from focus_bench.bench.benchmarks import Problems
    from focus_bench.bench.quality import Evaluation, TaskChoice
    from focus_bench.bench.sandbox import SandboxLimits
    from focus_bench.bench.sweep import Axes, FailedPoint, SweepResult
    from focus_bench.bench.workload_cache import WorkloadCache
    from focus_bench.cli.interrupts import Interrupts
    from focus_bench.core.config import PointConfig
    from focus_bench.core.records import RunRecord
    from focus_bench.core.workload import Workload
    from focus_bench.report.progress import SweepProgress
    from focus_bench.report.quality_folder import QualityFolder
    from focus_bench.report.quality_results import QualityPlan, QualityResult
    from focus_bench.scheduling.recorder import Recorder
    from focus_bench.workloads.tokenizers import Tokenizer

BUNDLED_PROBLEMS = 200
PAPER_RUNS = 2


@takes(EvalFlags)
def command(flags: EvalFlags) -> int:
    """Measure accuracy on the bundled tasks or on outside benchmarks, by policy and setting."""
    from focus_bench.bench.benchmarks import BENCHMARKS, go_offline
    from focus_bench.bench.quality import expand_quality
    from focus_bench.bench.sandbox import SandboxLimits
    from focus_bench.bench.workload_cache import WorkloadCache
    from focus_bench.cli.paths import check_writable
    from focus_bench.cli.points import axes_of, comma_list
    from focus_bench.cli.sweeps import new_folder
    from focus_bench.core.errors import UsageError
    from focus_bench.engine.device import device_name, resolve_device

    check_writable("--output-dir", flags.output_dir, is_folder=True)
    limits = SandboxLimits(seconds=flags.code_timeout)
    names = tuple(dict.fromkeys(comma_list("--tasks", flags.tasks, str, "names")))
    if any(name in BENCHMARKS for name in names):
        go_offline()
    base = _base_point(flags)
    axes = axes_of(flags)
    workloads = WorkloadCache()
    plans: list[QualityPlan] = []
    problems: dict[tuple[str, str], Problems] = {}
    for model in axes.models:  # a tokenizer may lack a chat template that another one has
        tokenizer = workloads.tokenizer_of(_with_model(base, model))
        choices, found = _choose(names, flags, tokenizer)
        problems |= {(model, name): rows for name, rows in found.items()}
        plans += expand_quality(
            _of_model(axes, model),
            choices,
            base,
            retains=comma_list("--retain", flags.retain, int, "whole numbers"),
            selects=comma_list("--select", flags.select, str, "names"),
        )
    hardware = device_name(resolve_device(flags.device, cuda_graphs=flags.cuda_graphs))
    if flags.dry_run:
        return _show_plan(plans, hardware, flags)
    if flags.resume and flags.output_dir is None:
        raise UsageError("--resume", "no --output-dir", "--resume with --output-dir FOLDER")
    for plan in plans:  # data that cannot be had is an error before anything runs
        if plan.task not in BENCHMARKS:
            workloads.of(plan.point)
    scoring = _Scoring(workloads=workloads, problems=problems, limits=limits, hardware=hardware)
    return _run(plans, scoring, flags, flags.output_dir or new_folder("eval"))


def _run(plans: "list[QualityPlan]", scoring: "_Scoring", flags: EvalFlags, path: Path) -> int:
    from focus_bench.cli.interrupts import Interrupted, Interrupts
    from focus_bench.cli.machine import gpu_facts
    from focus_bench.cli.points import key_values
    from focus_bench.report.console import make_console
    from focus_bench.report.manifest import PlannedPoint, new_manifest
    from focus_bench.report.progress import SweepProgress
    from focus_bench.report.quality import quality_table
    from focus_bench.report.quality_folder import QualityFolder

    planned = tuple(
        PlannedPoint(
            point_hash=plan.hash(),
            source="measured",
            hardware=scoring.hardware,
            config=plan.point,
        )
        for plan in plans
    )
    manifest = new_manifest(
        planned,
        command="eval",
        seed=flags.seed,
        machine={"device": scoring.hardware, **gpu_facts()},
        metadata=key_values("--metadata", flags.metadata),
    )
    messages = make_console(sys.stderr, quiet=flags.quiet)
    kept = f"finished points are in {path}; to go on, repeat the command with --resume"
    with (
        QualityFolder.create(path, manifest, resume=flags.resume) as folder,
        Interrupts(lambda: kept) as interrupts,
    ):
        if flags.device == "auto" and scoring.hardware == "cpu":
            messages.print("no GPU that PyTorch sees: on the CPU")
        others = folder.others_than(plan.hash() for plan in plans)
        if others:
            messages.print(others, soft_wrap=True)
        with SweepProgress(messages, len(plans)) as progress:
            outcome = _sweep(plans, scoring, folder, progress, interrupts)
        console = make_console(quiet=flags.quiet)
        console.print(quality_table(folder.results))
        console.print(f"results: {path}", soft_wrap=True)
        if outcome.interrupted:
            raise Interrupted(kept)
        return _exit_code(outcome, folder.results)


def _sweep(
    plans: "list[QualityPlan]",
    scoring: "_Scoring",
    folder: "QualityFolder",
    progress: "SweepProgress",
    interrupts: "Interrupts",
) -> "SweepResult":
    """Run every plan that the folder does not hold; each is kept before the next begins."""
    import traceback

    from focus_bench.bench.sweep import run_sweep
    from focus_bench.engine.memory import release_memory
    from focus_bench.report.formats import share

    plan_of = {plan.point.hash(): plan for plan in plans}

    def run(index: int, point: "PointConfig") -> None:
        plan = plan_of[point.hash()]
        progress.begin_point(_label(plan), plan.point.workload.num_prompts * plan.num_runs)
        evaluation = scoring.evaluate(plan, progress)
        with interrupts.deferred():
            folder.add(evaluation.result, evaluation.answers)
        progress.end_point(f"{share(evaluation.result.accuracy.value)} right")

    def is_finished(point: "PointConfig") -> bool:
        plan = plan_of[point.hash()]
        done = folder.is_finished(plan, scoring.hardware)
        if done:
            progress.begin_point(_label(plan), 0)
            progress.end_point("finished before, skipped")
        return done

    def on_failed(failed: "FailedPoint") -> None:
        progress.end_point(f"failed: {failed.reason}")
        if not failed.is_foreseen:  # say where it happened
            traceback.print_exception(failed.error)

    points = [plan.point for plan in plans]
    return run_sweep(
        points, run=run, is_finished=is_finished, on_failed=on_failed, release=release_memory
    )


@dataclass(kw_only=True)
class _Scoring:
    """Evaluates plans on one engine at a time, which stays loaded while plans use it.

    `problems`: of the outside benchmarks, by model and task.
    """

    workloads: "WorkloadCache"
    problems: "dict[tuple[str, str], Problems]"
    limits: "SandboxLimits"
    hardware: str
    _engine: "Engine | None" = field(default=None, init=False)

    def evaluate(self, plan: "QualityPlan", progress: "SweepProgress") -> "Evaluation":
        """Decode and score one plan."""
        from focus_bench.bench.lm_eval_run import evaluate_benchmark
        from focus_bench.bench.quality import evaluate_bundled

        engine = self._engine_of(plan.point)
        before = [0, 0]  # requests and tokens of earlier runs of this plan

        def decode(point: "PointConfig", workload: "Workload") -> "RunRecord":
            def on_progress(recorder: "Recorder") -> None:
                progress.update(
                    before[0] + recorder.num_finished, before[1] + recorder.output_tokens
                )

            record = engine.evaluate(point, workload, on_progress=on_progress)
            before[0] += len(record.requests)
            before[1] += sum(request.output_tokens for request in record.requests)
            return record

        tokenizer = self.workloads.tokenizer_of(plan.point)
        problems = self.problems.get((plan.point.engine.model, plan.task))
        if problems is None:
            workload = self.workloads.of(plan.point)
            return evaluate_bundled(plan, workload, tokenizer, run=decode, hardware=self.hardware)
        return evaluate_benchmark(
            plan,
            problems,
            tokenizer,
            max_positions=engine.spec.max_position_embeddings,
            run=decode,
            hardware=self.hardware,
            limits=self.limits,
        )

    def _engine_of(self, point: "PointConfig") -> "Engine":
        from focus_bench.api.engine import Engine

        if self._engine is None or self._engine.config != point.engine:
            self._engine = None  # frees the last model's memory before the next one is loaded
            self._engine = Engine.for_point(point)
        return self._engine


def _choose(
    names: tuple[str, ...], flags: EvalFlags, tokenizer: "Tokenizer"
) -> "tuple[list[TaskChoice], dict[str, Problems]]":
    """How each task is scored, and the problems of the outside ones. Raises UsageError."""
    from focus_bench.bench.benchmarks import (
        BENCHMARKS,
        PAPER_MAX_NEW_TOKENS,
        check_harness,
        fewshot_of,
        load_problems,
    )
    from focus_bench.bench.quality import BUNDLED_MAX_NEW_TOKENS, SCORED_TASKS, TaskChoice
    from focus_bench.core.errors import UsageError, check_choice, check_range
    from focus_bench.workloads.chat_template import Turn

    if flags.num_problems is not None:
        check_range("--num-problems", flags.num_problems, low=1)
    # The harness passes prompts as text, so markers without a spelling are no template to it.
    text_template = tokenizer.chat_text([Turn(role="user", text="2 + 2?")]) is not None
    if flags.apply_chat_template and not text_template:
        raise UsageError(
            "--apply-chat-template", tokenizer.name, "a tokenizer with a chat template as text"
        )
    chat = text_template if flags.apply_chat_template is None else flags.apply_chat_template
    for name in names:
        check_choice("--tasks", name, (*SCORED_TASKS, *BENCHMARKS))
    paths = _paths(flags.dataset_path, tuple(name for name in names if name in BENCHMARKS))
    choices, problems = [], {}
    for name in names:
        if name in SCORED_TASKS:
            choice = TaskChoice(
                name=name,
                num_problems=flags.num_problems or BUNDLED_PROBLEMS,
                max_new_tokens=_or(flags.max_new_tokens, BUNDLED_MAX_NEW_TOKENS),
                benchmark=name,
                metric="exact match",
                chat=tokenizer.has_chat_template,
                num_runs=_or(flags.num_runs, 1),
            )
        else:
            benchmark = BENCHMARKS[name]
            scorer = check_harness(name)
            few = fewshot_of(name, flags.num_fewshot)
            problems[name] = load_problems(
                name,
                path=paths.get(name, ""),
                download=flags.download,
                count=flags.num_problems,
                tokenizer=tokenizer.name,
            )
            choice = TaskChoice(
                name=name,
                num_problems=len(problems[name].documents),
                max_new_tokens=_or(flags.max_new_tokens, PAPER_MAX_NEW_TOKENS),
                scorer=scorer,
                benchmark=benchmark.task(chat=chat, num_fewshot=few),
                metric=" + ".join(benchmark.score_metrics(chat=chat)),
                dataset_path=paths.get(name, ""),
                num_fewshot=few,
                chat=chat,
                num_runs=_or(flags.num_runs, PAPER_RUNS),
            )
        choices.append(choice)
    return choices, problems


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _paths(items: list[str] | None, benchmarks: tuple[str, ...]) -> dict[str, str]:
    """The path of each benchmark from PATH and TASK=PATH items."""
    from focus_bench.core.errors import UsageError

    paths: dict[str, str] = {}
    for item in items or []:
        name, equals, path = item.partition("=")
        if equals and name in benchmarks:
            paths[name] = path
        elif len(benchmarks) == 1:
            paths[benchmarks[0]] = item
        else:
            named = " or ".join(f"{b}=PATH" for b in benchmarks) or "no path with bundled tasks"
            raise UsageError("--dataset-path", item, named)
    return paths


def _base_point(flags: EvalFlags) -> "PointConfig":
    from focus_bench.cli.points import engine_of, sampling_of
    from focus_bench.core.config import DecodeConfig, PointConfig, SchedulerConfig, WorkloadConfig

    return PointConfig(
        engine=engine_of(flags, device=flags.device),
        decode=DecodeConfig(steps=flags.steps, focus_min_batch=flags.focus_min_batch),
        sampling=sampling_of(flags),
        scheduler=SchedulerConfig(num_pages=flags.num_pages),
        workload=WorkloadConfig(tokenizer=flags.tokenizer, download=flags.download),
        seed=flags.seed,
    )


def _with_model(point: "PointConfig", model: str) -> "PointConfig":
    import dataclasses

    from focus_bench.bench.defaults import resolved_engine

    engine = resolved_engine(dataclasses.replace(point.engine, model=model))
    return dataclasses.replace(point, engine=engine)


def _of_model(axes: "Axes", model: str) -> "Axes":
    import dataclasses

    return dataclasses.replace(axes, models=(model,))


def _show_plan(plans: "list[QualityPlan]", hardware: str, flags: EvalFlags) -> int:
    """--dry-run: print the points, and with --resume which of them are finished."""
    from focus_bench.report.console import make_console
    from focus_bench.report.quality import quality_plan_table
    from focus_bench.report.quality_folder import load_quality

    finished = None
    if flags.resume and flags.output_dir is not None and flags.output_dir.is_dir():
        done = {result.key for result in load_quality(flags.output_dir)}
        finished = [(plan.hash(), hardware) in done for plan in plans]
    make_console(quiet=flags.quiet).print(quality_plan_table(plans, finished))
    return 0


def _label(plan: "QualityPlan") -> str:
    decode = plan.point.decode
    fixed = f", {decode.select} {decode.retain}" if decode.policy == "focus-fixed" else ""
    return (
        f"{plan.task} {decode.policy}{fixed}, threshold {decode.threshold:g}, alpha "
        f"{decode.alpha:g}, batch {plan.point.scheduler.batch_size}, {plan.point.engine.model}"
    )


def _exit_code(outcome: "SweepResult", results: "tuple[QualityResult, ...]") -> int:
    """0, or 1 with what failed on stderr."""
    from focus_bench.cli.sweeps import SOME_FAILED

    problems = [f"point {f.point.hash()}: {f.reason}" for f in outcome.failed]
    problems += [
        f"point {result.plan.hash()} ({_label(result.plan)}): "
        f"{result.decoding.metrics.num_failed} requests failed and count as wrong"
        for result in results
        if result.decoding.metrics.num_failed
    ]
    for problem in problems:
        print(f"focus-bench: failed: {problem}", file=sys.stderr)
    return SOME_FAILED if problems else 0
