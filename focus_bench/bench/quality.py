"""Points of an evaluation and the scoring of the bundled tasks.

Takes what decodes as a callable; knows no engine. Outside benchmarks are lm_eval_run's matter.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from focus_bench.bench.sweep import Axes, expand
from focus_bench.core.config import PointConfig
from focus_bench.core.records import RequestRecord, RunRecord
from focus_bench.core.workload import Workload
from focus_bench.report.quality_results import (
    BUNDLED,
    Answer,
    QualityPlan,
    QualityResult,
    reads_retain,
)
from focus_bench.report.results import result_of
from focus_bench.workloads.tasks.generate import SCORED_FAMILIES, check
from focus_bench.workloads.tasks.workload import TASK_DATASETS, tasks_of_workload
from focus_bench.workloads.tokenizers import Tokenizer

# Stories cannot be right or wrong, and the mix of all families has stories in it.
SCORED_TASKS = tuple(name for name, mix in TASK_DATASETS.items() if mix in SCORED_FAMILIES)
BUNDLED_MAX_NEW_TOKENS = 256  # good replies have at most some 160 tokens

Run = Callable[[PointConfig, Workload], RunRecord]
"""Decodes a workload as a point says, the outputs with it."""


@dataclass(frozen=True, kw_only=True)
class TaskChoice:
    """One task of --tasks with how it is scored; fields as in QualityPlan and WorkloadConfig."""

    name: str
    num_problems: int
    max_new_tokens: int
    scorer: str = BUNDLED
    benchmark: str
    metric: str
    dataset_path: str = ""
    num_fewshot: int = 0
    chat: bool = True
    num_runs: int = 1


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A result and the answers of its first run, in the order of the problems."""

    result: QualityResult
    answers: tuple[Answer, ...]


def expand_quality(
    axes: Axes,
    tasks: Sequence[TaskChoice],
    base: PointConfig,
    *,
    retains: Sequence[int],
    selects: Sequence[str],
) -> tuple[QualityPlan, ...]:
    """The plans that axes, tasks, numbers of kept positions and selections span around `base`.

    `axes.datasets` is replaced by the tasks. A value that a point does not read (alpha without a
    budget, K and selection without a fixed number) is the first of its list, and plans that come
    out equal are kept once. Raises UsageError as `expand` does.
    """
    plans: dict[str, QualityPlan] = {}
    for task in tasks:
        workload = dataclasses.replace(
            base.workload,
            dataset=task.name,
            dataset_path=task.dataset_path,
            num_prompts=task.num_problems,
            max_new_tokens=task.max_new_tokens,
        )
        points = expand(
            dataclasses.replace(axes, datasets=(task.name,)),
            dataclasses.replace(base, workload=workload),
        )
        for point in points:
            fixed = reads_retain(point.decode.policy)
            choices = itertools.product(
                retains if fixed else retains[:1], selects if fixed else selects[:1]
            )
            for retain, select in choices:
                decode = dataclasses.replace(point.decode, retain=retain, select=select)
                plan = QualityPlan(
                    point=dataclasses.replace(point, decode=decode),
                    scorer=task.scorer,
                    benchmark=task.benchmark,
                    metric=task.metric,
                    num_fewshot=task.num_fewshot,
                    chat=task.chat,
                    num_runs=task.num_runs,
                )
                plans.setdefault(plan.hash(), plan)
    return tuple(plans.values())


def point_of_run(plan: QualityPlan, number: int) -> PointConfig:
    """The point of run `number`: another seed for what is drawn while decoding, the same data."""
    return dataclasses.replace(plan.point, seed=plan.point.seed + number)


def evaluate_bundled(
    plan: QualityPlan, workload: Workload, tokenizer: Tokenizer, *, run: Run, hardware: str
) -> Evaluation:
    """Decode the bundled problems --num-runs times and check every reply.

    `workload` and `tokenizer` are those of the plan's point. A request that failed is a wrong
    answer.
    """
    tasks = tasks_of_workload(workload, tokenizer=tokenizer, seed=plan.point.seed)
    records = [run(point_of_run(plan, number), workload) for number in range(plan.num_runs)]
    graded = []
    for record in records:
        outputs = [tokenizer.decode(ids) for ids in outputs_of(record, len(tasks))]
        right = [float(check(task, text)) for task, text in zip(tasks, outputs, strict=True)]
        graded.append((outputs, right))
    outputs, right = graded[0]
    result = QualityResult(
        plan=plan,
        scores=tuple(sum(marks) / len(marks) for _, marks in graded),
        num_problems=len(tasks),
        is_binomial=True,
        decoding=result_of(
            plan.point, records[0], provenance=workload.provenance, hardware=hardware
        ),
    )
    requests = {request.request_id: request for request in records[0].requests}
    answers = tuple(
        answer_of(requests.get(number), number, text, mark)
        for number, (text, mark) in enumerate(zip(outputs, right, strict=True))
    )
    return Evaluation(result=result, answers=answers)


def outputs_of(record: RunRecord, count: int) -> list[np.ndarray]:
    """The output ids of requests 0 to `count` - 1; nothing for those that failed."""
    nothing = np.zeros(0, dtype=np.int32)
    return [record.output_ids.get(number, nothing) for number in range(count)]


def answer_of(request: RequestRecord | None, problem: int, text: str, right: float) -> Answer:
    """An answer with what its request's record says; None: it was never sent."""
    return Answer(
        problem=problem,
        right=right,
        output=text,
        finish_reason="not sent" if request is None else request.finish_reason,
        output_tokens=0 if request is None else request.output_tokens,
        decode_steps=0 if request is None else request.decode_steps or 0,
    )
