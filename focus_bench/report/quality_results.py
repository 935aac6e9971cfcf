"""One evaluated point: what was asked, by whom it was scored, and the score.

Knows no file and no rendering; the decoding figures beside the score are a PointResult's.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from focus_bench.core.config import PointConfig
from focus_bench.core.errors import check_range
from focus_bench.decoding.policies import EvictionKind, get_policy
from focus_bench.report.accuracy import Accuracy
from focus_bench.report.results import PointResult

BUNDLED = "focus-bench"  # the scorer of the bundled tasks


@dataclass(frozen=True, kw_only=True)
class QualityPlan:
    """A point to be evaluated: `point.workload` names the task and how many of its problems.

    `scorer`: "focus-bench" for the bundled tasks, else the harness with its version; `benchmark`:
    the scorer's own name of the task; `metric`: what of the scorer's figures is the score.
    `num_fewshot`: worked examples before each problem; `chat`: prompts go through the chat
    template. `num_runs`: how often it is run, each time with another sampling seed.
    """

    point: PointConfig
    scorer: str
    benchmark: str
    metric: str
    num_fewshot: int = 0
    chat: bool = True
    num_runs: int = 1

    def __post_init__(self) -> None:
        check_range("--num-fewshot", self.num_fewshot, low=0)
        check_range("--num-runs", self.num_runs, low=1)

    @property
    def task(self) -> str:
        """What --tasks calls it."""
        return self.point.workload.dataset

    def hash(self) -> str:
        """16 hexadecimal digits that name this plan: equal ones hash equally."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "point"}
        text = json.dumps([self.point.hash(), own], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of one problem of the first run: `right` is the scorer's word, 0 to 1."""

    problem: int
    right: float
    output: str
    finish_reason: str
    output_tokens: int
    decode_steps: int


@dataclass(frozen=True, kw_only=True)
class QualityResult:
    """A plan's score and how its text was decoded.

    `scores`: of every run, 0 to 1. `is_binomial`: each of the `num_problems` is right or wrong, so
    that the mean has a binomial interval. `other_scores`: further figures of the scorer, means over
    runs. `decoding`: figures, data, labels and notes of the first run.
    """

    plan: QualityPlan
    scores: tuple[float, ...]
    num_problems: int
    is_binomial: bool
    decoding: PointResult
    other_scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def hardware(self) -> str:
        """The device that decoded."""
        return self.decoding.hardware

    @property
    def key(self) -> tuple[str, str]:
        """What a result folder holds at most once: (plan hash, hardware)."""
        return (self.plan.hash(), self.hardware)

    @property
    def accuracy(self) -> Accuracy:
        """The mean score over runs."""
        value = sum(self.scores) / len(self.scores) if self.scores else None
        return Accuracy(value=value, count=self.num_problems)

    @property
    def ci95(self) -> tuple[float, float] | None:
        """The score's binomial interval, None where it has none."""
        return self.accuracy.ci95 if self.is_binomial else None


def reads_alpha(policy: str) -> bool:
    """Whether the policy has a budget that alpha scales (paper, Eq. 4)."""
    row = get_policy(policy)
    return row.adaptive or row.eviction is EvictionKind.DYNAMIC


def reads_retain(policy: str) -> bool:
    """Whether the policy keeps a fixed number of positions (paper, Table 3)."""
    return get_policy(policy).eviction is EvictionKind.FIXED
