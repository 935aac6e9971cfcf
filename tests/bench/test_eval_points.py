"""Which points an evaluation has, and how the bundled tasks are scored."""

import dataclasses

import pytest
from fake_engine import fake_record

from focus_bench.api import load_workload, make_point
from focus_bench.bench.quality import (
    SCORED_TASKS,
    TaskChoice,
    evaluate_bundled,
    expand_quality,
    point_of_run,
)
from focus_bench.bench.sweep import Axes
from focus_bench.core.config import EngineConfig, PointConfig
from focus_bench.core.records import RunRecord
from focus_bench.core.workload import Workload
from focus_bench.report.quality_results import QualityPlan
from focus_bench.workloads.tasks.task import Task
from focus_bench.workloads.tasks.workload import tasks_of_workload
from focus_bench.workloads.tokenizers import ByteTokenizer

TASK = SCORED_TASKS[0]
AXES = Axes(
    models=("dummy-tiny",),
    datasets=(),
    batch_sizes=(32,),
    alphas=(1.2, 1.5),
    thresholds=(0.9, 0.8),
    strategies=("low_confidence_dynamic",),
    policies=("baseline", "focus", "focus-fixed", "ideal"),
    acceptance="confidence",
    importance="model",
)


def choice(name: str = TASK, **changes: object) -> TaskChoice:
    base = TaskChoice(
        name=name, num_problems=3, max_new_tokens=64, benchmark=name, metric="exact match"
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def expanded(*tasks: TaskChoice) -> tuple[QualityPlan, ...]:
    base = PointConfig(engine=EngineConfig(model="dummy-tiny"))
    return expand_quality(AXES, tasks, base, retains=(2, 4, 8), selects=("top", "bottom"))


def test_axes_that_a_policy_does_not_read_give_no_further_points() -> None:
    plans = expanded(choice())
    seen = [
        (d.policy, d.threshold, d.alpha, d.retain, d.select)
        for d in (plan.point.decode for plan in plans)
    ]
    expected = {("baseline", t, 1.2, 2, "top") for t in (0.9, 0.8)}
    expected |= {("ideal", t, 1.2, 2, "top") for t in (0.9, 0.8)}
    expected |= {("focus", t, a, 2, "top") for t in (0.9, 0.8) for a in (1.2, 1.5)}
    expected |= {
        ("focus-fixed", t, 1.2, k, s)
        for t in (0.9, 0.8)
        for k in (2, 4, 8)
        for s in ("top", "bottom")
    }
    assert len(seen) == len(expected) == 20
    assert set(seen) == expected
    assert len({plan.hash() for plan in plans}) == len(plans)


def test_each_task_keeps_its_own_numbers() -> None:
    plans = expanded(choice(), choice(SCORED_TASKS[1], num_problems=5, max_new_tokens=7))
    workloads = {plan.point.workload.dataset: plan.point.workload for plan in plans}
    assert workloads[TASK].num_prompts == 3
    assert workloads[SCORED_TASKS[1]].num_prompts == 5
    assert workloads[SCORED_TASKS[1]].max_new_tokens == 7


def test_the_hash_names_how_a_point_is_scored() -> None:
    plan = expanded(choice())[0]
    others = [
        dataclasses.replace(plan, num_runs=2),
        dataclasses.replace(plan, num_fewshot=1),
        dataclasses.replace(plan, chat=False),
        dataclasses.replace(plan, scorer="another"),
        dataclasses.replace(plan, point=dataclasses.replace(plan.point, seed=1)),
    ]
    assert len({other.hash() for other in (plan, *others)}) == 6
    assert dataclasses.replace(plan).hash() == plan.hash()


@pytest.fixture(scope="module")
def problems() -> tuple[QualityPlan, Workload, tuple[Task, ...]]:
    point = make_point(
        model="dummy-tiny", dataset=TASK, policy="baseline", num_prompts=4, max_new_tokens=64
    )
    workload = load_workload(point)
    tasks = tasks_of_workload(workload, tokenizer=ByteTokenizer(), seed=0)
    plan = QualityPlan(
        point=point, scorer="focus-bench", benchmark=TASK, metric="exact match", num_runs=2
    )
    return plan, workload, tasks


def test_every_reply_is_checked_against_its_own_problem(
    problems: tuple[QualityPlan, Workload, tuple[Task, ...]],
) -> None:
    plan, workload, tasks = problems
    seeds = []

    def run(point: PointConfig, given: Workload) -> RunRecord:
        assert given is workload
        seeds.append(point.seed)
        wrong = 1 if point.seed == 0 else None  # the second run gets one more right
        replies = [task.reply for task in tasks]
        replies[3] = ""
        return fake_record(given, lambda i: "The answer is -1." if i == wrong else replies[i])

    evaluation = evaluate_bundled(plan, workload, ByteTokenizer(), run=run, hardware="cpu")
    result = evaluation.result
    assert seeds == [0, 1]
    assert result.scores == (0.5, 0.75)
    assert result.accuracy.value == 0.625
    assert result.num_problems == 4
    assert [answer.right for answer in evaluation.answers] == [1.0, 0.0, 1.0, 0.0]
    assert [answer.output for answer in evaluation.answers][:2] == [
        tasks[0].reply,
        "The answer is -1.",
    ]
    assert evaluation.answers[3].finish_reason == "error"
    assert result.decoding.metrics.num_failed == 1
    assert result.decoding.metrics.tokens_per_step == 2.0
    assert result.decoding.metrics.processed_per_decoded == 2.0


def test_runs_differ_in_the_sampling_seed_only(
    problems: tuple[QualityPlan, Workload, tuple[Task, ...]],
) -> None:
    plan = problems[0]
    assert point_of_run(plan, 0) == plan.point
    assert point_of_run(plan, 2) == dataclasses.replace(plan.point, seed=2)
