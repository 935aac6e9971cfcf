"""pass@k against its definition, and the stand-in against what the tasks ask of it."""

import itertools

import pytest

from focus_bench.bench.code_eval import SandboxedCodeEval, in_place_of_code_eval, pass_at_k
from focus_bench.bench.sandbox import SandboxLimits
from focus_bench.core.errors import UsageError


@pytest.mark.parametrize(("n", "c", "k"), [(1, 0, 1), (1, 1, 1), (6, 2, 3), (7, 5, 4), (5, 0, 2)])
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(n: int, c: int, k: int) -> None:
    subsets = list(itertools.combinations(range(n), k))
    share = sum(min(subset) < c for subset in subsets) / len(subsets)
    assert pass_at_k(n, c, k) == pytest.approx(share)


def test_candidates_run_with_the_tests_behind_them() -> None:
    metric = SandboxedCodeEval(limits=SandboxLimits(seconds=1.0))
    good, bad = "def add(a, b): return a + b", "def add(a, b): return a * b"
    endless = "def add(a, b):\n    while True: pass"
    rates, results = metric.compute(
        references=["assert add(2, 3) == 5", "assert add(0, 0) == 0"],
        predictions=[[good, bad], [endless, bad]],
        k=[1, 2, 3],
    )
    assert rates == {"pass@1": 0.5, "pass@2": 1.0}  # nobody has three candidates
    assert [entry["passed"] for _, entry in results[0]] == [True, False]
    assert results[1][0][1]["result"] == "time"
    assert metric.verdicts == {"passed": 2, "failed": 1, "time": 1}


def test_it_stands_in_only_for_code_eval() -> None:
    evaluate = pytest.importorskip("evaluate", reason="needs the extra [eval]")
    original = evaluate.load
    first, second = SandboxedCodeEval(), SandboxedCodeEval()
    with in_place_of_code_eval(first):
        held = evaluate.load("code_eval")
        with pytest.raises(UsageError, match="bleu"):
            evaluate.load("bleu")
    assert evaluate.load is original
    with in_place_of_code_eval(second):  # a task that was imported before holds the old one
        assert held.compute(references=["assert x"], predictions=[["x = 1"]])[0] == {"pass@1": 1.0}
    assert (first.verdicts.total(), second.verdicts.total()) == (0, 1)
    with pytest.raises(RuntimeError, match="in_place_of_code_eval"):
        held.compute(references=["assert x"], predictions=[["x = 1"]])
