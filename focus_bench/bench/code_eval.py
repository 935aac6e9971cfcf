"""Stands in for the metric `code_eval` of the package evaluate; its programs run in the sandbox.

The harness's own HumanEval and MBPP tasks load that metric by name when they are imported, which
would fetch it from the hub and run programs in bare processes.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from focus_bench.bench.sandbox import DEFAULT_LIMITS, SandboxLimits, run_programs
from focus_bench.core.errors import UsageError

_Results = dict[int, list[tuple[int, dict[str, object]]]]


@dataclass(kw_only=True)
class SandboxedCodeEval:
    """pass@k of candidate programs. `verdicts` counts how all programs so far have ended."""

    limits: SandboxLimits = DEFAULT_LIMITS
    verdicts: Counter[str] = field(default_factory=Counter)

    def compute(
        self,
        *,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1,),
    ) -> tuple[dict[str, float], _Results]:
        """Run every candidate of every task with the task's tests behind it.

        `references[i]` are the tests of task i and `predictions[i]` its candidates. Returns what
        the original returns: pass@k for those k that every task has candidates enough for, and by
        task the result of each candidate.
        """
        programs = [
            f"{candidate}\n{tests}"
            for candidates, tests in zip(predictions, references, strict=True)
            for candidate in candidates
        ]
        executions = iter(run_programs(programs, limits=self.limits))
        results: _Results = {}
        for task, candidates in enumerate(predictions):
            results[task] = []
            for number in range(len(candidates)):
                execution = next(executions)
                self.verdicts[execution.verdict.value] += 1
                entry: dict[str, object] = {
                    "task_id": task,
                    "completion_id": number,
                    "passed": execution.passed,
                    "result": f"{execution.verdict}: {execution.detail}".removesuffix(": "),
                }
                results[task].append((number, entry))
        counts = [
            (len(entries), sum(bool(entry["passed"]) for _, entry in entries))
            for entries in results.values()
        ]
        rates = {
            f"pass@{size}": sum(pass_at_k(n, c, size) for n, c in counts) / len(counts)
            for size in k
            if counts and all(n >= size for n, _ in counts)
        }
        return rates, results


def pass_at_k(num_candidates: int, num_passed: int, k: int) -> float:
    """Probability that one of k of the candidates passes (Chen et al. 2021, Eq. 1)."""
    return 1.0 - math.comb(num_candidates - num_passed, k) / math.comb(num_candidates, k)


class _Standing:
    """What the tasks hold on to: they load their metric once, when they are imported, and for good,
    so it passes everything on to the metric of the moment.
    """

    def __init__(self) -> None:
        self.metric: SandboxedCodeEval | None = None

    def compute(
        self,
        *,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1,),
    ) -> tuple[dict[str, float], _Results]:
        if self.metric is None:
            raise RuntimeError("programs are run inside in_place_of_code_eval only")
        return self.metric.compute(references=references, predictions=predictions, k=k)


_STANDING = _Standing()


@contextlib.contextmanager
def in_place_of_code_eval(metric: SandboxedCodeEval) -> Iterator[None]:
    """While it lasts, `metric` is what `evaluate.load("code_eval")` gives and has ever given.

    Any other name is an error.
    """
    import evaluate

    def load(name: str, *arguments: object, **options: object) -> _Standing:
        if name != "code_eval":
            raise UsageError("metric", name, "code_eval, the one that needs nothing fetched")
        return _STANDING

    original, before = evaluate.load, _STANDING.metric
    evaluate.load, _STANDING.metric = load, metric
    try:
        yield
    finally:
        evaluate.load, _STANDING.metric = original, before
