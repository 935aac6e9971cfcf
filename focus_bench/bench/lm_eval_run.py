"""Runs one benchmark through lm-evaluation-harness: its task, its scorer, our model and data.

Imports the harness only inside functions; `benchmarks.check_harness` says whether it is there.
"""

import contextlib
import dataclasses
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_bench.bench.benchmarks import BENCHMARKS, Benchmark, Problems
from focus_bench.bench.code_eval import SandboxedCodeEval, in_place_of_code_eval
from focus_bench.bench.lm_eval_model import BlockDiffusionLM, harness_class
from focus_bench.bench.quality import Evaluation, Run, answer_of, point_of_run
from focus_bench.bench.sandbox import DEFAULT_LIMITS, SandboxLimits
from focus_bench.report.quality_results import QualityPlan, QualityResult
from focus_bench.report.results import result_of
from focus_bench.workloads.tokenizers import Tokenizer

OTHER_PROTOCOL = "prompts and scorer of lm-evaluation-harness; the paper used OpenCompass"


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """What the harness says about one run: all its figures, and of each problem the score's."""

    figures: Mapping[str, float]
    right: tuple[float, ...]


def evaluate_benchmark(
    plan: QualityPlan,
    problems: Problems,
    tokenizer: Tokenizer,
    *,
    max_positions: int,
    run: Run,
    hardware: str,
    limits: SandboxLimits = DEFAULT_LIMITS,
) -> Evaluation:
    """Decode and score the problems --num-runs times.

    `max_positions`: the model's context in tokens. `limits`: of programs that the model wrote.
    """
    benchmark = BENCHMARKS[plan.task]
    metric = SandboxedCodeEval(limits=limits)
    models, scored = [], []
    for number in range(plan.num_runs):
        model = harness_class()(
            point=point_of_run(plan, number),
            tokenizer=tokenizer,
            max_positions=max_positions,
            provenance=problems.provenance,
            run=run,
        )
        with _quiet(), in_place_of_code_eval(metric):
            task = _load_task(plan, benchmark, problems.documents)
            if number == 0:
                metric.verdicts.clear()  # of the program with which a task tries the metric out
            scored.append(_score(plan, benchmark, task, model))
        models.append(model)
    names = benchmark.score_metrics(chat=plan.chat)
    scores = tuple(sum(one.figures[name] for name in names) / len(names) for one in scored)
    others = {
        name: sum(one.figures[name] for one in scored) / len(scored)
        for name in scored[0].figures
        if names != (name,)
    }
    notes = [OTHER_PROTOCOL, *models[0].notes]
    if metric.verdicts:
        ends = ", ".join(f"{count} {verdict}" for verdict, count in metric.verdicts.most_common())
        notes.append(f"programs run in the sandbox: {ends}")
    record = models[0].record
    assert record is not None
    decoding = result_of(plan.point, record, provenance=problems.provenance, hardware=hardware)
    result = QualityResult(
        plan=plan,
        scores=scores,
        num_problems=len(problems.documents),
        is_binomial=len(names) == 1,
        decoding=dataclasses.replace(decoding, notes=(*decoding.notes, *notes)),
        other_scores=others,
    )
    answers = tuple(
        answer_of(reply.request, number, reply.text, mark)
        for number, (reply, mark) in enumerate(zip(models[0].replies, scored[0].right, strict=True))
    )
    return Evaluation(result=result, answers=answers)


def _score(plan: QualityPlan, benchmark: Benchmark, task: Any, model: BlockDiffusionLM) -> _Scored:
    """One run of the harness's own evaluation."""
    from lm_eval.evaluator import evaluate

    results = evaluate(
        lm=model,
        task_dict={"tasks": {plan.benchmark: task}},
        bootstrap_iters=0,
        log_samples=True,
        apply_chat_template=plan.chat,
        fewshot_as_multiturn=plan.chat,
        confirm_run_unsafe_code=True,  # in the sandbox
    )
    figures = {
        name: float(value)
        for name, value in results["results"][plan.benchmark].items()
        if "," in name and "_stderr" not in name and isinstance(value, (int, float))
    }
    name, _, chosen = benchmark.score_metrics(chat=plan.chat)[0].partition(",")
    samples = [s for s in results["samples"][plan.benchmark] if s["filter"] == chosen]
    samples.sort(key=lambda sample: int(sample["doc_id"]))
    return _Scored(figures=figures, right=tuple(float(sample[name]) for sample in samples))


def _load_task(
    plan: QualityPlan, benchmark: Benchmark, documents: Sequence[Mapping[str, object]]
) -> Any:
    """The harness's task with our problems in place of those that it would fetch."""
    import datasets
    import lm_eval.tasks

    def problems(**_: object) -> dict[str, Any]:
        return {benchmark.split: datasets.Dataset.from_list([dict(row) for row in documents])}

    # Only the folder of this benchmark is searched: all of them take seconds.
    folder = Path(lm_eval.tasks.__file__).parent / benchmark.folder
    manager = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
    ours = {
        "task": plan.benchmark,
        "custom_dataset": problems,
        "training_split": None,
        "fewshot_split": None,
    }
    # Only as a group's member is a task of the harness taken with changes.
    loaded = manager.load([{"group": "focus-bench", "task": [ours]}])
    task = loaded["tasks"][plan.benchmark]
    task.set_config("num_fewshot", plan.num_fewshot)
    limit = {"max_gen_toks": plan.point.workload.max_new_tokens}
    task.set_config("generation_kwargs", limit, update=True)
    task.set_fewshot_seed(plan.point.seed)
    return task


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the harness's log, bars and remarks from the terminal; errors are exceptions anyway."""
    import datasets

    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
