"""The test split as a data set, and the tasks behind a workload made of it.

Knows how its rows are made; which of them become requests is the loader's matter.
"""

from collections.abc import Iterator, Mapping
from itertools import count, islice

from focus_bench.core.errors import UsageError
from focus_bench.core.workload import BUNDLED_TASKS, Workload
from focus_bench.workloads.rows import Row
from focus_bench.workloads.tasks.generate import FAMILIES, MIX, generate_many
from focus_bench.workloads.tasks.task import TEST, Task
from focus_bench.workloads.tokenizers import Tokenizer

ORIGIN = BUNDLED_TASKS
TASK_DATASETS: Mapping[str, str | Mapping[str, float]] = {
    "focus-tasks": MIX,
    **{f"focus-tasks-{family}": family for family in FAMILIES},
}
_CHUNK = 128


def tasks_of_dataset(dataset: str, seed: int) -> Iterator[Task]:
    """The endless test tasks of one of TASK_DATASETS."""
    for chunk in count():
        yield from generate_many(TEST, seed, chunk * _CHUNK, _CHUNK, mix=TASK_DATASETS[dataset])


def task_rows(dataset: str, seed: int) -> Iterator[Row]:
    """The same as rows."""
    for task in tasks_of_dataset(dataset, seed):
        yield Row(prompt=task.prompt, reply=task.reply)


def tasks_of_workload(workload: Workload, *, tokenizer: Tokenizer, seed: int) -> tuple[Task, ...]:
    """The task of every request, in order, of a workload loaded with this tokenizer and seed.

    Raises UsageError where the workload is not of bundled tasks, or of other ones than tokenizer
    and seed give.
    """
    provenance = workload.provenance
    if provenance.dataset not in TASK_DATASETS:
        raise UsageError("--dataset", provenance.dataset, ", ".join(TASK_DATASETS))
    tasks = list(islice(tasks_of_dataset(provenance.dataset, seed), provenance.rows_read))
    # Tasks with equal prompts have equal answers, so which of them is found makes no difference.
    prompts = tokenizer.chat_prompts([task.prompt for task in tasks])
    task_of = {ids.tobytes(): task for ids, task in zip(prompts, tasks, strict=True)}
    try:
        return tuple(task_of[request.prompt_ids.tobytes()] for request in workload.requests)
    except KeyError:
        raise UsageError(
            "tokenizer and seed",
            f"{tokenizer.name}, {seed}",
            f"those that {provenance.dataset} was loaded with",
        ) from None
